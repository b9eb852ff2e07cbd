"""Recordings for the viewer's tests: of real runs, written by hand, and hostile ones."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import kernai

#: an image of one pixel
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
BEGUN = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
PLAN = {
    "goal": "find the cheaper supplier",
    "strategy": "mixed",
    "tasks": [
        {"id": "north", "input": "Ask north.", "parallel": True},
        {"id": "south", "input": "Ask south.", "parallel": True},
        {"id": "compare", "input": "Compare.", "depends_on": ["north", "south"]},
    ],
}


class Script:
    """Entries written by hand, a second apart."""

    def __init__(self, run_id: str = "run-1") -> None:
        self.entries: list[dict[str, Any]] = []
        self.run_id = run_id

    def add(self, event: str, data: Any = None, step: Any = 0, scope: Any = "", **more: Any) -> Script:
        at = BEGUN + timedelta(seconds=len(self.entries))
        self.entries.append({
            "event": event, "data": data, "step": step, "depth": 0, "task_id": None, "scope": scope,
            "run_id": self.run_id, "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), **more,
        })
        return self

    def turn(self, step: int, content: str, *blocks: tuple[str, str | None, str], **usage: Any) -> Script:
        counts = {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None, **usage}
        response = {"content": content, "latency_ms": 1200, "finish_reason": "stop", "metadata": {}, **counts}
        self.add("llm_response", response, step)
        parsed = [{"type": kind, "name": name, "content": text} for kind, name, text in blocks]
        return self.add("blocks_parsed", parsed, step)


def buying() -> list[dict[str, Any]]:
    """Record a run with a refused call, a workflow with two concurrent tasks, a failed call, and an answer."""
    both = threading.Barrier(2, timeout=20)

    @kernai.skill(register=False)
    def look_up(supplier: str) -> str:
        """Look up a price."""
        both.wait()
        if supplier == "south":
            raise ValueError("south is closed")
        return "40 euros"

    def answer(messages: Any, _: object) -> str:
        first, last = messages[1].text, messages[-1].text
        for supplier in ("north", "south"):
            if first == f"Ask {supplier}.":
                asked = len(messages) > 2
                return f"<final>{last}</final>" if asked else f'<command name="look_up">{supplier}</command>'
        if first.endswith("Compare."):
            return "<final>only north answers</final>"
        if 'name="tasks"' in last:
            return "That is all.\n<final>Order from north.</final>"
        if len(messages) == 2:
            return '<command name="/skills"></command><command name="no_such">{}</command>'
        return f'Both at once.\n<block type="plan">{json.dumps(PLAN)}</block>'

    mock = kernai.MockProvider().on_call(answer).with_token_counter(
        lambda messages, content: {"prompt_tokens": 1000, "completion_tokens": 25})
    agent = kernai.Agent(name="buyer", instructions="You buy parts.", provider=mock, skills=[look_up])
    recorder = kernai.Recorder()
    kernai.execute(agent, "Where do we order?", recorder=recorder, run_id="run-1")
    return recorder.to_list()


def small() -> Script:
    """One step: a call that works, without usage figures."""
    script = Script().add("run_start", {"run_id": "run-1", "input": "Look up tea.", "model": "m", "agent": "librarian"})
    script.add("messages_sent", [{"role": "system", "content": "You search."}, {"role": "user", "content": "Look up tea."}])
    script.turn(0, 'Let me see.\n<command name="search">tea</command>', ("command", "search", "tea"))
    script.add("skill_execute", {"call_id": "0.0", "skill": "search", "params": {"query": "tea"}})
    return script.add("skill_result", {"call_id": "0.0", "skill": "search", "result": "3 hits", "duration_ms": 12})


def long(events: int) -> list[dict[str, Any]]:
    """A run of `count` events, five per step."""
    script = Script().add("run_start", {"agent": "archivist", "input": "Read it all."})
    for step in range(events // 5):
        new = [{"role": "user", "content": f"result of page {step}"}]
        script.add("messages_sent", new, step, since=2 * step)
        script.turn(step, f'Page {step}.\n<command name="read">{step}</command>', ("command", "read", str(step)),
                    prompt_tokens=10, completion_tokens=5)
        script.add("skill_execute", {"call_id": f"{step}.0", "skill": "read", "params": {"page": step}}, step)
        script.add("skill_result", {"call_id": f"{step}.0", "skill": "read", "result": f"the text of page {step} " * 9}, step)
    return script.entries


HOSTILE = (
    "</script><script>window.harmed = 1</script>",
    "<script>window.harmed = 1</script>",
    '<img src=x onerror="window.harmed = 1">',
    "<svg onload=window.harmed=1><a href='javascript:window.harmed=1'>x</a>",
    '" autofocus onfocus="window.harmed = 1" x="',
    "' onmouseover='window.harmed = 1' x='",
    "javascript:window.harmed=1",
    "https://evil.invalid/x",
    "<!-- <script> --> ]]> <![CDATA[",
    "{{script}} {{data}} $& $1 \\1",
    "a\0b\x1b[31mred\x07\x9b",
    "\u202etxt.exe\u202c\u2066\u2069\u2028\u2029\u200b\ufeff",
    "\ud800 and \udfff",
    "__proto__",
    "constructor",
)


def hostile() -> list[dict[str, Any]]:
    """Each hostile text in every field for text, and in fields where text is not expected."""
    script = Script().add("run_start", {"input": HOSTILE[0], "agent": HOSTILE[1], "model": HOSTILE[2]})
    for at, text in enumerate(HOSTILE):
        reference = {"id": "media_0123456789ab", "kind": text, "mime_type": text, "data": text, "size": text}
        script.add("messages_sent", [{"role": text, "content": [text, reference]}, {"role": "system", "content": text}], at)
        script.turn(at, f'{text}<command name="{text}">{text}</command>', ("command", text, text), (text, text, text),
                    finish_reason=text, latency_ms=text, prompt_tokens=text, cost=text)
        script.add("skill_execute", {"call_id": f"{at}.0", "skill": text, "params": {text: text}}, at)
        script.add("progress", {"call_id": f"{at}.0", "data": {text: text}}, at)
        script.add("skill_result", {"call_id": f"{at}.0", "skill": text, "result": [text, reference], "duration_ms": text}, at)
        script.add("protocol_error", {"call_id": text, "protocol": text, "error": text, "duration_ms": 1}, at)
        script.add("workflow_start", {"goal": text, "strategy": text, "tasks": [{"id": text, "depends_on": [text]}]}, at)
        script.add("task_start", {"task_id": text, "input": text}, at).add("task_error", {"task_id": text, "error": text}, at)
        script.add("plan_rejected", {"reason": text, "raw": text}, at).add("forged_block", {"type": text, "content": text}, at)
        script.add("approval_requested", {"call_id": f"{at}.0", "skill": text, "params": [text], "reason": text}, at)
        script.add("approval_given", {"call_id": f"{at}.0", "decision": text, "by": text}, at)
        script.add("in_flight", {"call_id": f"{at}.0", "decision": text}, at).add("model_failed", {"error": text, "exception": text}, at)
        script.add("run_resumed", {"from_seq": len(script.entries), "dropped": [text, -1, 10**9, len(script.entries) - 1]}, at)
        script.add("input_added", {"input": [text, reference]}, at).add("context_saved", {text: text}, at)
        script.add("run_start", {"agent": text, "input": text}, 0, f"{at}.{text}").add(text, {text: [text]}, at, text)
        script.add("final", text, at).add("result", {"text": text, "stop_reason": text, "error": text}, at, f"{at}.{text}")
    return script.entries


#: entries with unexpected values, or without any fields
ODD: tuple[dict[str, Any], ...] = (
    {"event": "result"}, {"event": "messages_sent"}, {"event": "messages_sent", "data": 5}, {"event": "llm_response", "step": 0},
    {"event": "llm_response", "data": None, "scope": [1], "run_id": {"a": 1}, "step": "x"}, {"event": "skill_result", "data": [1, 2]},
    {"event": "skill_execute", "step": 3}, {"event": "task_start", "step": 3, "data": {}}, {"event": "workflow_start", "step": 7, "data": {"tasks": "no"}},
    {"event": "x", "timestamp": "never"}, {"event": "blocks_parsed", "data": "no", "step": 4},
    {"event": "run_start", "data": 7, "scope": ""}, {"event": "progress", "step": -1, "data": {"call_id": 5}},
    {"event": "messages_sent", "data": [None, 5, "x", {"content": 7}], "since": "x", "step": 0}, {"event": "hasOwnProperty", "data": True},
    {"event": "task_start", "step": 1}, {"event": "workflow_start", "step": 2}, {"event": "approval_given", "step": 1}, {"event": "approval_requested", "step": 1},
    {"event": "run_resumed", "data": {"from_seq": 23, "dropped": 5}}, {"event": "run_resumed", "step": 0, "data": [1]}, {"event": "in_flight", "data": 5, "step": 1},
    {"event": "input_added", "step": 1, "data": 7}, {"event": "model_failed", "step": 5}, {"event": "context_saved", "step": 1},
)
