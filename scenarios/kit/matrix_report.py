"""The output of a matrix: a line for each cell while it is running, then the table, the totals, and the failures.

It is shown on a terminal with `rich`, or as plain lines. Both treat text as data: nothing is read as markup, and
callers pass only printable text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from kernai._util.redaction import one_line, printable
from kit.matrix_cell import DEFAULT
from kit.matrix_result import SHAPES, CellResult, Figures, Matrix
from kit.standard_output import is_drawn_on

#: styles of texts; `rich` shows them as colours
STYLES = {"good": "green", "bad": "bold red", "faint": "dim", "strong": "bold", "plain": ""}


@dataclass(frozen=True)
class Styled:
    """A text and its style, one of `STYLES`."""

    text: str
    style: str = "plain"


@dataclass
class Table:
    """Rows of styled texts under headings; a heading that begins with `>` is for a column of numbers."""

    headings: Sequence[str]
    rows: list[Sequence[Styled]] = field(default_factory=list)

    @property
    def columns(self) -> list[tuple[str, bool]]:
        """Each heading, and whether its column holds numbers."""
        return [(heading.removeprefix(">"), heading.startswith(">")) for heading in self.headings]

    def lines(self) -> list[str]:
        """As plain text: numbers to the right, two spaces between the columns."""
        titles = [title for title, _ in self.columns]
        texts = [titles, *([one.text for one in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        ways = [">" if is_number else "<" for _, is_number in self.columns]
        return ["  ".join(map(format, row, map("{}{}".format, ways, widths))).rstrip() for row in texts]


class View:
    """Shows lines, tables and progress as plain text."""

    def line(self, *parts: Styled) -> None:
        """Show one line made of parts, immediately, so that a reader of a pipe sees the progress."""
        print("".join(part.text for part in parts), flush=True)

    def table(self, table: Table) -> None:
        """Show aligned columns."""
        print("\n".join(table.lines()), flush=True)

    def progress(self, total: int) -> AbstractContextManager[Progress]:
        """Show how many of `total` are done, until the end of the ``with`` block."""
        return nullcontext(Progress(self, total))


class Progress:
    """The progress of the matrix: a line for each cell, with a count on its left."""

    def __init__(self, view: View, total: int) -> None:
        self._view = view
        self._total = total
        self._count = 0

    def done(self, *parts: Styled, is_bad: bool) -> None:
        """One more is done; the parts say how it went."""
        del is_bad
        self._count += 1
        self._view.line(Styled(f"[{self._count:{len(str(self._total))}}/{self._total}] "), *parts)


class RichView(View):
    """A terminal: colours, a table, a bar that moves."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(markup=False, highlight=False, emoji=False)

    def line(self, *parts: Styled) -> None:
        """Print one line, each part in its colour."""
        self._console.print(_text(parts), soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table that fits the terminal. Long texts are folded, not cut; numbers are neither folded nor cut."""
        from rich import box
        from rich.table import Table as RichTable

        shown = RichTable(header_style="bold", box=box.SIMPLE, show_edge=False, pad_edge=False, collapse_padding=True)
        for title, is_number in table.columns:
            justify: Any = "right" if is_number else "left"
            shown.add_column(_text([Styled(title)]), justify=justify, overflow="fold", no_wrap=is_number)
        for row in table.rows:
            shown.add_row(*(_text([part]) for part in row))
        self._console.print(shown)

    @contextmanager
    def progress(self, total: int) -> Iterator[Progress]:
        """A bar, with a line above it for each failure."""
        from rich import progress as shown

        bad = shown.TextColumn("{task.fields[bad]} failed")
        columns = (shown.BarColumn(), shown.MofNCompleteColumn(), bad, shown.TimeElapsedColumn())
        with shown.Progress(*columns, console=self._console, transient=True) as bar:
            yield _Bar(self, total, bar)


def _text(parts: Sequence[Styled]) -> Any:
    from rich.text import Text

    return Text.assemble(*((part.text, STYLES[part.style]) for part in parts))


class _Bar(Progress):
    def __init__(self, view: RichView, total: int, bar: Any) -> None:
        super().__init__(view, total)
        self._bad = 0
        self._bar = bar
        self._task = bar.add_task("", total=total, bad=0)

    def done(self, *parts: Styled, is_bad: bool) -> None:
        self._bad += is_bad
        self._bar.update(self._task, advance=1, bad=self._bad)
        if is_bad:
            self._view.line(*parts)


def view_for(*, plain: bool) -> View:
    """The view for standard output."""
    return RichView() if is_drawn_on(plain=plain) else View()


# ----------------------------------------------------------------------------------------------------------- the report


REASON_WIDTH = 500
LINE_WIDTH = 100  # characters of a reason that is shown while other cells are running
NUMBERS = tuple(f">{name}" for name in SHAPES)


def cell_line(cell: CellResult) -> list[Styled]:
    """One cell in one line, as it is shown when the cell has ended."""
    scenario, pair = printable(cell.scenario), printable(cell.pair)
    parts = [outcome(passed=cell.passed), Styled(f"  {scenario}  "), Styled(pair, "faint")]
    if cell.reason is not None:
        parts.append(Styled(f"  {one_line(cell.reason, LINE_WIDTH)}"))
    elif cell.figures.seconds is not None:
        parts.append(Styled(f"  {cell.figures.seconds:{SHAPES['seconds']}} s", "faint"))
    return parts


def show_matrix(matrix: Matrix, view: View) -> None:
    """The whole report."""
    view.line()
    view.table(_cells(matrix))
    view.line()
    view.table(_totals(matrix))
    alike: dict[tuple[str, str | None, str], list[CellResult]] = {}
    for cell in matrix.failed:
        alike.setdefault((cell.pair, cell.reason, cell.stderr_tail), []).append(cell)
    for cells in alike.values():
        _show_failure(cells, view)
    for choice in dict.fromkeys(_choice(cell) for cell in matrix.of_pair(DEFAULT.label)):
        view.line(Styled(choice, "faint"))
    if matrix.not_run:
        view.line()
        view.line(Styled(f"interrupted: {len(matrix.not_run)} not finished", "bad"))


def outcome(*, passed: bool) -> Styled:
    """The outcome as a word in its style."""
    return Styled("pass", "good") if passed else Styled("FAIL", "bad")


def figures(taken: Figures, rows: Sequence[Figures] = ()) -> list[Styled]:
    """Figures as texts: `-` if unknown, and a `+` after a sum over `rows` for which some values are unknown."""
    texts = []
    for name, shape in SHAPES.items():
        value = attrgetter(name)(taken)
        lacking = "+" if value is not None and any(getattr(row, name) is None for row in rows) else ""
        dollar = "$" if name == "cost" else ""
        texts.append(Styled("-", "faint") if value is None else Styled(f"{dollar}{value:{shape}}{lacking}"))
    return texts


def _choice(cell: CellResult) -> str:
    if cell.provider is None:
        return f"{DEFAULT.label}: {printable(cell.scenario)} ended before it chose a model"
    return f"{DEFAULT.label}: {cell.provider} {cell.model} ({cell.chosen_because})"


def _cells(matrix: Matrix) -> Table:
    table = Table(("scenario", "pair", "outcome", *NUMBERS))
    for cell in matrix.cells:
        shown = [Styled(printable(cell.scenario)), Styled(printable(cell.pair))]
        table.rows.append([*shown, outcome(passed=cell.passed), *figures(cell.figures)])
    return table


def _totals(matrix: Matrix) -> Table:
    table = Table(("total", ">pass", ">fail", *NUMBERS))
    for pair in matrix.pairs:
        table.rows.append(_total(printable(pair), matrix.of_pair(pair), "plain"))
    if len(matrix.pairs) > 1:
        table.rows.append(_total("all", matrix.cells, "strong"))
    return table


def _total(name: str, cells: Sequence[CellResult], style: str) -> list[Styled]:
    rows = [cell.figures for cell in cells]
    failed = sum(not cell.passed for cell in cells)
    counts = [
        Styled(str(len(cells) - failed), "good" if failed < len(cells) else "plain"),
        Styled(str(failed), "bad" if failed else "plain"),
    ]
    return [Styled(name, style), *counts, *figures(Figures.sum(rows), rows)]


def _show_failure(cells: Sequence[CellResult], view: View) -> None:
    """Shows why cells of one pair failed, all in the same way: a missing key, say, makes every scenario fail."""
    first = cells[0]
    names = ", ".join(printable(cell.scenario) for cell in cells)
    view.line()
    view.line(outcome(passed=False), Styled(f" {names} with {printable(first.pair)}", "strong"))
    for fault in dict.fromkeys((first.reason or "", *(fault for cell in cells for fault in cell.faults))):
        view.line(Styled(f"    {one_line(fault, REASON_WIDTH)}"))
    for line in first.stderr_tail.splitlines():
        view.line(Styled(f"    | {line}", "faint"))
    for folder in (cell.folder for cell in cells if cell.folder is not None):
        view.line(Styled(f"    log and output: {printable(str(folder))}", "faint"))
