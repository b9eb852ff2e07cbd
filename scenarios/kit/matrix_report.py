"""A matrix as it is read: a line for each cell while it is running, then the table, the totals, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from kernai.terminal_text import one_line, printable
from kit.matrix_cell import DEFAULT
from kit.matrix_result import SHAPES, CellResult, Figures, Matrix
from kit.matrix_view import Styled, Table, View

REASON_WIDTH = 500
LINE_WIDTH = 100  # of a reason beside the cell, while others are running
NUMBERS = tuple(f">{name}" for name in SHAPES)


def cell_line(cell: CellResult) -> list[Styled]:
    """One cell in one line, as it is shown when it is done."""
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
        view.line(Styled(f"interrupted: {len(matrix.not_run)} not run to the end", "bad"))


def outcome(*, passed: bool) -> Styled:
    """A word and its colour."""
    return Styled("pass", "good") if passed else Styled("FAIL", "bad")


def figures(taken: Figures, rows: Sequence[Figures] = ()) -> list[Styled]:
    """Figures as texts: `-` where unknown, and a `+` behind a sum of `rows` that lacks some of them."""
    texts = []
    for name, shape in SHAPES.items():
        value = attrgetter(name)(taken)
        lacking = "+" if value is not None and any(getattr(row, name) is None for row in rows) else ""
        dollar = "$" if name == "cost" else ""
        texts.append(Styled("-", "faint") if value is None else Styled(f"{dollar}{value:{shape}}{lacking}"))
    return texts


def _choice(cell: CellResult) -> str:
    if cell.provider is None:
        return f"{DEFAULT.label}: {printable(cell.scenario)} did not get as far as a choice"
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
    """Why cells of one pair failed, all in the same way, as a missing key makes every scenario fail."""
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
