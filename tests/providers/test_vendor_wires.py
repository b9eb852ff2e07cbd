"""The wire formats of the tests say what the vendors say: every case keeps its promise, for every vendor."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vendor_wires import WIRES, Answering, GeminiWire, Turn, Wire
from wire_format import data_of
from wire_server import Reply, WireRequest, WireServer

KEY = "k-123"
OURS = {"stop", "length", "content_filter", "tool", "refusal", "context", "other"}
PIECES = ["Grüße, ", "<final>", "日本\u2028", '"\n\n', " end"]
# None of these can be part of a text, which escapes quotation marks and line ends.
TERMINAL = {
    "openai": b"data: [DONE]\n\n", "openai-responses": b"event: response.completed\n",
    "anthropic": b"event: message_stop\n", "gemini": b'"finishReason":', "ollama": b'"done":true',
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "openai": {
        "model": "gpt-4o",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "data:"}}]},
            {"role": "assistant", "content": "ho"},
        ],
    },
    "openai-responses": {
        "model": "gpt-5-pro",
        "stream": True,
        "store": False,
        "instructions": "be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": "data:"}]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"role": "assistant", "content": "ho"},
        ],
    },
    "anthropic": {
        "model": "claude-sonnet-4-5",
        "stream": True,
        "max_tokens": 4096,
        "system": "be brief",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "ho"}]},
        ],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png", "data": ""}}]},
            {"role": "model", "parts": [{"text": "ho"}]},
        ],
    },
    "ollama": {
        "model": "llama3.2",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hi", "images": [""]},
            {"role": "assistant", "content": "ho"},
        ],
    },
}

every_vendor = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)


def text_of(wire: Wire, events: list[bytes]) -> str:
    return "".join(map(wire.text_in, events))


def terminal_events(wire: Wire, events: list[bytes]) -> int:
    return sum(TERMINAL[wire.name] in event for event in events)


@contextlib.contextmanager
def asking(script: Any) -> Iterator[Any]:
    """A function that sends a body and gives the status, the headers and the body of the answer."""

    def ask(wire: Wire, body: Any, key: str = KEY) -> tuple[int, Any, bytes]:
        name, value = wire.key_header(key)
        headers = {"Content-Type": "application/json", name: value, "anthropic-version": "2023-06-01"}
        connection.request("POST", wire.path(wire.model), json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read()

    with WireServer(script) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
        with contextlib.closing(connection):
            ask.server = server  # type: ignore[attr-defined]
            yield ask


@pytest.mark.slow
@every_vendor
@given(pieces=st.lists(st.text(min_size=1)), reasoning=st.lists(st.text(min_size=1), max_size=2))
def test_every_complete_stream_carries_its_text_and_ends_once(wire: Wire, pieces: list[str], reasoning: list[str]) -> None:
    streams = [wire.stream(pieces, reasoning=reasoning), wire.stream(pieces, usage=None), wire.unknown_events(pieces), wire.null_choices(pieces), wire.invalid_json(pieces)]
    streams += [wire.text_at_end(pieces)] if pieces else []
    for events in streams:
        assert text_of(wire, events) == "".join(pieces)
        assert terminal_events(wire, events) == 1


@every_vendor
def test_each_piece_of_text_is_an_event_of_its_own(wire: Wire) -> None:
    assert [text for text in map(wire.text_in, wire.stream(PIECES, reasoning=["hm"])) if text] == PIECES


@every_vendor
def test_events_end_as_their_framing_says_and_hold_no_line_end_of_their_own(wire: Wire) -> None:
    end = {"gemini": b"\r\n\r\n", "ollama": b"\n"}.get(wire.name, b"\n\n")
    for event in wire.stream(PIECES, reasoning=["a\nb"]):
        assert event.endswith(end)
        assert all(line.startswith((b"data: ", b"event: ", b"{")) for line in event.removesuffix(end).split(b"\n"))


@every_vendor
def test_a_stream_without_end_is_a_whole_one_without_its_ending(wire: Wire) -> None:
    cut = wire.without_end(PIECES)
    assert terminal_events(wire, cut) == 0
    assert wire.stream(PIECES)[: len(cut)] == cut


@every_vendor
def test_every_failure_comes_after_the_text_and_without_a_terminal_event(wire: Wire) -> None:
    for variant, failure in wire.errors().items():
        events = wire.error_in_stream(PIECES, variant)
        assert text_of(wire, events) == "".join(PIECES)
        assert events[: -len(failure)] == wire.without_end(PIECES)
        assert b"error" in b"".join(failure)


@every_vendor
def test_broken_events_are_no_json_and_unknown_ones_are(wire: Wire) -> None:
    assert data_of(wire.broken_event()) == {}
    assert any(data_of(event) for event in wire.unknown())
    assert wire.broken_event() in wire.invalid_json(PIECES)
    assert set(wire.unknown()) <= set(wire.unknown_events(["a"]))
    assert set(wire.hollow()) <= set(wire.null_choices(["a"]))


@every_vendor
def test_finish_reasons_can_be_asked_for_in_our_words_and_in_the_vendors(wire: Wire) -> None:
    assert set(wire.finish_reasons.values()) <= OURS
    assert wire.finish_reasons[wire.own_finish("stop")] == "stop"
    assert wire.finish_reasons[wire.own_finish("length")] == "length"
    for finish in [*filter(None, wire.finish_reasons), "brand_new"]:
        assert json.dumps(finish).encode() in b"".join(wire.stream(["a"], finish=finish)).replace(b'": "', b'":"')


@every_vendor
def test_usage_adds_up_as_the_facts_say(wire: Wire) -> None:
    for reasoning in ([], ["hm"]):
        seen: dict[str, int] = {}
        for event in map(data_of, wire.stream(PIECES, (71, 52), reasoning=reasoning)):
            usage = event.get("usage") or (event.get("response") or {}).get("usage") or event.get("usageMetadata") or event.get("message", {}).get("usage") or event
            seen |= {name: count for name, count in usage.items() if isinstance(count, int)}
        prompt, completion = {
            "openai": (["prompt_tokens"], ["completion_tokens"]),
            "openai-responses": (["input_tokens"], ["output_tokens"]),
            "anthropic": (["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"], ["output_tokens"]),
            "gemini": (["promptTokenCount"], ["candidatesTokenCount", "thoughtsTokenCount"]),
            "ollama": (["prompt_eval_count"], ["eval_count"]),
        }[wire.name]
        assert (sum(seen.get(name, 0) for name in prompt), sum(seen.get(name, 0) for name in completion)) == (71, 52)


@every_vendor
def test_without_usage_no_count_of_tokens_is_sent(wire: Wire) -> None:
    stream = b"".join(wire.stream(PIECES, usage=None, reasoning=["hm"]))
    assert not [word for word in (b"_tokens", b"TokenCount", b"eval_count") if word in stream]


def test_a_refusal_says_so_and_only_one_has_no_candidate() -> None:
    words = {vendor: {word for _, word in wire.refusals().values()} for vendor, wire in WIRES.items()}
    assert words.pop("openai-responses") == {"content_filter", "refusal"}
    assert words == {"openai": {"content_filter"}, "anthropic": {"refusal"}, "gemini": {"content_filter", None}, "ollama": set()}
    blocked, _ = WIRES["gemini"].refusals()["blockReason without a candidate"]
    assert b"candidates" not in b"".join(blocked)
    assert data_of(blocked[0])["promptFeedback"]["blockReason"]


def test_only_gemini_gives_several_candidates_and_the_first_counts() -> None:
    wire = GeminiWire()
    for apart in (False, True):
        assert text_of(wire, wire.candidates("yes", "no", apart=apart)) == "yes"


@every_vendor
def test_an_error_has_the_vendors_shape_its_status_and_message(wire: Wire) -> None:
    reply = wire.error(401, "who are you", headers={"x": "y"})
    error = json.loads(reply.content)["error"]
    assert (reply.status, dict(reply.headers)["x"]) == (401, "y")
    assert (error if wire.name == "ollama" else error["message"]) == "who are you"


def waits(reply: Reply) -> list[float]:
    """The seconds of every hint there is."""
    headers = dict(reply.headers)
    found = [float(headers["retry-after-ms"]) / 1000] if "retry-after-ms" in headers else []
    after = headers.get("retry-after", "")
    if after:
        found.append(float(after) if after.isdigit() else parsedate_to_datetime(after).timestamp())
    body = json.loads(reply.content)
    error = (body[0] if isinstance(body, list) else body)["error"]
    details = error.get("details", []) if isinstance(error, dict) else []
    return found + [float(detail["retryDelay"].removesuffix("s")) for detail in details if "retryDelay" in detail]


@every_vendor
def test_each_retry_hint_says_what_its_kind_promises(wire: Wire) -> None:
    for hint, kind in wire.hints.items():
        reply = wire.rate_limit(hint, 37)
        assert reply.status in (429, 402)
        if kind == "timed":
            seconds = waits(reply)
            assert seconds == [37] or ("date" in hint and seconds[0] > 1_700_000_000)
        elif kind == "untimed":
            assert waits(reply) == []
    with pytest.raises(ValueError, match="no hint"):
        wire.rate_limit("by pigeon")


@every_vendor
def test_what_the_client_sent_comes_back_as_texts(wire: Wire) -> None:
    with asking(wire.answer("ok")) as ask:
        ask(wire, BODIES[wire.name])
        request = ask.server.requests[0]
    assert wire.text_of(request) == [("system", "be brief"), ("user", "hi"), ("assistant", "ho")]
    assert wire.problems(request, KEY) == []
    assert wire.problems(request, "another") == [f"no valid {wire.key_header(KEY)[0]}"]


@pytest.mark.parametrize(
    "vendor, change, complaint",
    [
        ("openai", {"stream": False}, "stream"),
        ("openai", {"stream_options": None}, "usage"),
        ("openai", {"messages": [{"role": "robot", "content": ""}]}, "robot"),
        ("openai-responses", {"store": True}, "store"),
        ("openai-responses", {"input": [{"role": "robot", "content": ""}]}, "robot"),
        ("anthropic", {"max_tokens": None}, "max_tokens"),
        ("anthropic", {"messages": [{"role": "system", "content": ""}]}, "unknown roles"),
        ("anthropic", {"messages": [{"role": "user", "content": ""}] * 2}, "in a row"),
        ("gemini", {"contents": [{"role": "assistant", "parts": []}]}, "unknown roles"),
        ("gemini", {"contents": [{"role": "model", "parts": []}]}, "not the user's"),
        ("ollama", {"stream": False}, "stream"),
        ("ollama", {"messages": [{"role": "user", "content": [{"text": ""}]}]}, "not a string"),
    ],
)
def test_the_vendor_complains_about_a_request_it_would_not_take(vendor: str, change: dict[str, Any], complaint: str) -> None:
    wire = WIRES[vendor]
    with asking(Answering(wire, ["never"])) as ask:
        status, _, body = ask(wire, BODIES[vendor] | change)
    assert (status, complaint in body.decode()) == (400, True)


@every_vendor
def test_answering_gives_one_turn_after_the_other_with_its_usage(wire: Wire) -> None:
    answering = Answering(wire, ["the first answer", "", "the third"], key=KEY, usages=[(1, 2), (30, 40), (500, 600)])
    assert answering.usage == (531, 642)
    with asking(answering) as ask:
        for text, usage in (("the first answer", (1, 2)), ("", (30, 40)), ("the third", (500, 600))):
            status, headers, body = ask(wire, BODIES[wire.name])
            pieces = [text[at : at + 7] for at in range(0, len(text), 7)]
            number = answering.usages.index(usage)
            assert (status, headers["Content-Type"]) == (200, wire.media_type)
            assert body == b"".join(wire.whole(Turn(pieces, usage, request_id=f"req_{number}")))
            assert wire.request_id_header is None or headers[wire.request_id_header] == f"req_{number}"
        assert ask(wire, BODIES[wire.name])[0] == 400
        assert ask(wire, BODIES[wire.name], key="wrong")[0] == 400


@pytest.mark.parametrize(
    "vendor, path, header",
    [
        ("openai", "/v1/chat/completions", ("Authorization", "Bearer k")),
        ("openai-responses", "/v1/responses", ("Authorization", "Bearer k")),
        ("anthropic", "/v1/messages", ("x-api-key", "k")),
        ("gemini", "/v1beta/models/m:streamGenerateContent?alt=sse", ("x-goog-api-key", "k")),
        ("ollama", "/api/chat", ("Authorization", "Bearer k")),
    ],
)
def test_path_and_key_header_are_the_vendors(vendor: str, path: str, header: tuple[str, str]) -> None:
    wire = WIRES[vendor]
    assert (wire.path("m"), wire.key_header("k")) == (path, header)
    assert path.startswith(wire.base_url(""))


def test_a_request_to_the_wrong_place_is_a_problem() -> None:
    wire = WIRES["gemini"]
    with asking(lambda request: wire.error(404)) as ask:
        ask(wire, BODIES["gemini"])
        request: WireRequest = ask.server.requests[0]
    assert "instead of POST /v1beta/models/other" in wire.problems(request, model="other")[0]
