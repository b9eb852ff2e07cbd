"""The readers, fed by hand: any cut of the bytes means the same, and nothing a server sends is more than a ProviderError."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_calls import ADAPTERS
from kernai import LlmResponse, Message, ProviderError, Tools
from kernai_providers import OpenAIProvider, openai
from kernai_providers.native import Toolbox
from kernai_providers.reader import Reader
from vendor_wires import WIRES, anthropic, anthropic_text, gemini
from wire_format import Called, Turn, data_of, sse
from wire_openai import OpenAIWire, responses

Outcome = tuple[str, LlmResponse]

#: a whole turn a vendor, as the objects of its stream
TURN = Turn(("Größe ", "😀"), (7, 5), reasoning=("hm",))
STREAMS: dict[str, list[dict[str, Any]]] = {
    vendor: [data for data in map(data_of, one.whole(TURN)) if data] for vendor, one in WIRES.items()
}


def wire(vendor: str, objects: Iterable[Any], newline: str = "\n") -> bytes:
    """The bytes of a stream; UTF-8 characters stay as they are, so that they can be cut."""
    lines = [json.dumps(one, ensure_ascii=False) for one in objects]
    if vendor == "ollama":
        return "".join(line + newline for line in lines).encode()
    names = [f"event: {one['type']}{newline}" if vendor in ("anthropic", "openai-responses") and "type" in one else "" for one in objects]
    events = [f"{name}data: {line}{newline}{newline}" for name, line in zip(names, lines, strict=True)]
    return "".join([*events, f"data: [DONE]{newline}{newline}" if vendor == "openai" else ""]).encode()


def new_reader(vendor: str, key: str = "k") -> Reader:
    return ADAPTERS[vendor](key).reader()


def read(reader: Reader, chunks: Iterable[bytes], content_type: str = "text/event-stream") -> Outcome:
    """All pieces as one text, and the response; raises as a call would."""
    reader.begin({"content-type": content_type})
    pieces = [piece for chunk in chunks for piece in reader.feed(chunk)]
    pieces += reader.feed(b"") if not reader.complete else []
    reader.check_complete()
    return "".join(pieces), reader.response(1)


def whole(vendor: str, data: bytes) -> Outcome:
    return read(new_reader(vendor), [data])


def attempt(vendor: str, data: bytes) -> Outcome | ProviderError:
    """The outcome, or the only exception there may be."""
    try:
        return whole(vendor, data)
    except ProviderError as error:
        return error


def bytes_of(text: str | bytes) -> list[bytes]:
    data = text if isinstance(text, bytes) else text.encode()
    return [data[at : at + 1] for at in range(len(data))]


# -------------------------------------------------------------------------------------------------------- cuts


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_whole_stream_is_read_exactly(vendor: str) -> None:
    said, response = whole(vendor, wire(vendor, STREAMS[vendor]))
    assert said == response.content == "Größe 😀"
    assert (response.prompt_tokens, response.completion_tokens, response.total_tokens) == (7, 5, 12)
    assert (response.finish_reason, response.latency_ms) == ("stop", 1)
    assert response.metadata["reasoning"] == "hm"
    assert response.cached_tokens == (None if vendor in ("gemini", "ollama") else 2)
    kept = {"model", "reasoning", *(["response_id"] if vendor != "ollama" else [])}
    kept |= {"reasoning_tokens"} if vendor in ("openai", "openai-responses", "gemini") else set()
    assert set(response.metadata) - {"reasoning_items"} == kept


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_byte_that_is_no_utf_8_becomes_the_replacement_character_and_ends_no_line(vendor: str) -> None:
    data = wire(vendor, STREAMS[vendor]).replace("😀".encode(), b"\xff\xc2\x85\xe2\x80\xa8")
    assert whole(vendor, data)[0] == "Größe \ufffd\x85\u2028"


@pytest.mark.parametrize("vendor", [vendor for vendor in ADAPTERS if vendor != "gemini"])  # whose end is the body's
def test_data_after_the_end_of_the_stream_is_ignored(vendor: str) -> None:
    data = wire(vendor, STREAMS[vendor])
    assert whole(vendor, data + b"data: nonsense\n\nnonsense\n") == whole(vendor, data)
    assert whole(vendor, data + data) == whole(vendor, data)


# ------------------------------------------------------------------------------------------------- the last word


@pytest.mark.parametrize(
    "end",
    ["data: [DONE]\n\n", "data:[DONE]\n\n", "data: [DONE]\r\n\r\n", "data: [DONE]\r\r", "data: [DONE]\n", "data: [DONE]", "data:  [DONE]\n\n", "data: [DONE] \n\n",
     "event: done\ndata: [DONE]\n\n", ": bye\n\ndata: [DONE]\n\n", "data: \n\ndata: [DONE]\n\n", "data\n\ndata: [DONE]\n\n", "event: ping\ndata:\n\ndata: [DONE]\n\n", "id: 7\ndata: [DONE]\n\n"],
)  # fmt: skip
def test_done_is_known_however_it_is_written(end: str) -> None:
    answer = wire("openai", STREAMS["openai"]).removesuffix(b"data: [DONE]\n\n")
    expected = whole("openai", wire("openai", STREAMS["openai"]))
    assert whole("openai", answer + end.encode()) == expected
    assert read(new_reader("openai"), [answer, *bytes_of(end)]) == expected


@pytest.mark.parametrize("end", ["", "data: [DON\n\n", "data: DONE\n\n", "[DONE]\n\n", ": [DONE]\n\n", 'data: "[DONE]"\n\n', "event: [DONE]\n\n"])
def test_without_done_an_answer_is_truncated_unless_the_server_never_sends_it(end: str) -> None:
    answer, half = (wire("openai", one).removesuffix(b"data: [DONE]\n\n") for one in (STREAMS["openai"], STREAMS["openai"][:4]))
    with pytest.raises(ProviderError) as caught:
        whole("openai", answer + end.encode())
    assert (caught.value.code in ("cut", "invalid_json"), caught.value.retryable) == (True, True)
    if "data" not in end:
        assert "done_marker=False" in str(caught.value)
        lenient = OpenAIProvider("k", done_marker=False).reader
        assert read(lenient(), [answer + end.encode()]) == whole("openai", wire("openai", STREAMS["openai"]))
        for reader in (lenient(), new_reader("openai")):  # which has to say why it stopped all the same
            with pytest.raises(ProviderError, match=r"was cut off$"):
                read(reader, [half + end.encode()])


@pytest.mark.parametrize("choices", [None, [], "absent", [None], "text", {}, [[]], 0, [{}], [{"delta": {"content": None}}]])
def test_a_stream_without_any_answer_or_finish_reason_is_an_error(choices: Any) -> None:
    chunk = {"id": "r"} if choices == "absent" else {"id": "r", "choices": choices}
    with pytest.raises(ProviderError) as caught:
        whole("openai", wire("openai", [chunk]))
    assert (caught.value.code, caught.value.retryable) == ("no_answer", True)
    assert str(caught.value).endswith(f"; it sent {json.dumps(chunk)}")  # which may be an error in an unknown form


@pytest.mark.parametrize("first, shown", [({"detail": "busy"}, r'; it sent {"detail":\s?"busy"}'), ({"model": "m", "choices": []}, "")])
def test_a_stream_that_is_cut_off_shows_an_object_that_is_no_part_of_an_answer(first: Any, shown: str) -> None:
    with pytest.raises(ProviderError, match=f"was cut off{shown}$"):
        whole("openai", sse(first))


@pytest.mark.parametrize("more", [{"error": None}, {"unknown": {"error": "x"}}, {"type": None}, {"x": [1, None]}])
@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_field_that_says_nothing_or_is_not_known_changes_nothing(vendor: str, more: dict[str, Any]) -> None:
    # some gateways write all of their fields, with null where there is nothing
    written = [more | one for one in STREAMS[vendor]]
    assert whole(vendor, wire(vendor, written)) == whole(vendor, wire(vendor, STREAMS[vendor]))


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_unknown_and_empty_events_are_ignored_anywhere(vendor: str) -> None:
    events, expected = WIRES[vendor].whole(TURN), whole(vendor, wire(vendor, STREAMS[vendor]))
    other = {"index": 1, "delta": {"content": "another"}, "content": {"parts": [{"text": "another"}]}}
    another = [sse({"choices": [other], "candidates": [other]})] if vendor in ("openai", "gemini") else []
    for extra in (WIRES[vendor].unknown(), WIRES[vendor].hollow(), another):
        for at in range(len(events)):
            assert whole(vendor, b"".join([*events[:at], *extra, *events[at:]])) == expected


# -------------------------------------------------------------------------------------------------------- errors

ERRORS: list[tuple[str, str]] = [
    ("openai", 'event: error\ndata: {"message": "boo"}\n\n'),
    ("openai", 'event: error\ndata: {"error": {"message": "boo"}}\n\n'),
    ("openai", 'data: {"error": {"message": "boo"}}\n\n'),
    ("openai", 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "x_groq": {"id": "r", "error": "boo"}}\n\n'),
    ("openai", "event: error\ndata: {}\n\n"),
    ("openai", 'error: {"code": 400, "message": "boo", "type": "invalid_request_error"}\n\n'),
    ("openai", 'data: {"object": "error", "message": "boo", "type": "BadRequestError", "param": null, "code": 400}\n\n'),
    ("openai", 'event: error\ndata: {"error": {}}\n\n'),
    ("openai", "event: error\ndata:\n\n"),
    ("openai", "event: error\ndata: boo\n\n"),
    *(("openai", f'data: {{"choices": [{{"index": 0, "delta": {{}}, "finish_reason": "{reason}"}}]}}\n\n') for reason in openai.BROKEN_OFF),
    ("openai", 'data: {"choices": [{"index": 0, "delta": {"content": ""}, "error": {"code": 502, "message": "boo"}}]}\n\n'),
    ("openai-responses", 'event: error\ndata: {"type": "error", "code": "server_error", "message": "boo", "param": null}\n\n'),
    ("openai-responses", 'data: {"type": "error", "message": "boo"}\n\n'),
    ("openai-responses", 'data: {"type": "error", "error": {"type": "server_error", "message": "boo"}}\n\n'),
    ("openai-responses", 'data: {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "boo"}}}\n\n'),
    ("openai-responses", 'data: {"type": "response.failed", "response": {}}\n\n'),
    ("anthropic", 'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "boo"}}\n\n'),
    ("anthropic", 'data: {"type": "error", "error": {"message": "boo"}}\n\n'),
    ("anthropic", 'data: {"type": "error"}\n\n'),
    ("gemini", 'data: {"error": {"code": 503, "message": "boo", "status": "UNAVAILABLE"}}\n\n'),
    ("gemini", 'data: [{"error": {"code": 503, "message": "boo"}}]\n\n'),
    *((vendor, 'data: {"type": "error", "message": "boo"}\n\n') for vendor in ("openai", "gemini")),
    ("ollama", '{"error": "boo"}\n'),
    ("ollama", '{"error": {"message": "boo"}, "done": true}\n'),
]


@pytest.mark.parametrize("vendor,error", ERRORS)
def test_an_error_in_the_stream_ends_the_turn_whatever_follows(vendor: str, error: str) -> None:
    data = wire(vendor, STREAMS[vendor])
    half = data[: len(data) // 2].rpartition(b"\n" if vendor == "ollama" else b"\n\n")
    for before, after in (((b"", data)), (half[0] + half[1], data)):
        with pytest.raises(ProviderError) as caught:
            whole(vendor, before + error.encode() + after)
        assert caught.value.code not in ("cut", "no_answer")
        assert caught.value.status == 200
        assert ("boo" in str(caught.value)) == ("boo" in error)


@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize("nonsense", ["nonsense", "{", '{"a": 1}}', "[]", "null", "5", '"text"', "NaN", "\x00", "{'a': 1}", "{}\ufeff", "1" * 5000, '{"a": ' + "1" * 5000 + "}"])
def test_an_event_that_is_not_a_json_object_is_an_error_that_shows_its_start(vendor: str, nonsense: str) -> None:
    line = f"{nonsense}\n" if vendor == "ollama" else f"data: {nonsense}\n\n"
    with pytest.raises(ProviderError) as caught:
        whole(vendor, line.encode() + wire(vendor, STREAMS[vendor]))
    assert (caught.value.code, caught.value.retryable) == ("invalid_json", True)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
    assert str(caught.value).endswith("…") == (len(nonsense) > 80)


@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize("reason", ["x" * 5000, "a\nb\x1b[2J", "x" * 95 + "sk-S3CRET-01"])
def test_what_a_vendor_says_becomes_one_line_of_bounded_length_that_shows_no_secret(vendor: str, reason: str) -> None:
    said = {"promptFeedback": {"blockReason": reason}} if vendor == "gemini" else {"error": {"message": reason, "type": reason}}
    with pytest.raises(ProviderError) as caught:
        read(new_reader(vendor, "sk-S3CRET-01"), [wire(vendor, [said])])
    assert "S3C" not in f"{caught.value} {caught.value.code}"
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2000
    assert len(caught.value.code or "") <= 100


#: a whole body, as servers send it that fail
ONE_ERROR = [f'{start}{{"error": {{"message": "boo", "code": "bad"}}}}{end}' for start, end in (("", ""), ("[", "]"), (" \n[", "]"), ("\ufeff", ""))]
ONE_ERROR += [ONE_ERROR[0].replace("{", "{\n\n  "), ": hello\n\n" + ONE_ERROR[0].replace("{", "{\r\n\r\n")]


@pytest.mark.parametrize("vendor", [vendor for vendor in ADAPTERS if vendor != "ollama"])
@pytest.mark.parametrize("body,code,says", [
    *((body, "bad", "boo") for body in ONE_ERROR), ('{"code": 401, "msg": "bad key"}', "not_a_stream", "bad key"),
    ("", "cut", "cut off"), ("<html>\n\n</html>", "not_a_stream", "web page"), ("no healthy upstream", "invalid_json", "no healthy"),
])  # fmt: skip
def test_a_body_that_is_no_stream_is_an_error_that_shows_it_in_any_cut(vendor: str, body: str, code: str, says: str) -> None:
    for chunks in ([body.encode()], bytes_of(body)):
        for content_type in ("application/json; charset=utf-8", "text/event-stream", "text/html", ""):  # servers mistake them
            with pytest.raises(ProviderError, match=says) as caught:
                read(new_reader(vendor), chunks, content_type)
            assert caught.value.code == code


# ------------------------------------------------------------------------------------------------- hostile data

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(
        [10**400, -1, float("nan"), "error", "stop", "STOP", "text_delta", "message_stop", "", "\ud83d", [[]]]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["error", "message", "type", "code", "details", "delta", "content", "parts", "text", "index", "usage", "retryDelay", "x"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def places(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at, *(place for key, value in inner for place in places(value, (*at, key)))]


def replaced(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    data = copy.copy(data)
    data[at[0]] = replaced(data[at[0]], at[1:], value)
    return data


def check_any_end(vendor: str, data: bytes) -> None:
    """A response that can be used as one, or a ProviderError."""
    outcome = attempt(vendor, data)
    if isinstance(outcome, ProviderError):
        assert (outcome.status, outcome.vendor) == (200, vendor)
        assert isinstance(outcome.code, str | None)
        return
    said, response = outcome
    assert said == response.content or vendor == "openai-responses"  # where the last event counts
    assert all(count is None or 0 <= count < 2**63 for count in (response.prompt_tokens, response.completion_tokens))
    json.dumps([response.content, response.total_tokens, response.finish_reason, dict(response.metadata)])


@pytest.mark.parametrize("vendor", ADAPTERS)
@given(st.data())
def test_any_json_in_place_of_any_field_gives_a_response_or_a_provider_error(vendor: str, data: st.DataObject) -> None:
    objects = STREAMS[vendor]
    at = data.draw(st.sampled_from([place for place in places(objects) if place]))
    broken = replaced(objects, at, data.draw(JSON))
    lines = [json.dumps(one) for one in broken]
    check_any_end(vendor, "".join(f"{line}\n" if vendor == "ollama" else f"data: {line}\n\n" for line in lines).encode() + b"data: [DONE]\n\n")


@pytest.mark.parametrize("vendor", ADAPTERS)
@given(st.binary(max_size=80), st.integers(0, 400))
def test_any_bytes_in_the_middle_give_a_response_or_a_provider_error(vendor: str, junk: bytes, at: int) -> None:
    data = wire(vendor, STREAMS[vendor])
    check_any_end(vendor, data[:at] + junk + data[at:])


@pytest.mark.slow
@pytest.mark.parametrize("vendor", ADAPTERS)
@pytest.mark.parametrize("opened,closed", [("[", "]"), ('{"message":', "}"), ('[{"details":', "}]")])
def test_deep_nesting_is_a_provider_error_at_most(vendor: str, opened: str, closed: str) -> None:
    for levels in (*range(900, 1000, 20), 100, 2_000, *([20_000] if opened == "[" else [])):
        deep = opened * levels + "1" + closed * levels
        for text in (deep, f'{{"error": {{"message": {deep}}}}}', f'{{"choices": {deep}, "candidates": {deep}, "message": {deep}}}'):
            check_any_end(vendor, (text + "\n" if vendor == "ollama" else f"data: {text}\n\n").encode())


@pytest.mark.parametrize("count,known", [(1, 1), (7, 7), (2**53, 2**53), (2**53 + 1, None), (-1, None), (1.5, None), (12.0, 12), (True, None), ("7", None), (None, None), ([7], None), (10**400, None), (float("inf"), None)])
@pytest.mark.parametrize("vendor,prompt,completion", [
    ("openai", (5, "usage", "prompt_tokens"), (5, "usage", "completion_tokens")),
    ("openai-responses", (10, "response", "usage", "input_tokens"), (10, "response", "usage", "output_tokens")),
    ("anthropic", (0, "message", "usage", "input_tokens"), (10, "usage", "output_tokens")),
    ("gemini", (3, "usageMetadata", "promptTokenCount"), (3, "usageMetadata", "candidatesTokenCount")),
    ("ollama", (3, "prompt_eval_count"), (3, "eval_count")),
])  # fmt: skip
def test_an_invalid_token_count_is_unknown_and_never_zero(vendor: str, prompt: Any, completion: Any, count: Any, known: int | None) -> None:
    broken = replaced(replaced(STREAMS[vendor], prompt, count), completion, count)
    _, response = whole(vendor, wire(vendor, broken))
    beside = {"anthropic": (3, 0), "gemini": (0, 2)}.get(vendor, (0, 0))
    expected = [None if known is None else known + more for more in beside]
    assert [response.prompt_tokens, response.completion_tokens] == expected
    assert response.total_tokens == (None if known is None else sum(one for one in expected if one is not None))


# ----------------------------------------------------------------------------------------------- what gateways do


@pytest.mark.parametrize("start, end, expected", [
    ({"input_tokens": 0}, {"input_tokens": 7, "output_tokens": 5}, 7),
    ({}, {"input_tokens": 7, "output_tokens": 5}, 7),
    ({"input_tokens": 7}, {"input_tokens": 0, "output_tokens": 5}, 7),
    ({"input_tokens": 7}, {"output_tokens": 5}, 7),
    ({"input_tokens": 3}, {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 5}, 7),
    ({"input_tokens": 3, "cache_read_input_tokens": 4}, {"input_tokens": None, "output_tokens": 5}, 7),
    ({"input_tokens": 0}, {"input_tokens": 0, "output_tokens": 5}, 0),
    ({}, {"output_tokens": 5}, None),
])
def test_input_tokens_at_the_end_of_a_message_count_and_a_0_takes_nothing_back(
    start: dict[str, Any], end: dict[str, Any], expected: int | None
) -> None:
    _, response = whole("anthropic", b"".join(anthropic(anthropic_text("Hi"), start=start or {"x": 0}, usage=end)))
    assert (response.prompt_tokens, response.completion_tokens) == (expected, 5)


@pytest.mark.parametrize("vendor", [vendor for vendor in ADAPTERS if vendor != "ollama"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n", ": hello\n\n"])
def test_a_stream_that_its_server_calls_json_or_a_page_is_read_as_what_it_is_while_it_comes(vendor: str, start: str) -> None:
    data = wire(vendor, STREAMS[vendor])
    expected = whole(vendor, data)
    assert read(new_reader(vendor), bytes_of(start) + bytes_of(data), "application/json") == expected
    reader = new_reader(vendor)
    reader.begin({"content-type": "text/html"})
    middle = len(data) - len(data) // 4
    assert "".join(reader.feed(start.encode() + data[:middle])).startswith("Größe")


def test_content_in_parts_and_the_transcript_of_a_sound_are_text() -> None:
    parts: list[Any] = [
        [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}, {"type": "text", "text": "m"}]}],
        [{"type": "thinking", "thinking": "!", "closed": True}, {"type": "text", "text": "Grö"}],
        None, [{"type": "reference", "reference_ids": [1]}, {"type": "text", "text": " 😀"}, None, 5, {"text": None}],
    ]  # fmt: skip
    deltas = [{"content": part} if part else {"content": None, "audio": {"transcript": "ße"}} for part in parts]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    ending = {"index": 0, "delta": {}, "message": {"content": "Größe 😀"}, "finish_reason": "stop"}  # Perplexity's
    said, response = whole("openai", wire("openai", [*chunks, {"choices": [ending]}]))
    assert said == "Größe 😀"
    assert response.metadata["reasoning"] == "hm!"
    for delta in ({}, None):  # type: ignore[var-annotated]
        assert whole("openai", wire("openai", [{"choices": [{**ending, "delta": delta}]}]))[0] == said


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_call_of_a_tool_that_nobody_offered_is_the_finish_reason(vendor: str) -> None:
    said, response = whole(vendor, b"".join(WIRES[vendor].spoken("", [Called("f")])))
    assert (said, response.finish_reason) == ("", "tool")


@pytest.mark.parametrize("more,completion", [
    ({}, 5), ({"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}, 5),
    ({"completion_tokens": 6}, 6), ({"prompt_tokens": 0, "completion_tokens": 6, "total_tokens": 6}, 6),
])
def test_usage_that_is_left_out_or_zero_does_not_replace_reported_usage(more: dict[str, Any], completion: int) -> None:
    usage = [{"choices": [], "usage": more}]
    for stream, last in (([*STREAMS["openai"], *usage], completion), ([*usage, *STREAMS["openai"]], 5)):
        _, response = whole("openai", wire("openai", stream))
        counts = (response.prompt_tokens, response.completion_tokens, response.total_tokens, response.cached_tokens)
        assert counts == (7, last, 7 + last, 2)


STOP = {"finishReason": "STOP", "index": 0}


def _said(text: str, **candidate: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": [{"text": text}], "role": "model"}, **candidate}]}


@pytest.mark.parametrize("chunks", [
    [_said("Hello, ", **STOP), _said("world", **STOP)],  # of older models, in each chunk
    [_said("Hello, ", finishReason="OTHER"), _said("world"), {"candidates": [STOP]}],  # after a round of a tool
    [{"candidates": [{"content": {"parts": []}, **STOP}]}, _said("Hello, "), _said("world", **STOP)],  # of gateways
    [_said("Hello, ", finishReason=""), _said("world", **STOP), {"candidates": [{"finishReason": ""}]}],
])
def test_a_finish_reason_of_gemini_in_the_middle_does_not_end_the_answer(chunks: list[dict[str, Any]]) -> None:
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2}
    said, response = whole("gemini", wire("gemini", [*chunks, {"usageMetadata": usage}]))
    assert said == response.content == "Hello, world"
    assert (response.finish_reason, response.total_tokens) == ("stop", 5)
    assert "finish_reason" not in response.metadata


def test_the_marker_that_gateways_put_behind_an_answer_of_gemini_ends_it() -> None:
    whole_answer, done = wire("gemini", STREAMS["gemini"]), b"data: [DONE]\n\n"
    assert whole("gemini", whole_answer + done + b"data: nonsense\n\n") == whole("gemini", whole_answer)
    with pytest.raises(ProviderError, match="without a finishReason"):
        whole("gemini", wire("gemini", [_said("Hello, ")]) + done)


@pytest.mark.parametrize("vendor,stream", [
    ("gemini", gemini(
        {"text": "A cat: "}, *({"inlineData": {"mimeType": "image/png"}, "thought": one} for one in (True, False)), {"text": "."})),
    ("gemini", gemini({"text": "A cat: "}, {"fileData": {"mimeType": "image/png", "fileUri": "https://a.test/1"}}, {"text": "."})),
    ("openai", OpenAIWire().deltas({"content": "A cat: "}, {"images": [{"image_url": {"url": "data:image/png;base64,iVBO"}}]}, {"content": "."})),
    ("openai-responses", responses(output=[
        {"type": "message", "content": [{"type": "output_text", "text": one}]} if one else {"type": "image_generation_call", "result": "iVBO"}
        for one in ("A cat: ", "", ".")])),
])  # fmt: skip
def test_media_that_a_model_made_are_text_in_their_place_but_not_in_an_answer_with_a_schema(vendor: str, stream: list[bytes]) -> None:
    said, response = whole(vendor, b"".join(stream))
    assert said == response.content == "A cat: [image unavailable: image/png]."
    typed = new_reader(vendor)
    typed.box = Toolbox(Tools((), Message("system", ""), Message("system", ""), {"type": "object"}), ADAPTERS[vendor]("k"))
    assert read(typed, stream)[0] == "A cat: ."


@pytest.mark.parametrize("after,says", [
    (_said("Hello, ", **STOP) | {"error": {"code": 503, "message": "boo", "status": "UNAVAILABLE"}}, "UNAVAILABLE: boo"),
    ({"candidates": [{"content": {"parts": [{"functionCall": {"name": "wipe", "willContinue": True}}]}}]}, "streamFunctionCallArguments"),
    ({"candidates": [{"content": {"parts": [{"functionCall": {"name": "wipe", "partialArgs": [{"jsonPath": "$.all"}]}}]}}]}, "in pieces"),
])  # fmt: skip
def test_an_error_of_gemini_and_a_call_without_its_arguments_end_the_turn(after: dict[str, Any], says: str) -> None:
    with pytest.raises(ProviderError, match=says):
        whole("gemini", wire("gemini", [_said("Hello, ", **STOP), after, {"candidates": [STOP]}]))


@pytest.mark.parametrize("pieces,said", [
    (["a\ud83d", "\ude00b"], ["a", "😀b"]), (["\ud83d", "\ude00"], ["😀"]), (["\ud83d\ude00"], ["😀"]), (["a\ud83d", "b"], ["a", "\ufffdb"]),
    (["a", "\ude00b"], ["a", "\ufffdb"]), (["a\ud83d"], ["a", "\ufffd"]), (["\ud83d", "", "\ud83d\ude00"], ["\ufffd😀"]),
])  # fmt: skip
def test_halves_of_a_character_in_events_of_their_own_are_joined_and_a_lone_one_can_be_written(pieces: list[str], said: list[str]) -> None:
    openai_chunks = [{"choices": [{"index": 0, "delta": {"content": piece, "reasoning": piece}}]} for piece in pieces]
    gemini_chunks = [_said(piece) for piece in pieces] + [{"candidates": [STOP]}]
    for vendor, chunks in (("openai", openai_chunks), ("gemini", gemini_chunks)):
        reader = new_reader(vendor)
        reader.begin({})
        events = [json.dumps(chunk) for chunk in chunks] + ["[DONE]"]
        given = [piece for event in events for piece in reader.feed(f"data: {event}\n\n".encode())]
        given += reader.feed(b"") if not reader.complete else []
        reader.check_complete()
        response = reader.response(1)
        assert (given, response.content) == (said, "".join(said))
        assert vendor != "openai" or response.metadata["reasoning"] == "".join(said)
