"""What a live view shows of a run that is going on, kept up to date from its events."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import kernai
from kit.event_lines import count, dollars

KEPT = 2000  # characters kept of a block that is being streamed; a terminal shows its end


@dataclass
class Streaming:
    """A block or prose as it arrives: what it is, and the end of its text so far."""

    title: str = "prose"
    tail: str = ""

    def add(self, piece: str) -> None:
        """Take up a piece, and let go of what is too long ago."""
        self.tail = (self.tail + piece)[-KEPT:]


@dataclass
class TaskState:
    """A workflow's task: ``waiting``, ``running``, ``done`` or ``failed``, and how many steps it has begun."""

    state: str = "waiting"
    steps: int = 0
    began: float | None = None
    ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long it has been running, or ran."""
        return 0.0 if self.began is None else (self.ended or time.monotonic()) - self.began


@dataclass
class LiveState:
    """Counts, tasks by their id, and what is being streamed by its scope. Not thread-safe."""

    began: float = field(default_factory=time.monotonic)
    step: int = 0
    usage: kernai.Usage = field(default_factory=kernai.Usage)
    calls: int = 0
    errors: int = 0
    tasks: dict[str, TaskState] = field(default_factory=dict)
    streams: dict[str, Streaming] = field(default_factory=dict)

    def take(self, event: kernai.Event) -> None:
        """Take up one event."""
        kind, data = event.type, event.data
        if kind in ("text_chunk", "block_content"):
            self.streams.setdefault(event.scope, Streaming()).add(data)
        elif kind == "block_start":
            self.streams[event.scope] = Streaming(" ".join(str(one) for one in (data["type"], data["name"]) if one))
        elif kind == "messages_sent":
            self._step(event)
        elif kind in ("llm_response", "result"):
            self.streams.pop(event.scope, None)
            if kind == "llm_response":
                self._tokens(data)
        elif kind in ("skill_execute", "protocol_execute"):
            self.calls += 1
        elif kind in ("skill_error", "protocol_error", "builtin_error"):
            self.errors += 1
        else:
            self._workflow(kind, data)

    def figures(self) -> str:
        """The figures so far, on one line."""
        usage = self.usage
        parts = [f"{time.monotonic() - self.began:.1f} s", f"step {self.step}"]
        if usage.model_calls:
            parts += [
                f"tokens {count(usage.prompt_tokens)} in, {count(usage.completion_tokens)} out",
                f"cost {dollars(usage.cost)}",
            ]
        return " | ".join([*parts, f"{self.calls} calls, {self.errors} errors"])

    def _step(self, event: kernai.Event) -> None:
        if event.depth == 0:
            self.step = event.step or 0
        elif event.task_id in self.tasks:
            self.tasks[event.task_id].steps += 1

    def _tokens(self, data: Mapping[str, Any]) -> None:
        prompt, completion, total = (data[f"{one}_tokens"] for one in ("prompt", "completion", "total"))
        self.usage += kernai.Usage(prompt, completion, total, data.get("cost"), 1)

    def _workflow(self, kind: str, data: Any) -> None:
        if kind == "workflow_start":
            self.tasks = {task["id"]: TaskState() for task in data["tasks"]}
        elif kind == "task_start":
            task = self.tasks.setdefault(data["task_id"], TaskState())
            task.state, task.began = "running", time.monotonic()
        elif kind in ("task_complete", "task_error"):
            task = self.tasks.setdefault(data["task_id"], TaskState())
            task.state, task.ended = "failed" if kind == "task_error" else "done", time.monotonic()
