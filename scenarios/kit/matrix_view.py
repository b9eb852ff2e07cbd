"""Where the matrix shows what it has to say: a terminal with `rich`, or plain lines of text.

Both take text as data: nothing is read as markup, and whoever gives text made it printable before.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from kit import standard_output

#: how a text is meant; to `rich` these are colours
STYLES = {"good": "green", "bad": "bold red", "faint": "dim", "strong": "bold", "plain": ""}


@dataclass(frozen=True)
class Styled:
    """A text and how it is meant, one of `STYLES`."""

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


class View(Protocol):
    """Something that shows lines, tables and progress."""

    def line(self, *parts: Styled) -> None:
        """Show one line made of parts."""

    def table(self, table: Table) -> None:
        """Show a table."""

    def progress(self, total: int) -> AbstractContextManager[Progress]:
        """Show how many of `total` are done, until the block is left."""


class Progress(Protocol):
    """How far the matrix has come."""

    def done(self, *parts: Styled, is_bad: bool) -> None:
        """One more is done; the parts say how it went."""


class PlainView:
    """Lines of text, one for each thing that happened."""

    def line(self, *parts: Styled) -> None:
        """Print at once: whoever reads a pipe wants to know how far it is."""
        print("".join(part.text for part in parts), flush=True)

    def table(self, table: Table) -> None:
        """Print aligned columns."""
        print("\n".join(table.lines()), flush=True)

    def progress(self, total: int) -> AbstractContextManager[Progress]:
        """Count on the left."""
        return nullcontext(_PlainProgress(self, total))


class _PlainProgress:
    def __init__(self, view: PlainView, total: int) -> None:
        self._view = view
        self._total = total
        self._count = 0

    def done(self, *parts: Styled, is_bad: bool) -> None:
        del is_bad
        self._count += 1
        self._view.line(Styled(f"[{self._count:{len(str(self._total))}}/{self._total}] "), *parts)


class RichView:
    """A terminal: colours, a table, a bar that moves."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(markup=False, highlight=False, emoji=False)

    def line(self, *parts: Styled) -> None:
        """Print one line, each part in its colour."""
        self._console.print(_text(parts), soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table that fits the terminal; a long text is folded, not cut, and a number neither."""
        from rich import box
        from rich.table import Table as RichTable

        shown = RichTable(header_style="bold", box=box.SIMPLE, show_edge=False, pad_edge=False, collapse_padding=True)
        for title, is_number in table.columns:
            justify: Any = "right" if is_number else "left"
            shown.add_column(_text([Styled(title)]), justify=justify, overflow="fold", no_wrap=is_number)
        for row in table.rows:
            shown.add_row(*(_text([part]) for part in row))
        self._console.print(shown)

    def progress(self, total: int) -> AbstractContextManager[Progress]:
        """A bar; above it a line for each that went wrong."""
        return _Bar(self._console, self, total)


def _text(parts: Sequence[Styled]) -> Any:
    from rich.text import Text

    return Text.assemble(*((part.text, STYLES[part.style]) for part in parts))


class _Bar:
    def __init__(self, console: Any, view: RichView, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[bad]} failed"), TimeElapsedColumn())
        self._view = view
        self._bad = 0
        self._bar = Progress(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=total, bad=0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def done(self, *parts: Styled, is_bad: bool) -> None:
        self._bad += is_bad
        self._bar.update(self._task, advance=1, bad=self._bad)
        if is_bad:
            self._view.line(*parts)


def view_for_stdout(*, is_plain: bool = False) -> View:
    """`rich` where standard output is a terminal and it is installed; plain text otherwise."""
    if is_plain or not standard_output.can_be_drawn_on():
        return PlainView()
    try:
        return RichView()
    except ImportError:
        return PlainView()
