"""A run on a terminal: what happened scrolls by, and a panel below shows what is running, drawn with `rich`.

Nothing that came from a model, a tool or a tape is ever read as markup: all of it goes through `printable` into a
`rich.text.Text`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

import kernai
from kernai.terminal_text import one_line, printable
from kit.definition import Definition
from kit.event_lines import line_of, place_of
from kit.live_state import LiveState, Streaming, TaskState
from kit.provider_choice import Choice
from kit.rich_report import report_of, verdict_of
from kit.run import Run

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
NARROW = 60  # columns below which a task's name has the room, and not its bar and figures


def plain(text: str, style: str = "") -> Text:
    """Text of whatever origin, to the letter and without what would steer a terminal."""
    return Text(printable(text), style=style)


def pair(label: str, text: Text, width: int = 9) -> Table:
    """A label and a text beside it, which wraps under itself."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=width, no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(plain(label, STYLES.get(label, "")), text)
    return grid


class RichView:
    """Draws a run on a console; as `on_event` it takes one event after the other."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
        self.state = LiveState()
        self._lock = threading.Lock()  # never held while printing: rich's own lock is taken there
        self._place = ""

    def begin(self, definition: Definition, choice: Choice) -> None:
        """Say what is about to run, and on which model."""
        lines = [plain(definition.description), *(plain(line, "dim") for line in choice.lines_of(definition.real))]
        title = plain(definition.name, "bold")
        self.console.print(Panel(Group(*lines), title=title, title_align="left", border_style="blue"))

    @contextmanager
    def live(self) -> Iterator[None]:
        """While in it, the lower end of the terminal shows what is going on."""
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
        """What is going on, as it is now; called by rich's own thread. A low terminal shows as much as it can."""
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
        """A bar for the workflow, and one for each task; where they are many, those that are going on go first."""
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
    """A task has no known length, so its bar moves to and fro until it is full."""
    if task.state == "running":
        return ProgressBar(total=None, pulse=True, width=width)
    return ProgressBar(1, 1 if task.ended is not None else 0, width)


def _status(task: TaskState) -> str:
    if task.began is None:
        return task.state
    return f"{task.state}, {task.steps} step{'s' * (task.steps != 1)}, {task.seconds:.1f} s"
