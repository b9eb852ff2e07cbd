"""Streams of native calls: cut anywhere, with errors in them, and as real servers deviate from their specification."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import kernai
from adapter_calls import ADAPTERS, bodies_to, replying
from kernai import Agent, LlmResponse, Message, Model, ProviderError, Result, Tool, Tools, skill
from kernai_providers.native import Toolbox
from vendor_wires import WIRES, anthropic, gemini, ollama
from wire_format import Called, sse
from wire_openai import OpenAIWire, responses

VENDORS = tuple(ADAPTERS)
CALLS = [
    Called("search", '{"q": "Größe 😀 </block>", "limit": 3}'), Called("stock_list", '{"q": ""}'), Called("search", '{"q": "b"}'),
]  # fmt: skip
SYSTEM = Message("system", "")
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "limit": {"type": "integer"}}, "required": ["q"]}
TOOLS = Tools((Tool("search", "", SCHEMA), Tool("stock.list", "", SCHEMA)), SYSTEM, SYSTEM)
Outcome = tuple[str, dict[int, Any], LlmResponse]


def read(vendor: str, chunks: Iterable[bytes]) -> Outcome:
    """The text that was streamed, what was streamed of each call, and the response."""
    provider = ADAPTERS[vendor]("k")
    one = provider.reader()
    one.box = Toolbox(TOOLS, provider)
    one.begin({"content-type": WIRES[vendor].media_type})
    pieces = [piece for chunk in chunks if not one.complete for piece in one.feed(chunk)]
    pieces += [] if one.complete else one.feed(b"")
    one.check_complete()
    calls: dict[int, Any] = {}
    for piece in pieces:
        if not isinstance(piece, str):
            index, kind, name, text = piece
            calls[index] = kind, name, calls.get(index, ("", "", ""))[2] + text
    return "".join(piece for piece in pieces if isinstance(piece, str)), calls, one.response(1)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_stream_of_native_calls_is_read_the_same_however_it_is_cut(vendor: str) -> None:
    data = b"".join(WIRES[vendor].spoken("Größe 😀.", CALLS, thought="Hm."))
    whole = read(vendor, [data])
    assert (whole[0], whole[2].ends_turn) == ("Größe 😀.", False)
    assert read(vendor, WIRES[vendor].stream(["Half"], finish="brand_new"))[2].ends_turn is False
    blocks = whole[2].blocks or []
    assert [(one.name, json.loads(one.content)["q"]) for one in blocks] == [
        ("search", "Größe 😀 </block>"), ("stock.list", ""), ("search", "b")]  # fmt: skip
    if not vendor.startswith("openai"):  # there the arguments may hold nulls, which are left out at the end
        assert whole[1] == {at: (one.type, one.name, one.content) for at, one in enumerate(blocks)}
    for given in (data, data.replace(b"\n", b"\r\n")):
        for at in range(0, len(given) + 1, 23):
            assert read(vendor, [given[:at], given[at:]]) == whole
        assert read(vendor, [given[at : at + 1] for at in range(len(given))]) == whole


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_stream_that_ends_anywhere_is_an_error_or_the_whole_response(vendor: str) -> None:
    data = b"".join(WIRES[vendor].spoken("Both.", CALLS))
    whole = read(vendor, [data])
    end = len(data.rstrip())  # whether its line breaks come does not matter
    for at in [*range(0, end - 60, 23), *range(end - 60, end)]:
        with pytest.raises(ProviderError) as caught:
            assert read(vendor, [data[:at]]) != whole
        assert (caught.value.retryable, caught.value.code in ("cut", "invalid_json")) == (True, True)
    assert read(vendor, [data[:end]]) == whole


# --------------------------------------------------------------------------------------------------- whole runs


@skill(register=False)
def search(q: str, limit: int = 3) -> str:
    """Searches."""
    return f"hits for {q}"


@skill(register=False)
def wipe(everything: bool = True) -> str:
    """Wipes."""
    return "wiped"


def agent(provider: kernai.Provider, generation: Any = None) -> Agent:
    return Agent(
        instructions="x", provider=provider, model=Model("m"), skills=[search, wipe], calls="native",
        generation=generation)


def run(
    vendor: str, *streams: Sequence[bytes], generation: Any = None, **options: Any
) -> tuple[Result[str], list[str], list[Any]]:
    """The result of a run whose responses are these, then "End."; what its calls gave; the requests."""
    provider = replying(vendor, *streams, WIRES[vendor].stream(["End."]))
    recorder = kernai.Recorder()
    result = kernai.execute(agent(provider, generation), "Go.", recorder=recorder, **options)
    return result, [event.data["result"] for event in recorder.for_event("skill_result")], bodies_to(provider)


@pytest.mark.parametrize("vendor", VENDORS)
def test_an_error_anywhere_in_a_stream_runs_no_call_of_it(vendor: str) -> None:
    stream = WIRES[vendor].spoken("Both.", CALLS)
    for error in WIRES[vendor].errors().values():
        for at in (0, len(stream) // 2, len(stream) - 1):
            result, gave, _ = run(vendor, [*stream[:at], *error])
            assert (result.stop_reason, gave) == ("error", [])


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_refusal_ends_a_native_call_as_it_ends_any_other(vendor: str) -> None:
    for stream, word in WIRES[vendor].refusals().values():
        result, _, _ = run(vendor, stream)
        assert (result.stop_reason == "error") == (not result.text)
        assert result.finish_reason in (word, None)


# --------------------------------------------------------------------------------- what servers send all the same


openai = OpenAIWire().deltas


def piece(arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A piece of a call, as Chat Completions has it; `name` is its function's."""
    name = {"name": more.pop("name")} if "name" in more else {}
    return {"tool_calls": [{**more, "function": {**name, "arguments": arguments}}]}


def begun(index: int, kind: str = "tool_use", name: str = "search", **given: Any) -> dict[str, Any]:
    block = {"type": kind, "id": f"t{index}", "name": name, "input": given}
    return {"type": "content_block_start", "index": index, "content_block": block}


def more(index: int, text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": text}}


def calling(*functions: Any) -> list[bytes]:
    """Ollama's calls, which arrive as a whole."""
    return ollama({"tool_calls": [function and {"function": function} for function in functions]})


def item(arguments: str = '{"q": "a"}', name: str = "search") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": arguments}


ADDED = ("output_item.added", {"output_index": 0, "item": item("")})
NOTHING: Any = None
A, B = '{"q": "a"}', '{"q": "b"}'
#: by what is odd: the vendor, the stream, and for which `q` it searches
ODD: dict[str, tuple[str, list[bytes], list[str]]] = {
    "id and name in each piece": ("openai", openai(
        piece('{"q": ', index=0, id="1", name="search"), piece('"a"}', index=0, id="1", name="search")), ["a"]),
    "arguments before the name": ("openai", openai(
        piece('{"q": ', index=0, id="1"), piece('"a"}', index=0, id="1", name="search")), ["a"]),
    "arguments before the name, and no number": ("openai", openai(piece('{"q": ', id="1"), piece('"a"}', id="1", name="search")), ["a"]),
    "every call is number 0": ("openai", openai(
        piece(A, index=0, id="1", name="search"), piece(B, index=0, id="2", name="search")), ["a", "b"]),
    "every call is number 0, in pieces": ("openai", openai(
        piece(A, index=0, id="1", name="search"), piece('{"q": ', index=0, id="2", name="search"), piece('"b"}', index=0)), ["a", "b"]),
    "every call is number 0, with id and name in each piece": ("openai", openai(
        *(piece(half, index=0, id=id, name="search") for id, q in ("1a", "2b") for half in ('{"q": ', f'"{q}"}}'))), ["a", "b"]),
    "id and name in each piece, and no number": ("openai", openai(
        piece('{"q": ', id="1", name="search"), piece('"a"}', id="1", name="search")), ["a"]),
    "the name again in each piece, without an id": ("openai", openai(
        *(piece(text, index=0, name="search") for text in ("", '{"q"', ': "a"', "}"))), ["a"]),
    "the name and another id in each piece": ("openai", openai(
        *(piece(text, index=0, id=str(at), name="search") for at, text in enumerate(('{"q"', ': "a}', '"}')))), ["a}"]),
    "whole calls without ids, all number 0": ("openai", openai(
        piece(A, index=0, name="search"), piece(B, index=0, name="search")), ["a", "b"]),
    "no call has an id, and all are number 0, in pieces": ("openai", openai(
        *(one for q in (A, B) for one in (piece("", index=0, name="search"), piece(q, index=0)))), ["a", "b"]),
    "a broken call before another with its number": ("openai", openai(
        piece("{", index=0, id="1", name="search"), piece("q", index=0), piece(B, index=0, id="2", name="search")), ["b"]),
    "no call has a number": ("openai", openai(piece(A, id="1", name="search"), piece(B, id="2", name="search")), ["a", "b"]),
    "no piece has a number": ("openai", openai(piece("", id="1", name="search"), piece('{"q": '), piece('"a"}')), ["a"]),
    "arguments as an object": ("openai", openai(piece({"q": "a"}, index=0, id="1", name="search")), ["a"]),
    "blank lines before a call": ("openai", openai({"content": "Hm. \n\n"}, piece(A, index=0, id="1", name="search")), ["a"]),
    "calls that end with stop": ("openai", openai(piece(A, index=0, id="1", name="search"), finish="stop"), ["a"]),
    "a message in place of a delta": ("openai", [
        sse({"choices": [{"index": 0, "message": piece(A, id="1", name="search"), "finish_reason": "tool_calls"}]}),
        b"data: [DONE]\n\n"], ["a"]),
    "a call without a name": ("openai", openai(piece(A, index=0, id="1", name="")), []),
    "arguments that were cut off": ("openai", openai(piece('{"q": "a', index=0, id="1", name="search"), finish="length"), []),
    "cut off before its arguments": ("openai", openai(piece("", index=0, id="1", name="wipe"), finish="length"), []),
    "whole, though cut off after it": ("openai", openai(piece(A, index=0, id="1", name="search"), finish="length"), ["a"]),
    "broken before one that was cut off": ("openai", openai(
        piece('{"q": ', index=0, id="1", name="search"), piece('{"q": "b', index=1, id="2", name="search"), finish="length"), []),
    "a tool that the vendor runs": ("anthropic", anthropic(
        begun(0, "server_tool_use", "web_search"), more(0, '{"query": "x"}'), begun(1), more(1, '{"q": '), more(1, '"a"}'), stop="tool_use"), ["a"]),
    "one number for several blocks": ("anthropic", anthropic(
        begun(0), more(0, A), begun(0), more(0, B), begun(0, "server_tool_use"), more(0, "{}"), stop="tool_use"), ["a", "b"]),
    "no input": ("anthropic", anthropic(begun(0, name="wipe"), more(0, ""), stop="tool_use"), NOTHING),
    "all of the input at once": ("anthropic", anthropic(begun(0, q="a"), stop="tool_use"), ["a"]),
    "an input that was cut off": ("anthropic", anthropic(begun(0), more(0, '{"q": "a'), stop="max_tokens"), []),
    "an input that never came": ("anthropic", anthropic(begun(0, name="wipe"), stop="max_tokens"), []),
    "calls without ids": ("gemini", gemini(
        {"functionCall": {"name": "search", "args": {"q": "a"}}}, {"functionCall": {"name": "search", "args": {"q": "b"}}}), ["a", "b"]),
    "a malformed call": ("gemini", gemini(finish="MALFORMED_FUNCTION_CALL"), []),
    "arguments as a text": ("ollama", calling({"name": "search", "arguments": A}), ["a"]),
    "no call in the list": ("ollama", calling(None), []),
    "only in the final output": ("openai-responses", responses(output=[item()]), ["a"]),
    "calls with one id": ("openai-responses", responses(
        *(("output_item.done", {"output_index": at, "item": item(q)}) for at, q in enumerate((A, B))), output=[item(A), item(B)]), ["a", "b"]),
    "done, but begun without a name": ("openai-responses", responses(
        ("output_item.added", {"output_index": 0, "item": item() | {"name": ["search"]}}), ("output_item.done", {"output_index": 0, "item": item()}), output=[item()]), ["a"]),
    "other pieces than in the end": ("openai-responses", responses(
        ADDED, ("function_call_arguments.delta", {"output_index": 0, "delta": '{"q": "x"}'}),
        ("output_item.done", {"output_index": 0, "item": item()}), output=[item()]), ["a"]),
    "incomplete": ("openai-responses", responses(
        ADDED, ("function_call_arguments.delta", {"output_index": 0, "delta": '{"q": "x'}),
        output=[item('{"q": "x')], why="max_output_tokens"), []),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_a_server_that_deviates_is_understood_or_the_model_reads_that_nothing_was_done(odd: str) -> None:
    vendor, stream, asked = ODD[odd]
    events: list[str] = []
    result, gave, bodies = run(vendor, stream, on_event=lambda event: events.append(event.type))
    assert gave == (["wiped"] if asked is NOTHING else [f"hits for {q}" for q in asked])
    assert (result.text, len(bodies)) == ("End.", 2)
    assert "model_restarted" not in events


def test_reasoning_is_sent_back_to_anthropic_only_if_it_is_complete() -> None:
    thought = {"type": "thinking", "thinking": "", "signature": ""}
    opening = {"type": "content_block_start", "index": 0, "content_block": thought}
    hm, odd, signed = (
        {"type": "content_block_delta", "index": 0, "delta": delta} for delta in (
            {"type": "thinking_delta", "thinking": "Hm."}, {"type": "brand_new"}, {"type": "signature_delta", "signature": "EqQB"}))
    hidden = {"type": "redacted_thinking", "data": "c2VjcmV0"}
    begins = {"type": "content_block_start", "index": 0, "content_block": hidden}
    whole = {**thought, "thinking": "Hm.", "signature": "EqQB"}
    for given, kept in (([opening, hm, odd, signed], [whole]), ([begins, opening, hm, signed], [hidden, whole]), ([hm, signed], None)):
        _, _, response = read("anthropic", anthropic(*given))
        assert (response.metadata["reasoning"], response.metadata.get("reasoning_items")) == ("Hm.", kept)


def test_a_thought_goes_back_to_anthropic_in_its_place_between_texts() -> None:
    def event(delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": 0, "delta": delta}

    def said(text: str) -> dict[str, Any]:
        return event({"type": "text_delta", "text": text})

    thought = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        event({"type": "thinking_delta", "thinking": "Hm."}), event({"type": "signature_delta", "signature": "EqQB"})]
    stream = anthropic(*thought, said("\n\nLet "), said("me see. "), *thought, said("Now."), begun(1, q="a"), *thought, begun(2, q="b"), stop="tool_use")
    _, _, bodies = run("anthropic", stream)
    content = bodies[-1]["messages"][1]["content"]
    assert [part.get("text", part["type"]) for part in content] == [
        "thinking", "Let me see. ", "thinking", "Now.", "tool_use", "thinking", "tool_use"]
    assert [sorted(part) for part in content if part["type"] == "thinking"] == [["signature", "thinking", "type"]] * 3
    ended, _, _ = run("anthropic", anthropic(said("Let me see."), *thought))
    _, _, bodies = run("anthropic", history=ended.messages)
    assert bodies[-1]["messages"][1]["content"][-1] == {"type": "text", "text": "(empty)"}


def test_each_signature_of_gemini_goes_back_with_its_call() -> None:
    _, _, bodies = run("gemini", gemini(*({"functionCall": {"name": "search", "args": {"q": q}}, "thoughtSignature": q} for q in "abc")))
    parts = [part for one in bodies[-1]["contents"] for part in one["parts"] if "functionCall" in part]
    assert [part["functionCall"]["args"]["q"] + part["thoughtSignature"] for part in parts] == ["aa", "bb", "cc"]


def test_duplicate_call_ids_are_sent_back_as_different_ones() -> None:
    again = openai(piece(A, index=0, id="same", name="search"), piece(B, index=1, id="same", name="search"))
    _, gave, bodies = run("openai", again, again)
    messages = bodies[-1]["messages"]
    calls = [call["id"] for one in messages for call in one.get("tool_calls", ())]
    assert calls == [one["tool_call_id"] for one in messages if one["role"] == "tool"]
    assert (calls[0], len(set(calls)), len(gave)) == ("same", 4, 4)


def test_tools_of_the_vendors_own_are_sent_beside_the_agents() -> None:
    _, _, bodies = run("anthropic", generation={"extra": {"tools": [{"type": "web_search_20260209", "name": "web_search"}]}})
    assert [tool["name"] for tool in bodies[0]["tools"]] == ["search", "wipe", "plan", "tasks", "web_search"]
