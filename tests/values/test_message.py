"""`Message`: role and content, its text, and the way to JSON and back. The conversation, and views on it."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Agent, Context, KernaiError, Media, MediaStore, Message, MockProvider, execute, outside, stream
from kernai.testing import ByHand
from kernai.values.message import ROLES, ConversationView, MessageDicts

IMAGE = Media.from_bytes(b"image", mime_type="image/png")
REPORT = Media.from_file("report.pdf")

parts = st.one_of(st.text(), st.sampled_from([IMAGE, REPORT]))


@pytest.mark.parametrize("role", ["", "tool", "User", None, 1, "user "])
def test_another_role_is_refused(role: Any) -> None:
    with pytest.raises(ValueError, match="role must be one of system, user, assistant"):
        Message(role, "x")
    with pytest.raises(ValueError, match="by must be one of user, model, tool, runtime or None, got 'User'"):
        Message("user", "x", by="User")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [None, 5, b"bytes", {"text": "x"}, ["x", None], [b"x"], [["x"]]])
def test_content_of_another_kind_is_refused(content: Any) -> None:
    with pytest.raises(TypeError, match="content m"):
        Message("user", content)


@given(st.sampled_from(ROLES), st.lists(parts))
def test_text_joins_the_parts_and_names_media_and_json_has_all_of_them(role: Any, content: list[str | Media]) -> None:
    message = Message(role, content)
    assert Message.from_dict(json.loads(json.dumps(message.to_dict())), MediaStore([IMAGE, REPORT])) == message
    named = [part if isinstance(part, str) else f"[{part.kind}:{part.id}]" for part in content]
    assert message.text == "".join(named)
    assert message.media == tuple(part for part in content if isinstance(part, Media))
    assert message.has_media == bool(message.media)


def test_a_message_cannot_be_changed() -> None:
    content: list[str | Media] = ["a"]
    message = Message("user", content)
    content.append("b")
    assert message.text == "a"
    for field in ("role", "content", "text", "media"):
        with pytest.raises(AttributeError):
            setattr(message, field, "x")


def test_messages_and_texts_from_outside_are_values() -> None:
    assert len({Message("user", "a"), Message("user", ["a"]), Message("user", ("a",)), Message("assistant", "a")}) == 2
    assert Message("user", "a") != "a"
    assert repr(Message("user", ["a", IMAGE])) == f"Message('user', 'a[image:{IMAGE.id}]')"
    assert len({outside("a"), outside("a"), outside("b")}) == 2
    assert outside("a") != "a"
    assert Message("user", ["a", "b"], outside=[1]).rewritten(["c", IMAGE]).outside == (0, 1)
    with pytest.raises(TypeError, match="takes text, got bytes"):
        outside(b"a")  # type: ignore[arg-type]


@pytest.mark.parametrize("content, expected", [
    ("text", "text"), (["text"], "text"), ([], []), (["a", "b"], ["a", "b"]), (["a", IMAGE], ["a", IMAGE.to_dict()]),
])
def test_as_a_dict_plain_text_is_text_and_all_else_a_list(content: list[str | Media], expected: object) -> None:
    assert Message("user", content).to_dict() == {"role": "user", "content": expected}


@pytest.mark.parametrize("store", [None, MediaStore()])
def test_an_unknown_media_reference_becomes_its_placeholder(store: MediaStore | None) -> None:
    message = Message.from_dict(Message("user", ["see ", IMAGE]).to_dict(), store)
    assert message.content == ("see ", "[image unavailable: image/png]")
    bare = Message.from_dict({"role": "user", "content": [{"id": "media_1", "kind": "audio"}]}, store)
    assert bare.text == "[audio unavailable: unknown]"


SIGNED = Media.from_url("https://me:key@example.org/a.mp4?sig=1#t", metadata={"seconds": 3})
BLOB = Media.from_bytes(bytes(range(256)), mime_type="audio/wav", kind="document", metadata={"n": [1, None]})


@pytest.mark.parametrize("content", ["text", ["a", "b"], [], ["see ", IMAGE], [SIGNED], [BLOB, "and", SIGNED, IMAGE]])
def test_with_inline_media_a_message_needs_no_store(content: Any) -> None:
    message = Message("user", content)
    again = Message.from_dict(json.loads(json.dumps(message.to_dict(inline_media=True))))
    assert again == message
    assert [(one.id, one.data, one.metadata) for one in again.media] == [
        (one.id, one.data, one.metadata) for one in message.media
    ]
    assert "sig=1" not in json.dumps(message.to_dict())


def test_what_is_in_a_file_goes_inline_as_bytes_and_a_path_in_a_message_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"in the file")
    image = Media.from_file(tmp_path / "a.png", metadata={"dpi": 72})
    saved = Message("user", ["see", image]).to_dict(inline_media=True)
    (tmp_path / "a.png").unlink()
    [again] = Message.from_dict(saved).media
    assert (again.source, again.data, again.mime_type, again.metadata) == ("bytes", b"in the file", "image/png", {"dpi": 72})
    with pytest.raises(KernaiError, match="cannot read media file"):
        Message("user", image).to_dict(inline_media=True)
    assert Message.from_dict(Message("user", image).to_dict()).media == ()


def test_metadata_of_any_kind_are_json_in_a_dict() -> None:
    odd = Media.from_bytes(b"x", mime_type="image/png", metadata={"words": {"b", "a"}, "at": Path("x")})
    assert json.loads(json.dumps(odd.to_dict()))["metadata"] == {"words": ["a", "b"], "at": "x"}


@pytest.mark.parametrize("way", [execute, lambda *given, **options: list(stream(*given, **options))])
def test_media_that_a_history_has_lost_are_warned_of(way: Any, caplog: pytest.LogCaptureFixture) -> None:
    agent, context = Agent(instructions="", provider=MockProvider("done")), Context()
    context.media_store.put(IMAGE)
    history = [Message("user", ["see ", IMAGE, REPORT]).to_dict(), Message("user", BLOB).to_dict(inline_media=True)]
    way(agent, "Go.", history=history, context=context, run_id="r")
    assert [line.partition(" reason=")[0] for line in caplog.messages if "media.lost" in line] == [
        f"event=media.lost run_id=r id={REPORT.id} kind=document"
    ]
    assert BLOB.id in context.media_store


@pytest.mark.parametrize("data, error, complaint", [
    *((data, ValueError, "needs 'role' and 'content'") for data in ({"role": "user"}, {"content": "x"})), (5, TypeError, "a message must be a dict"),
    ({"role": "user", "content": [5]}, TypeError, "not int"),
    ({"role": "user", "content": [{**IMAGE.to_dict(inline=True), "base64": "YQ==!"}]}, ValueError, "is not base64"),
    ({"role": "user", "content": ["a", "b"], "outside": [2]}, ValueError, "outside must be indexes of parts of the content"),
    ({"role": "user", "content": "x", "outside": ["0"]}, ValueError, "outside must be indexes of parts"),
    ({"role": "user", "content": "x", "answers": "0"}, TypeError, "answers must be the index of a block, got '0'"),
    ({"role": "assistant", "content": "x", "blocks": ["x"]}, TypeError, "blocks must be dicts with 'type', 'name'"),
    *(({"role": "user", "content": "x", one: 5}, TypeError, f"{one} must be a list") for one in ("outside", "reasoning", "blocks")),
    ({"role": "user", "content": [{"id": "media_1"}]}, TypeError, "not dict"),
])
def test_a_dict_of_another_shape_is_refused(data: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        Message.from_dict(data)


def test_what_a_message_carries_beside_its_content_can_be_changed_by_nobody() -> None:
    reasoning, blocks = [{"type": "t", "of": [1]}], [{"type": "command", "name": "look", "content": "{}"}]
    message = Message("assistant", "x", reasoning=reasoning, blocks=blocks)
    before = json.loads(json.dumps(message.to_dict()))
    shown: list[Any] = [reasoning, blocks, message.reasoning, message.blocks, *message.to_dict().values()]
    for one in shown:
        for item in one if isinstance(one, (list, tuple)) else ():
            item.get("of", []).append(2)
            item["type"] = "changed"
    assert message.to_dict() == before


# ----------------------------------------------------------------------------------------------------- the conversation

SYSTEM = Message("system", "Be brief.")
PICTURE = Media.from_url("https://example.org/a.png?token=hidden")


def conversation_of(*texts: str) -> list[Message]:
    return [Message("user", text) for text in texts]


def view_of(conversation: list[Message]) -> ConversationView:
    return ConversationView(SYSTEM, conversation)


@given(st.lists(st.text(), max_size=5), st.integers(-8, 8), st.integers(-8, 8), st.sampled_from([None, 1, 2, -1, -2]))
def test_a_view_is_indexed_like_a_list(texts: list[str], start: int, stop: int, step: int | None) -> None:
    conversation = conversation_of(*texts)
    view, dicts = view_of(conversation), MessageDicts(SYSTEM, conversation)
    conversation.append(Message("user", "later"))
    wanted = [SYSTEM, *[Message("user", text) for text in texts]]
    assert view[start:stop:step] == wanted[start:stop:step]
    assert dicts[start:stop:step] == [one.to_dict() for one in wanted[start:stop:step]]
    for at, message in enumerate(wanted):
        assert view[at] == view[at - len(wanted)] == message
        assert dicts[at] == message.to_dict()
    for beyond in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError):
            view[beyond]
    assert list(reversed(view)) == wanted[::-1]
    assert (SYSTEM in view, view.index(SYSTEM), view.count(SYSTEM)) == (True, 0, 1)


def test_a_view_compares_like_a_list() -> None:
    view = view_of(conversation_of("a"))
    same = view_of(conversation_of("a"))
    assert view == same == [SYSTEM, Message("user", "a")]
    assert view not in (view_of(conversation_of("b")), "a")
    dicts = MessageDicts(SYSTEM, conversation_of("a"))
    assert dicts == MessageDicts(SYSTEM, conversation_of("a")) == [SYSTEM.to_dict(), {"role": "user", "content": "a"}]
    assert dicts != 3
    assert "Be brief." in repr(view)
    assert "2" in repr(dicts)
    for one in (view, dicts):
        assert isinstance(one, Sequence)
        with pytest.raises(TypeError):
            hash(one)


def test_a_view_copies_no_messages() -> None:
    conversation = conversation_of(*"a" * 10_000)
    tracemalloc.start()
    try:
        kept = [MessageDicts(SYSTEM, conversation) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[0] < 100_000  # a copy of the list alone would be 80,000 a view
    finally:
        tracemalloc.stop()
    assert len(kept[0]) == 10_001


def test_message_dicts_hold_references_to_media() -> None:
    conversation = [Message("user", ["look: ", PICTURE])]
    [_, made] = MessageDicts(SYSTEM, conversation)
    assert made == {"role": "user", "content": ["look: ", PICTURE.to_dict()]}
    assert "hidden" not in repr(made)
    assert MessageDicts(SYSTEM, conversation).to_dict() == list(MessageDicts(SYSTEM, conversation))


@given(st.lists(st.one_of(st.text(), st.just(PICTURE)), max_size=6))
def test_the_conversation_counts_the_characters_of_its_messages(parts: list[str | Media]) -> None:
    run = ByHand(Agent(instructions="")).state
    assert run.characters() == 0
    run.messages.append(Message("user", parts))
    texts = sum(len(part) for part in parts if isinstance(part, str))
    # only vendors know how many tokens media take; their marks in the text may be counted
    assert texts <= run.characters() <= texts + len(parts) * len(Message("user", PICTURE).text)
