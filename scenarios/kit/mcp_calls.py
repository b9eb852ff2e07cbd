"""The tools of MCP servers that a run called, read off its events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from harness import Outcome


@dataclass(frozen=True)
class ToolCall:
    """One call, with what the server answered; `result` is None where that was an error."""

    tool: str
    result: str | None


def tool_calls(outcome: Outcome) -> list[ToolCall]:
    """Every call of a tool, in order; requests that are none are left out."""
    results = {event.data["call_id"]: event.data["result"] for event in outcome.of("protocol_result")}
    found = []
    for event in outcome.of("protocol_execute"):
        request, result = _request(event.data["request"]), results.get(event.data["call_id"])
        params = request.get("params")
        if request.get("method") == "tools/call" and isinstance(params, dict):
            found.append(ToolCall(str(params.get("name")), None if result is None else str(result)))
    return found


def results_since(outcome: Outcome, *tools: str) -> list[str]:
    """The results of the calls after the last one of `tools` that the server carried out; none without such a call."""
    calls = tool_calls(outcome)
    last = max((at for at, call in enumerate(calls) if call.tool in tools and call.result is not None), default=None)
    return [] if last is None else [call.result for call in calls[last + 1 :] if call.result is not None]


def _request(text: str) -> dict[str, Any]:
    try:
        request = json.loads(text)
    except (ValueError, RecursionError):
        return {}  # the model has read what is wrong with it
    return request if isinstance(request, dict) else {}
