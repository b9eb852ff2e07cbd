"""A run on a terminal: past events scroll by, and a panel below shows what is running, drawn with `rich`.

Text from a model, a tool or a tape is never read as markup: all of it goes through `printable` into a `rich.text.Text`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

import kernai
from kernai._util.redaction import one_line, printable
from kit.definition import Definition, Verdict
from kit.plain_view import VERDICT_WIDTH, PlainView, calls_line, count, dollars, line_of, place_of
from kit.provider_choice import Choice
from kit.run import Run

KEPT = 2000  # characters that are kept of a block that is being streamed; the terminal shows its end


@dataclass
class Streaming:
    """A block or prose that is arriving: its kind, and the end of its text so far."""

    title: str = "prose"
    tail: str = ""

    def add(self, piece: str) -> None:
        """Add a piece, and drop text that is too old."""
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
        """How long the task has been running, or ran."""
        return 0.0 if self.began is None else (self.ended or time.monotonic()) - self.began


@dataclass
class LiveState:
    """Counts, tasks by their id, and streamed text by its scope. Not thread-safe."""

    began: float = field(default_factory=time.monotonic)
    step: int = 0
    usage: kernai.Usage = field(default_factory=kernai.Usage)
    calls: int = 0
    errors: int = 0
    tasks: dict[str, TaskState] = field(default_factory=dict)
    streams: dict[str, Streaming] = field(default_factory=dict)

    def take(self, event: kernai.Event) -> None:
        """Update the state by one event."""
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


# ----------------------------------------------------------------------------------------------------- what happens now


REFRESHES = 10  # a second
MOST_STREAMS = 3
MOST_TASKS = 10
STREAM_LINES = 3
TITLE = 60

STYLES = {
    "call": "cyan", "protocol": "cyan", "result": "green", "answer": "green", "done": "green", "error": "bold red",
    "forged": "bold magenta", "cut off": "magenta", "stalled": "magenta", "restart": "magenta",
    "plan": "blue", "json": "blue", "workflow": "yellow", "task": "yellow", "progress": "dim", "model": "dim",
    "built-in": "dim", "final": "bold green",
}
TASK_STYLES = {"waiting": "dim", "running": "yellow", "done": "green", "failed": "bold red"}
NARROW = 60  # with fewer columns, only a task's name is shown, without its bar and figures


def plain(text: str, style: str = "") -> Text:
    """Text of any origin, unchanged except for characters that would control a terminal."""
    return Text(printable(text), style=style)


def pair(label: str, text: Text, width: int = 9) -> Table:
    """A label and a text beside it, whose lines wrap in its own column."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=width, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(plain(label, STYLES.get(label, "")), text)
    return grid


class RichView(PlainView):
    """Draws a run on a console; as `on_event` it takes one event after the other."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__()
        self.console = console or Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
        self.state = LiveState()
        self._lock = threading.Lock()  # never held while printing: rich's own lock is taken there

    def begin(self, definition: Definition, choice: Choice) -> None:
        """Say what is about to run, and on which model."""
        lines = [plain(definition.description), *(plain(line, "dim") for line in choice.lines_of(definition.real))]
        title = plain(definition.name, "bold")
        self.console.print(Panel(Group(*lines), title=title, title_align="left", border_style="blue"))

    @contextmanager
    def live(self) -> Iterator[None]:
        """Shows what is running at the bottom of the terminal inside its ``with`` block."""
        self.state = LiveState()
        with Live(
            get_renderable=self._screen, console=self.console, refresh_per_second=REFRESHES, transient=True,
            vertical_overflow="crop",
        ):
            yield

    def __call__(self, event: kernai.Event) -> None:
        """Handle one event, and print its permanent lines."""
        with self._lock:
            self.state.take(event)
        line = line_of(event)
        if line is None:
            return
        if self._place != place_of(event):
            self._place = place_of(event)
            self.console.print(Rule(plain(self._place, "dim"), align="left", style="dim"))
        self.console.print(pair(line[0], plain(line[1])))

    def report(self, run: Run, files: Sequence[str]) -> None:
        """Print the outcome."""
        self.console.print(report_of(run))
        for line in files:
            self.console.print(plain(line, "dim"), soft_wrap=True)  # a path can be copied in one piece
        self.console.print(verdict_of(run))

    def _screen(self) -> RenderableType:
        """The current state; called by rich's own thread. A terminal with few lines shows as much as it can."""
        with self._lock:
            state = self.state
            streams = list(islice(state.streams.items(), MOST_STREAMS))
            parts: list[RenderableType] = [plain(state.figures(), "dim")]
            if state.tasks:
                parts.append(self._tasks(state.tasks))
            parts += [self._stream(scope, one) for scope, one in streams]
        return Group(Rule(style="dim"), *parts)

    def _stream(self, scope: str, streaming: Streaming) -> RenderableType:
        """The end of a block that is arriving."""
        width = max(self.console.width - 4, 1)
        text = plain(streaming.tail)
        text.expand_tabs(4)
        lines = text.wrap(self.console, width)[-STREAM_LINES:]
        title = one_line(f"{streaming.title} of {scope}" if scope else streaming.title, TITLE)
        return Group(plain(f"{title} ...", "cyan"), *(Text("  ") + line for line in lines))

    def _tasks(self, tasks: dict[str, TaskState]) -> RenderableType:
        """A bar for the workflow, and one for each task. If there are many tasks, running ones come first."""
        ended = sum(task.ended is not None for task in tasks.values())
        narrow = self.console.width < NARROW
        bar_width, name_width = (6, max(self.console.width - 18, 4)) if narrow else (20, self.console.width - 50)
        grid = Table.grid(padding=(0, 1))
        longest = max(cell_len(one_line(name, TITLE)) for name in ("tasks", *tasks))
        grid.add_column(width=min(name_width, longest), overflow="ellipsis", no_wrap=True)
        grid.add_column(width=bar_width)
        grid.add_column(overflow="ellipsis", no_wrap=True)
        grid.add_row(
            plain("tasks", "bold"), ProgressBar(len(tasks), ended, bar_width), plain(f"{ended} of {len(tasks)}")
        )
        order = ("running", "waiting", "failed", "done")
        shown = list(tasks.items())
        room = max(1, min(MOST_TASKS, self.console.height // 3))
        if len(shown) > room:
            shown.sort(key=lambda item: order.index(item[1].state))
        for name, task in shown[:room]:
            text = plain(task.state if narrow else _status(task), TASK_STYLES[task.state])
            grid.add_row(plain(one_line(name, TITLE)), _bar(task, bar_width), text)
        if len(shown) > room:
            grid.add_row(plain(f"and {len(shown) - room} more", "dim"), "", "")
        return grid


def _bar(task: TaskState, width: int) -> ProgressBar:
    """The bar of a task. A task has no known length, so the bar moves to and fro until it is full."""
    if task.state == "running":
        return ProgressBar(total=None, pulse=True, width=width)
    return ProgressBar(1, 1 if task.ended is not None else 0, width)


def _status(task: TaskState) -> str:
    if task.began is None:
        return task.state
    return f"{task.state}, {task.steps} step{'s' * (task.steps != 1)}, {task.seconds:.1f} s"


# ---------------------------------------------------------------------------------------------------------- the outcome


NAME = 40  # characters of a task's or a skill's name
STATES = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("not judged", "dim")}


def report_of(run: Run) -> RenderableType:
    """The answer, the figures, each expectation, and the notes."""
    parts: list[RenderableType] = [
        Text(),
        Panel(plain(run.outcome.text or "none"), title="answer", title_align="left", border_style=_colour(run)),
        _figures(run),
    ]
    tasks = run.outcome.task_results()
    if tasks:
        parts.append(_tasks(tasks))
    if run.verdicts:
        parts.append(_expectations(run.verdicts))
    return Group(*parts, *(plain(one_line(f"note: {note}", VERDICT_WIDTH), "yellow") for note in run.notes))


def verdict_of(run: Run) -> RenderableType:
    """The verdict: what is wrong, or that nothing is."""
    if run.passed:
        return plain(run.success_line, "green")
    return Group(*(plain(one_line(f"FAILED: {fault}", VERDICT_WIDTH), "bold red") for fault in run.faults))


def _figures(run: Run) -> RenderableType:
    outcome, result = run.outcome, run.outcome.result
    usage = result.usage
    table = Table(show_header=False, box=None, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in (
        ("stop", f"{result.stop_reason} after {result.steps} steps"),
        ("skill calls", calls_line(outcome, "skill")),
        ("protocol calls", calls_line(outcome, "protocol")),
        ("tokens", f"{count(usage.prompt_tokens)} in, {count(usage.completion_tokens)} out"),
        ("cost", dollars(usage.cost)),
        ("time", f"{run.seconds:.2f} s"),
    ):
        if value:
            table.add_row(name, plain(value))
    return table


def _tasks(results: dict[str, object]) -> RenderableType:
    table = Table(title="tasks", title_justify="left", expand=False)
    table.add_column("task", overflow="fold")
    table.add_column("result", overflow="fold")
    for name, result in results.items():
        failed = isinstance(result, str) and result.startswith("error: ")
        table.add_row(plain(one_line(name, NAME)), plain(one_line(result, 200), "red" if failed else ""))
    return table


def _expectations(verdicts: Sequence[Verdict]) -> RenderableType:
    table = Table(title="expectations", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("expectation", overflow="fold")
    if any(one.reason for one in verdicts):
        table.add_column("reason", overflow="fold")
    for one in verdicts:
        word, style = STATES[one.holds]
        cells = [Text(word, style=style), plain(one.name), plain(one.reason)]
        table.add_row(*cells[: len(table.columns)])
    return table


def _colour(run: Run) -> str:
    return "green" if run.passed else "red"
