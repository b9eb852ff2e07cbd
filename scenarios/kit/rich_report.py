"""A run's outcome, as panels and tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kernai.terminal_text import one_line, printable
from kit.event_lines import VERDICT_WIDTH, calls_line, count, dollars
from kit.outcome import Verdict
from kit.run import Run

NAME = 40  # characters of a task's or a skill's name
STATES = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("not judged", "dim")}


def report_of(run: Run) -> RenderableType:
    """The answer, the figures, each expectation, and what is worth a note."""
    parts: list[RenderableType] = [
        Text(),
        Panel(_plain(run.outcome.text or "none"), title="answer", title_align="left", border_style=_colour(run)),
        _figures(run),
    ]
    tasks = run.outcome.task_results()
    if tasks:
        parts.append(_tasks(tasks))
    if run.verdicts:
        parts.append(_expectations(run.verdicts))
    return Group(*parts, *(_plain(one_line(f"note: {note}", VERDICT_WIDTH), "yellow") for note in run.notes))


def verdict_of(run: Run) -> RenderableType:
    """What is wrong, or that nothing is."""
    if run.passed:
        return _plain(run.praise, "green")
    return Group(*(_plain(one_line(f"FAILED: {fault}", VERDICT_WIDTH), "bold red") for fault in run.faults))


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
            table.add_row(name, _plain(value))
    return table


def _tasks(results: dict[str, object]) -> RenderableType:
    table = Table(title="tasks", title_justify="left", expand=False)
    table.add_column("task", overflow="fold")
    table.add_column("result", overflow="fold")
    for name, result in results.items():
        failed = isinstance(result, str) and result.startswith("error: ")
        table.add_row(_plain(one_line(name, NAME)), _plain(one_line(result, 200), "red" if failed else ""))
    return table


def _expectations(verdicts: Sequence[Verdict]) -> RenderableType:
    table = Table(title="expectations", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("expectation", overflow="fold")
    if any(one.reason for one in verdicts):
        table.add_column("reason", overflow="fold")
    for one in verdicts:
        word, style = STATES[one.holds]
        cells = [Text(word, style=style), _plain(one.name), _plain(one.reason)]
        table.add_row(*cells[: len(table.columns)])
    return table


def _colour(run: Run) -> str:
    return "green" if run.passed else "red"


def _plain(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)
