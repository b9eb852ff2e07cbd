"""The conversation, and views on it that later messages do not change."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Media, Message
from kernai.values.message import Conversation, ConversationView, MessageDicts

SYSTEM = Message("system", "Be brief.")
PICTURE = Media.from_url("https://example.org/a.png?token=hidden")


def conversation_of(*texts: str) -> Conversation:
    return Conversation(Message("user", text) for text in texts)


def view_of(conversation: Conversation) -> ConversationView:
    return ConversationView(SYSTEM, conversation.messages)


@given(st.lists(st.text(), max_size=5), st.integers(-8, 8), st.integers(-8, 8), st.sampled_from([None, 1, 2, -1, -2]))
def test_a_view_is_indexed_like_a_list(texts: list[str], start: int, stop: int, step: int | None) -> None:
    conversation = conversation_of(*texts)
    view = view_of(conversation)
    conversation.append(Message("user", "later"))
    wanted = [SYSTEM, *[Message("user", text) for text in texts]]
    assert view[start:stop:step] == wanted[start:stop:step]
    assert MessageDicts(view)[start:stop:step] == [one.to_dict() for one in wanted[start:stop:step]]
    for at, message in enumerate(wanted):
        assert view[at] == view[at - len(wanted)] == message
        assert MessageDicts(view)[at] == message.to_dict()
    for beyond in (len(wanted), -len(wanted) - 1):
        with pytest.raises(IndexError):
            view[beyond]
    assert list(reversed(view)) == wanted[::-1]
    assert (SYSTEM in view, view.index(SYSTEM), view.count(SYSTEM)) == (True, 0, 1)


def test_a_view_compares_like_a_list() -> None:
    view = view_of(conversation_of("a"))
    same = view_of(conversation_of("a"))
    assert view == same
    assert view == [SYSTEM, Message("user", "a")]
    assert view != view_of(conversation_of("b"))
    assert view != "a"
    assert MessageDicts(view) == MessageDicts(same)
    assert MessageDicts(view) == [SYSTEM.to_dict(), {"role": "user", "content": "a"}]
    assert MessageDicts(view) != 3
    for one in (view, MessageDicts(view)):
        assert isinstance(one, Sequence)
        with pytest.raises(TypeError):
            hash(one)


def test_a_view_copies_no_messages() -> None:
    conversation = conversation_of(*"a" * 10_000)
    tracemalloc.start()
    try:
        kept = [MessageDicts(view_of(conversation)) for _ in range(100)]
        assert tracemalloc.get_traced_memory()[0] < 100_000  # a copy of the list alone would be 80,000 a view
    finally:
        tracemalloc.stop()
    assert len(kept[0]) == 10_001


def test_message_dicts_hold_references_to_media() -> None:
    conversation = Conversation([Message("user", ["look: ", PICTURE])])
    [_, made] = MessageDicts(view_of(conversation))
    assert made == {"role": "user", "content": ["look: ", PICTURE.to_dict()]}
    assert "hidden" not in repr(made)
    assert MessageDicts(view_of(conversation)).to_dict() == list(MessageDicts(view_of(conversation)))


def test_views_show_themselves() -> None:
    view = view_of(conversation_of("a"))
    assert "Be brief." in repr(view)
    assert "2" in repr(MessageDicts(view))


@given(st.lists(st.one_of(st.text(), st.just(PICTURE)), max_size=6))
def test_the_conversation_counts_the_characters_of_its_messages(parts: list[str | Media]) -> None:
    conversation = Conversation()
    conversation.append(Message("user", parts))
    texts = sum(len(part) for part in parts if isinstance(part, str))
    # what media cost is known to vendors alone; its mark in the text may count
    assert texts <= conversation.characters <= texts + len(parts) * len(Message("user", PICTURE).text)
