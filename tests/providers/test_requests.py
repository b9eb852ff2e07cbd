"""What each adapter sends: the whole JSON body, the address and the headers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from adapter_calls import ADAPTERS, asked, bodies_to, body_of, sent, user
from kernai import Agent, Media, Message, Model, Recorder, skill
from kernai_providers import GeminiProvider, MemoryReply, MemoryTransport, Request, resolve
from vendor_wires import WIRES
from wire_format import Turn

MESSAGES = dict.fromkeys(ADAPTERS, "messages") | {"openai-responses": "input", "gemini": "contents"}


def system(*content: Any) -> Message:
    return Message("system", content)


def assistant(*content: Any) -> Message:
    return Message("assistant", content)


# ------------------------------------------------------------------------------------------------- whole bodies

TAPE = (system("Be brief."), user("Hello"), assistant("Hi."), user("Weather", " today"), user("in Oslo?"))
OPTIONS = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7}

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Weather today"},
    {"role": "user", "content": "in Oslo?"},
]
BODIES: dict[str, dict[str, Any]] = {
    "openai": {
        "model": "model-1",
        "messages": CHAT,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 7,
    },
    "openai-responses": {
        "model": "model-1",
        "instructions": "Be brief.",
        "input": CHAT[1:],
        "stream": True,
        "store": False,
        "temperature": 0.5, "top_p": 0.9, "max_output_tokens": 7,
    },
    "anthropic": {
        "model": "model-1",
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hi."},
            {"role": "user", "content": "Weather today\n\nin Oslo?"},
        ],
        "stream": True,
        "temperature": 0.5, "top_p": 0.9, "max_tokens": 7,
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hello"}]},
            {"role": "model", "parts": [{"text": "Hi."}]},
            {"role": "user", "parts": [{"text": "Weather"}, {"text": " today\n\nin Oslo?"}]},
        ],
        "generationConfig": {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 7},
    },
    "ollama": {
        "model": "model-1", "messages": CHAT, "stream": True, "options": {"temperature": 0.5, "top_p": 0.9, "num_predict": 7},
    },
}  # fmt: skip


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_conversation_is_sent_in_the_vendors_format(vendor: str) -> None:
    assert sent(vendor, TAPE, OPTIONS) == BODIES[vendor]


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_options_that_are_not_set_are_not_sent(vendor: str) -> None:
    optional = ("temperature", "top_p", "max_tokens", "max_output_tokens", "generationConfig", "options")
    instructions = ("instructions", "system", "systemInstruction")
    bare = sent(vendor)
    assert bare.pop("max_tokens", None) == (4096 if vendor == "anthropic" else None)
    assert set(bare) == {name for name in BODIES[vendor] if name not in optional + instructions}


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_several_system_messages_become_one_text_and_empty_ones_none(vendor: str) -> None:
    bare = set(walk(sent(vendor)))
    for messages, text in (
        (("one", "two"), "one\n\ntwo"), (("one", ""), "one"), (("", "two"), "two"), (("",), None),
        ((" \n",), None),  # text of white space alone is refused by some
    ):  # fmt: skip
        said = set(walk(sent(vendor, [*map(system, messages), user("Hello")]))) - bare - {"system"}
        assert said == ({text} if text else set())


@pytest.mark.parametrize("id, separate", [("gemma-3-27b-it", False), ("models/gemma-3n-e4b-it", False), ("gemma-4-31b-it", True)])
def test_gemma_before_its_fourth_version_reads_the_system_message_before_the_users(id: str, separate: bool) -> None:
    body = body_of(asked(ADAPTERS["gemini"]("k"), Model(id), [system("Be brief."), user("Hello")]))
    assert ("systemInstruction" in body) is separate
    assert flat("gemini", body) == [("user", "Hello" if separate else "Be brief.\n\nHello")]


def walk(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [text for one in inner for text in walk(one)]


def flat(vendor: str, body: Any) -> list[tuple[str, str]]:
    """Roles and texts of a body, without the system message."""
    found = []
    for message in body[MESSAGES[vendor]]:
        if message["role"] != "system":
            content = message.get("parts", message.get("content"))
            said = content if isinstance(content, str) else "".join(part["text"] for part in content)
            found.append(("assistant" if message["role"] == "model" else message["role"], said))
    return found


ROLES = st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=8)


@pytest.mark.parametrize("vendor", ADAPTERS)
@given(ROLES)
def test_whatever_roles_a_history_begins_and_ends_with_all_of_it_is_sent_in_its_order(vendor: str, roles: list[Any]) -> None:
    tape = [Message(role, f"{place}.") for place, role in enumerate(roles)]
    turns = flat(vendor, sent(vendor, tape))
    # messages that become one text are separated by a blank line
    assert "".join(said.replace("\n\n", "") for _, said in turns) == "".join(message.text for message in tape)
    if vendor in ("anthropic", "gemini"):
        assert all(before[0] != after[0] for before, after in pairwise(turns))
    else:
        assert [role for role, _ in turns] == roles


@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize("blank", ["", " \n"])
def test_an_empty_response_is_sent_as_a_text_that_says_so(vendor: str, blank: str) -> None:
    assert flat(vendor, sent(vendor, [user("a"), assistant(blank), user("b")]))[1] == ("assistant", "(empty)")


def compatible(name: str, messages: Sequence[Message], **model: Any) -> Any:
    base_url: dict[str, Any] = {"base_url": "http://127.0.0.1:8000/v1"} if name == "local" else {}
    provider, _ = resolve(f"{name}/model-1", api_key="test-key", **base_url)
    return body_of(asked(provider, Model("model-1", **model), messages))


@pytest.mark.parametrize("name", ["mistral", "local"])
def test_compatible_vendors_that_want_the_roles_to_alternate_get_them_so(name: str) -> None:
    messages = compatible(name, TAPE)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[3]["content"] == "Weather today\n\nin Oslo?"
    assert compatible(name, [user("a"), user(""), user("b")])["messages"][0]["content"] == "a\n\n\n\nb"


def test_anthropic_gets_a_list_only_where_there_is_media_in_it_and_no_blank_line_then() -> None:
    # servers that speak its API often take no list
    image = Media.from_bytes(b"x", mime_type="image/png")
    tape = [user("a", "b"), user("c"), assistant("d"), user("e"), user(image), user("f")]
    first, second, third = sent("anthropic", tape, capabilities=("text", "vision"))["messages"]
    assert (first["content"], second["content"]) == ("ab\n\nc", "d")
    assert [part.get("text", part["type"]) for part in third["content"]] == ["e", "image", "f"]


@pytest.mark.parametrize("name", ["openai", "groq", "deepseek", "together", "local"])
def test_compatible_servers_get_a_list_only_where_there_is_media_in_it(name: str) -> None:
    # many of them refuse a list of texts
    image = Media.from_bytes(b"x", mime_type="image/png")
    assert compatible(name, [user("a", "b")])["messages"][0]["content"] == "ab"
    assert compatible(name, [user("a", image)])["messages"][0]["content"] == "a[image unavailable: image/png]"
    seen = compatible(name, [user("a", image)], capabilities=("text", "vision"))["messages"][0]["content"]
    assert [part["type"] for part in seen] == ["text", "image_url"]


def test_mistral_is_not_sent_a_field_that_it_refuses() -> None:
    assert "stream_options" not in compatible("mistral", TAPE)
    assert compatible("groq", TAPE)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("content", [[""], [], ["", ""], [" \n"]])
@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("vendor", ADAPTERS)
def test_an_empty_message_keeps_its_place_and_no_vendor_gets_an_empty_list(vendor: str, role: Any, content: list[str]) -> None:
    tape = [user("Hello"), Message("assistant", "Hi."), Message(role, content), Message("assistant", "So?"), user("Bye")]
    body = sent(vendor, tape)
    assert all(message.get("parts", message.get("content")) != [] for message in body[MESSAGES[vendor]])
    turns = [role for role, _ in flat(vendor, body)]
    merged = vendor in ("anthropic", "gemini")
    as_given = ["user", "assistant", role, "assistant", "user"]
    assert turns == (["user", "assistant", "user"] if merged and role == "assistant" else as_given)
    for message in body[MESSAGES[vendor]] if merged else ():
        parts: Any = message.get("parts", message.get("content"))
        said = [parts] if isinstance(parts, str) else [part["text"] for part in parts]
        # these two refuse it: Anthropic also where it is white space
        assert all(one.strip() if vendor == "anthropic" else one for one in said), said


# -------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize("text", ["\x00", "\x1b[0m", 'quote " and \\', "é\u2028\u2029", "😀", "\x7f\x85", "</s>", "\ufeff"])
def test_any_text_arrives_unchanged(vendor: str, text: str) -> None:
    body = sent(vendor, [system(f"s{text}"), user(f"a{text}b")])
    assert flat(vendor, body) == [("user", f"a{text}b")]
    assert f"s{text}" in walk(body)


@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize(
    "text,arrives", [("a\ud83d", "a�"), ("\ude00b", "�b"), ("\ud83d\ude00", "😀"), ("\ude00\ud83d", "��"), ("\ud83d😀", "�😀")]
)
def test_a_lone_surrogate_becomes_the_replacement_character(vendor: str, text: str, arrives: str) -> None:
    # `"\ud83d"` alone is no valid Unicode; parsers such as serde's refuse the whole request for it
    body = sent(vendor, [system(text), user(text)], {"extra": {"own": text}})
    assert set(walk(body)) & {text, arrives} == {arrives}
    assert flat(vendor, body) == [("user", arrives)]


# --------------------------------------------------------------------------------------- addresses and headers


@pytest.mark.parametrize("vendor,headers", [
    ("openai", {"Authorization": "Bearer test-key"}), ("openai-responses", {"Authorization": "Bearer test-key"}),
    ("anthropic", {"x-api-key": "test-key", "anthropic-version": "2023-06-01"}), ("gemini", {"x-goog-api-key": "test-key"}),
    ("ollama", {"Authorization": "Bearer test-key"}),
])  # fmt: skip
def test_a_request_has_the_key_where_the_vendor_reads_it_and_no_other_headers(vendor: str, headers: dict[str, str]) -> None:
    request = asked(ADAPTERS[vendor](api_key="test-key"))
    ours = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    assert (request.method, dict(request.headers)) == ("POST", ours | headers)


@pytest.mark.parametrize("written", [str.lower, str.upper, str.title])
@pytest.mark.parametrize("vendor", ADAPTERS)
def test_the_callers_headers_replace_ours_whatever_their_case(vendor: str, written: Any) -> None:
    (key_header,) = (name.lower() for name in ADAPTERS[vendor]("k").auth("k"))
    own = {written(key_header): "mine", written("content-type"): "application/json; charset=utf-8", "X-Team": " blue "}
    request = asked(ADAPTERS[vendor]("test-key", headers=own), Model("m"))
    lowered: Mapping[str, str] = {name.lower(): value for name, value in request.headers.items()}
    assert len(lowered) == len(request.headers)
    assert lowered[key_header] == "mine"
    assert lowered["content-type"] == "application/json; charset=utf-8"
    assert lowered["x-team"] == "blue"
    assert "test-key" not in str(request.headers)


@pytest.mark.parametrize("id,target", [
    ("gemini-2.5-pro", "/v1beta/models/gemini-2.5-pro"),
    ("models/gemini-2.5-pro", "/v1beta/models/gemini-2.5-pro"),
    ("../я?y#c%2e\r\nX-Evil: 1", "/v1beta/models/..%2F%D1%8F%3Fy%23c%252e%0D%0AX-Evil%3A%201"),
])
def test_no_model_name_changes_geminis_path(id: str, target: str) -> None:
    request = asked(GeminiProvider("k"), Model(id))
    assert request.url == f"https://generativelanguage.googleapis.com{target}:streamGenerateContent?alt=sse"


@pytest.mark.parametrize("vendor", [vendor for vendor in ADAPTERS if vendor != "gemini"])
def test_a_model_name_is_sent_unchanged_in_the_body(vendor: str) -> None:
    assert sent(vendor, id="accounts/a/../m?x=1 ü")["model"] == "accounts/a/../m?x=1 ü"


# Every request of a scope extends the one before exactly, for every adapter: so that vendors' caches hit.


PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
#: what a model may say on its way to the answer
STEPS = {
    "one call": '<block type="command" name="echo">{"text": "é"}</block>',
    "parallel calls": '<block type="command" name="echo">{"text": "a"}</block><block type="command" name="draw">{"n": 1}</block>',
    "media": '<block type="command" name="draw">{"n": 2}</block>',
    "a failing call": '<block type="command" name="echo">{"tex": 1}</block>',
    "an unknown skill": '<block type="command" name="nothing">x</block>',
    "an open block": '<block type="command" name="echo">{"text": "a"}',
    "a note": "<plan>thinking</plan>",
    "a listing": '<block type="command" name="/skills"></block>',
    "white space": " \n ",
    "a workflow": '<plan>{"goal": "g", "tasks": [{"id": "a", "input": "A?"}, {"id": "b", "input": "B?", "depends_on": ["a"]}]}</plan>',
}  # fmt: skip
#: where a request holds the conversation, and what comes before it
PLACES = {
    "openai": ("messages",), "openai-responses": ("input", "instructions"), "anthropic": ("messages", "system"),
    "gemini": ("contents", "systemInstruction"), "ollama": ("messages",),
}  # fmt: skip


@skill(register=False)
def echo(text: str) -> str:
    """Gives it back."""
    return text


@skill(register=False)
def draw(n: int) -> list[str | Media]:
    """Draws."""
    return [f"Picture {n}:", PICTURE]


def bodies_of(vendor: str, steps: list[str], history: list[Message], parallel: bool) -> dict[str, list[Any]]:
    wire, root_turns = WIRES[vendor], iter([*steps, "<final>done</final>"])
    kind = {"content-type": wire.media_type}

    def answer(request: Request) -> MemoryReply:
        text = next(root_turns) if b"Go." in request.body else "<final>of a task</final>"
        return MemoryReply(200, kind, wire.whole(Turn((text,), reasoning=("hm",))))

    provider = ADAPTERS[vendor]("k", transport=MemoryTransport(answer))
    recorder = Recorder()
    agent = Agent(
        instructions="Be brief.", provider=provider, model=Model("m", ("text", "vision")), skills=[echo, draw],
        parallel_skills=parallel, on_prose="correct", max_steps=20,
    )  # fmt: skip
    result = kernai.execute(agent, ["Go.", PICTURE], history=history, recorder=recorder)
    assert result.text == "done"
    scopes: dict[str, list[Any]] = {}
    for event, body in zip(recorder.for_event("messages_sent"), bodies_to(provider), strict=True):
        scopes.setdefault(event.scope, []).append(body)
    return scopes


@pytest.mark.slow
@pytest.mark.parametrize("vendor", PLACES)
@given(steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=6), talked=st.booleans(), parallel=st.booleans())
def test_every_request_of_a_scope_extends_the_one_before_exactly(
    vendor: str, steps: list[str], talked: bool, parallel: bool
) -> None:
    history = [Message("user", "Before."), Message("assistant", "Yes?")] if talked else []
    where, *before = PLACES[vendor]
    scopes = bodies_of(vendor, [STEPS[step] for step in steps], history, parallel)
    assert len(scopes[""]) == len(steps) + 1
    for bodies in scopes.values():
        for first, second in itertools.pairwise(bodies):
            assert second[where][: len(first[where])] == first[where]
            assert len(second[where]) > len(first[where])
            rest = {name: value for name, value in first.items() if name not in (where, "include")}
            assert rest == {name: value for name, value in second.items() if name not in (where, "include")}
            assert json.dumps(second).startswith(json.dumps(first).split(f'"{where}"')[0])
            assert all(name in first for name in before)
