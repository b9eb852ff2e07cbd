"""Compares two matrices: what fails now, what was fixed, and what takes more or less than before.

Cells are compared by scenario and pair. If each matrix has one pair and the pairs differ, cells are compared by
scenario, so that one model can be compared to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from kernai._util.redaction import one_line, printable
from kit.definition import UsageError
from kit.matrix_report import REASON_WIDTH, Styled, Table, View, outcome
from kit.matrix_result import SHAPES, CellResult, Matrix

# Times depend on the machine too: a difference counts only if it is large both absolutely and relatively.
NOISE_SECONDS = 1.0
NOISE_SHARE = 0.25

NEWLY_FAILING, FIXED, STILL_FAILING = "newly failing", "fixed", "still failing"
WORSE, BETTER, MIXED, SAME = "worse", "better", "mixed", "same"
STYLES = {NEWLY_FAILING: "bad", WORSE: "bad", FIXED: "good", BETTER: "good", SAME: "faint"}


@dataclass(frozen=True)
class Change:
    """The same cell before and now."""

    before: CellResult
    now: CellResult

    @property
    def verdict(self) -> str:
        """The verdict on the change, in a word or two. Figures count only if the cell passed both times."""
        if self.now.passed and not self.before.passed:
            return FIXED
        if not self.now.passed:
            return NEWLY_FAILING if self.before.passed else STILL_FAILING
        signs = {1 if now > before else -1 for _, before, now in self.differences()}
        return SAME if not signs else MIXED if len(signs) > 1 else WORSE if 1 in signs else BETTER

    def values(self, name: str) -> tuple[float | None, float | None]:
        """A figure before and now."""
        return getattr(self.before.figures, name), getattr(self.now.figures, name)

    def differences(self) -> Iterator[tuple[str, float, float]]:
        """The name of each figure that differs, and its values; only where both are known."""
        for name in SHAPES:
            before, now = self.values(name)
            if before is not None and now is not None and differs(name, before, now):
                yield name, before, now


def differs(name: str, before: float, now: float) -> bool:
    """Whether a figure has changed by more than measurement noise."""
    change = abs(now - before)
    return change > max(NOISE_SECONDS, NOISE_SHARE * min(before, now)) if name == "seconds" else change > 0


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`."""

    changes: tuple[Change, ...]
    #: cells that only one of the matrices has
    only_before: tuple[CellResult, ...]
    only_now: tuple[CellResult, ...]
    #: the two pairs, if different pairs were compared
    pairs: tuple[str, str] | None = None

    def of(self, verdict: str) -> list[Change]:
        """The changes of one verdict."""
        return [change for change in self.changes if change.verdict == verdict]


def compare(before: Matrix, now: Matrix) -> Comparison:
    """Compare two matrices. Raises `UsageError` if they have nothing in common."""
    pairs = _exchanged(before, now)
    name = attrgetter("scenario") if pairs else attrgetter("key")
    old = {name(cell): cell for cell in before.cells}
    new = {name(cell): cell for cell in now.cells}
    changes = tuple(Change(old[key], new[key]) for key in new if key in old)
    if not changes:
        raise UsageError("the two matrices have no scenario and pair in common: there is nothing to compare")
    return Comparison(
        changes=changes,
        only_before=tuple(old[key] for key in old if key not in new),
        only_now=tuple(new[key] for key in new if key not in old),
        pairs=pairs,
    )


def _exchanged(before: Matrix, now: Matrix) -> tuple[str, str] | None:
    """The pairs of two matrices that have one pair each, if these differ."""
    if len(before.pairs) == len(now.pairs) == 1 and before.pairs != now.pairs:
        return before.pairs[0], now.pairs[0]
    return None


# --------------------------------------------------------------------------------------------------- as it is read


def show_comparison(comparison: Comparison, view: View) -> None:
    """Shows the changes, then the sums, then one line with the conclusion."""
    if comparison.pairs is not None:
        before, now = map(printable, comparison.pairs)
        view.line(Styled(f"two pairs, compared scenario by scenario: {before} before, {now} now"))
    changed = [change for change in comparison.changes if change.verdict != SAME]
    if changed:
        view.table(_table(changed))
    _show_reasons(comparison, view)
    for title, cells in (("only before", comparison.only_before), ("only now", comparison.only_now)):
        for cell in cells:
            view.line(Styled(f"{title}: {printable(cell.scenario)} with {printable(cell.pair)} ("),
                      outcome(passed=cell.passed), Styled(")"))
    view.line(*_sums(comparison))
    view.line(*_summary(comparison))


def _table(changes: list[Change]) -> Table:
    table = Table(("scenario", "pair", "verdict", ">steps", ">tokens", ">cost", ">seconds"))
    for change in changes:
        verdict = change.verdict
        table.rows.append([
            Styled(printable(change.now.scenario)),
            Styled(printable(change.now.pair)),
            Styled(verdict, STYLES.get(verdict, "plain")),
            *(_movement(name, *change.values(name)) for name in SHAPES),
        ])
    return table


def _movement(name: str, before: float | None, now: float | None) -> Styled:
    """A figure before and now; only one value if both are the same."""
    old, new = ("-" if value is None else f"{value:{SHAPES[name]}}" for value in (before, now))
    if before is None or now is None:
        return Styled(old if old == new else f"{old} -> {new}", "faint")
    if not differs(name, before, now):
        return Styled(new, "faint")
    share = f" ({(now - before) / before:+.0%})" if before else ""
    return Styled(f"{old} -> {new}{share}", "bad" if now > before else "good")


def _show_reasons(comparison: Comparison, view: View) -> None:
    for change in comparison.of(NEWLY_FAILING):
        cell = change.now
        view.line(Styled(f"{NEWLY_FAILING}: {printable(cell.scenario)} with {printable(cell.pair)}", "bad"))
        view.line(Styled(f"    {one_line(cell.reason or 'no reason is recorded', REASON_WIDTH)}"))


def _sums(comparison: Comparison) -> list[Styled]:
    """Sums over the cells that passed both times, each over those for which the figure is known both times.

    A run that failed early took little, and a run without a figure nothing: neither is an improvement.
    """
    both = [change for change in comparison.changes if change.before.passed and change.now.passed]
    parts = [Styled(f"the {len(both)} that passed both times: ")]
    for name in SHAPES:
        known = [(before, now) for before, now in (change.values(name) for change in both) if None not in (before, now)]
        before, now = map(sum, zip(*known, strict=True)) if known else (None, None)
        parts += [Styled(f"{name} "), _movement(name, before, now), Styled(", ")]
    return parts[:-1]


def _summary(comparison: Comparison) -> list[Styled]:
    parts: list[Styled] = []
    for verdict in (NEWLY_FAILING, FIXED, STILL_FAILING, WORSE, BETTER, MIXED, SAME):
        count = len(comparison.of(verdict))
        if count or verdict == NEWLY_FAILING:
            style = STYLES.get(verdict, "plain") if count else "plain"
            parts += [Styled(f"{count} {verdict}", style), Styled(", ")]
    return parts[:-1]
