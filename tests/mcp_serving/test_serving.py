"""The official SDK's client uses served skills over stdio and HTTP, in old and new revisions of the protocol."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import re
from collections.abc import Awaitable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp import Client, MCPError, types

# the clients stay connected
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("credentials")]

#: every transport and revision, for tests where the SDK's code differs between them
each_way = pytest.mark.parametrize("client", ["stdio-legacy", "stdio-auto", "http-legacy", "http-auto"], indirect=True)


def texts(result: Any) -> list[str]:
    return [part.text for part in result.content]


async def soon(what: Awaitable[Any]) -> Any:
    """Await something, but fail the test if it hangs."""
    return await asyncio.wait_for(what, 30)


def progress(wanted: int = 1) -> tuple[list[tuple[float, float | None, str | None]], asyncio.Event, Any]:
    """Return a list that a progress callback fills, an event for when it holds `wanted`, and the callback."""
    got: list[tuple[float, float | None, str | None]] = []
    enough = asyncio.Event()

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        got.append((progress, total, message))
        if len(got) >= wanted:
            enough.set()

    return got, enough, on_progress


@each_way
async def test_tools_have_names_descriptions_and_valid_schemas(client: Client, served: Any) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert list(tools) == [skill.name for skill in served.SKILLS]
    assert tools["add"].description == "Add two numbers."
    assert tools["add"].input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
        "required": ["a"],
    }
    assert tools["ask"].input_schema["properties"] == {"input": {"type": "string"}}
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)


async def test_the_server_reports_its_name_version_and_instructions(client: Client) -> None:
    assert client.server_info is not None
    assert (client.server_info.name, client.server_info.version) == ("served", "9.1")
    assert client.instructions == "Add first."


@each_way
async def test_valid_calls_are_answered(client: Client) -> None:
    assert texts(await client.call_tool("add", {"a": 2})) == ["3"]
    assert texts(await client.call_tool("add_later", {"a": 2, "b": 5})) == ["7"]
    assert texts(await client.call_tool("add", {"a": 2, "unknown": 1})) == ["3"]
    assert texts(await client.call_tool("owner")) == ["ada"]
    *_, misspelled = texts(await client.call_tool("add", {"a": 2, "B": 5}))
    assert misspelled.startswith('The call was made, but there is no argument "B", did you mean "b"?')


NO_ANSWER = types.CallToolResult(content=[], is_error=True).model_dump()
IMAGE = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"\x89PNG...").decode()}
AUDIO = {"type": "audio", "mimeType": "audio/wav", "data": base64.b64encode(b"RIFF...").decode()}
RESULTS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "nothing": ([], None),
    "text": ([{"type": "text", "text": "a <b> & ü"}], None),
    "json text": ([{"type": "text", "text": '{"not": "data"}'}], None),
    "dict": ([{"type": "text", "text": '{"a": [1, null]}'}], {"a": [1, None]}),
    "list": ([{"type": "text", "text": '[1, "x"]'}], [1, "x"]),
    "record": ([{"type": "text", "text": '{"x": 1, "y": 0.0}'}], {"x": 1, "y": 0.0}),
    "picture": ([IMAGE], None),
    "sound": ([AUDIO], None),
    "letter": ([{"type": "resource", "resource": {
        "uri": "kernai://media/LETTER", "mimeType": "text/plain", "text": "Grüße"}}], None),
    "archive": ([{"type": "resource", "resource": {
        "uri": "kernai://media/ARCHIVE", "mimeType": "application/pdf", "blob": base64.b64encode(b"%PDF\xff").decode()}}], None),
    "page": ([{"type": "resource_link", "uri": "https://example.org/page.pdf?key=1", "name": "PAGE",
               "mimeType": "application/pdf"}], None),
    "parts": ([{"type": "text", "text": "see: "}, IMAGE], None),
    "noted": ([{"type": "text", "text": "text"}, AUDIO], None),
    "dict with media": ([{"type": "text", "text": '{"picture": "PICTURE"}'}, IMAGE], {"picture": "PICTURE"}),
    "surrogate": ([{"type": "text", "text": "a?b"}], None),
    "result of MCP": ([{"type": "text", "text": json.dumps(NO_ANSWER)}], NO_ANSWER),  # a value like any other
    "surrogates in data": ([{"type": "text", "text": '{"?": ["?"]}'}], {"?": ["?"]}),
}


async def test_every_kind_of_result_becomes_content_of_mcp(client: Client, served: Any) -> None:
    def named(text: Any) -> Any:
        for name in ("LETTER", "ARCHIVE", "PAGE", "PICTURE"):
            text = text.replace(getattr(served, name).id, name)
        return text

    for what, (content, structured) in RESULTS.items():
        result = await client.call_tool("give", {"what": what})
        shown = types.CallToolResult.model_validate_json(named(result.model_dump_json(by_alias=True)))
        assert [part.model_dump(by_alias=True, exclude_none=True, mode="json") for part in shown.content] == content, what
        is_old = client.protocol_version != "2026-07-28"  # clients of that revision accept only objects
        wrapped = {"result": structured} if is_old and isinstance(structured, list) else structured
        assert shown.structured_content == wrapped, what
        assert not result.is_error


FAILURES = [
    ("give", {"what": "bytes"}, "bytes have no text"),
    ("give", {"what": "gone"}, "cannot read media file '/nowhere/x.png'"),
    ("leave", {"how": "exit"}, "SystemExit: 3"),
    ("leave", {"how": "interrupt"}, "KeyboardInterrupt"),
    ("leave", {"how": "stop"}, "StopIteration: x"),
    ("leave", {"how": "cancel"}, "CancelledError"),
    ("leave", {"how": "silent"}, "ValueError"),
    ("leave", {"how": "surrogate"}, "no ?"),
    ("leave_later", {"how": "group"}, "SystemExit: 3"),
    ("leave_later", {"how": "exit"}, "SystemExit: 3"),
    ("leave_later", {"how": "cancel"}, "CancelledError"),
    ("ask", {"input": "fail"}, "the vendor is gone"),
]


async def test_whatever_a_skill_raises_is_a_tool_error_and_the_server_continues(
    client: Client, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    for name, arguments, message in FAILURES:
        result = await client.call_tool(name, arguments)
        assert result.is_error, (name, arguments)
        assert message in texts(result)[0], (name, arguments)
        if "http" in request.node.name:  # it runs in this process
            assert caplog.messages[-1].startswith(f"event=skill.error skill={name} error="), "as in a run"
    assert texts(await client.call_tool("add", {"a": 1})) == ["2"]


WRONG_ARGUMENTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("add", {"b": "many", "c": 1}, "a: required, but missing: expected integer, received nothing\n"
     'b: expected integer, received string "many"\nNote: ignored, because there is no such input: "c"', '{"a": 1, "b": 1}'),
    ("add", {"a": "2"}, 'a: expected integer, received string "2"\nNote: strings need quotes, other values must not', '{"a": 2}'),
    ("look", {}, "image: required, but missing: expected media object",
     '{"image": {"data": "iVBORw0KGgo=", "mimeType": "image/png"}, "point": null}'),
    ("ask", {}, "input: required, but missing", '{"input": "..."}'),
]


async def test_wrong_arguments_are_reported_with_example_arguments_instead_of_a_block(client: Client) -> None:
    for name, arguments, faults, right in WRONG_ARGUMENTS:
        result = await client.call_tool(name, arguments)
        assert result.is_error
        (text,) = texts(result)
        assert text.startswith(faults)
        assert text.rpartition("\n")[2] == f"Right arguments: {right}"
        assert not re.search("Usage|<block", text)
    assert texts(await client.call_tool("relay", {})) == [
        'a: required, but missing: expected integer, received nothing\nb: expected integer, received string "many"'
    ]


async def test_an_unknown_tool_is_an_error_that_names_the_closest_however_long_its_name_is(client: Client) -> None:
    for name, message in (("ad", "Unknown tool 'ad'; there is add"), ("a" * 1_000_000, "Unknown tool 'aaa")):
        with pytest.raises(MCPError, match=message):
            await client.call_tool(name, {})


async def test_a_media_input_accepts_its_payload(client: Client) -> None:
    picture = {"data": base64.b64encode(b"pixels").decode(), "mimeType": "image/png"}
    assert texts(await client.call_tool("look", {"image": picture})) == ["image/png b'pixels' None"]
    for wrong in ("media_0a1b2c3d4e5f", {"data": "no base64!", "mimeType": "image/png"}, {"data": "", "mimeType": "png"}):
        result = await client.call_tool("look", {"image": wrong, "point": {"x": "1"}})
        assert result.is_error
        assert "image: expected media object such as" in texts(result)[0]
        assert "point.x: expected integer" in texts(result)[0], "all faults at once"


async def test_credentials_are_scrubbed_from_results_errors_and_progress(client: Client) -> None:
    got, _, on_progress = progress()
    data = {"key": "[credential key]"}
    for how, text, structured in (
        ("right", "in with [credential key]", None), ("wrong", "no access with [credential key]", None),
        ("data", json.dumps(data), data), ("object", "/[credential key]", None),
    ):
        result = await client.call_tool("login", {"how": how}, progress_callback=on_progress)
        assert (texts(result), result.structured_content, result.is_error) == ([text], structured, how == "wrong")
    assert got == [(1.0, None, '{"with": "[credential key]"}')] * 4


@each_way
async def test_progress_arrives_in_order_before_the_result(client: Client) -> None:
    got, enough, on_progress = progress(6)
    result = await client.call_tool("count", {"upto": 3}, progress_callback=on_progress)
    await soon(enough.wait())
    unasked = await client.call_tool("count", {"upto": 3})
    assert texts(result) == texts(unasked) == ["counted"]
    numbers = [progress for progress, _, _ in got]
    assert numbers == sorted(set(numbers)), "each is more than the one before"
    assert [message for _, _, message in got] == ["number 0", "number 1", "number 2", None, "nearly", '{"left": 0}']
    assert [total for _, total, _ in got] == [3.0, 3.0, 3.0, None, None, None]


async def test_an_agent_is_a_tool_that_reports_progress(client: Client) -> None:
    got, enough, on_progress = progress(6)
    result = await client.call_tool("ask", {"input": "count"}, progress_callback=on_progress)
    await soon(enough.wait())
    assert texts(result) == ["counted it"]
    assert got == [
        (1.0, None, "step 0: count"), (2.0, None, "number 0"), (3.0, None, "number 1"), (4.0, None, "1"),
        (5.0, None, "nearly"), (6.0, None, '{"left": 0}'),
    ]


@pytest.mark.parametrize("tool", ["poll", "poll_later", "ask"])
@each_way
async def test_a_skill_notices_that_the_client_cancelled_its_call(client: Client, tool: Any, caplog: pytest.LogCaptureFixture) -> None:
    _, started, on_progress = progress(2 if tool == "ask" else 1)
    arguments = {"input": "wait"} if tool == "ask" else {}
    call = asyncio.ensure_future(client.call_tool(tool, arguments, progress_callback=on_progress))
    await soon(started.wait())
    call.cancel()
    await asyncio.wait([call])
    assert call.cancelled()
    assert texts(await client.call_tool("was_cancelled")) == ["True"]
    gc.collect()
    assert "Task was destroyed" not in caplog.text


async def test_fifty_calls_at_once_leave_the_server_responsive(client: Client) -> None:
    _, held, on_progress = progress(50)
    calls = [asyncio.ensure_future(client.call_tool("hold", progress_callback=on_progress)) for _ in range(50)]
    await soon(held.wait())
    sums = await soon(asyncio.gather(*(client.call_tool("add_later", {"a": n, "b": n}) for n in range(50))))
    assert [texts(one) for one in sums] == [[str(2 * n)] for n in range(50)]
    assert not any(call.done() for call in calls)
    await client.call_tool("release")
    assert [texts(one) for one in await soon(asyncio.gather(*calls))] == [["released"]] * 50
