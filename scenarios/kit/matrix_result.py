"""The results of a matrix, and the JSON file in which they are stored.

    {"format": 1, "started_at": "2026-11-21T19:00:00Z", "seconds": 81.2, "interrupted": false,
     "scenarios": ["inventory_lookup"], "pairs": ["tape"], "totals": {"tape": {"passed": 1, "failed": 0, ...}},
     "cells": [{"scenario": "inventory_lookup", "pair": "tape", "passed": true, "reason": null, "faults": [],
                "steps": 6, "tokens": 5321, "cost": null, "seconds": 0.2, ...}],
     "not_run": []}

An unknown figure is `null`, never 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from kit.definition import UsageError

MATRIX_FORMAT = 1
#: the figures of a cell and how they are written
SHAPES = {"steps": ",d", "tokens": ",d", "cost": ",.4f", "seconds": ",.2f"}


@dataclass(frozen=True)
class Figures:
    """What a run used. Tokens are prompt and completion together, cost is in dollars."""

    steps: int | None = None
    tokens: int | None = None
    cost: float | None = None
    #: the figures of the run; if there is no log, those of its process
    seconds: float | None = None

    @classmethod
    def from_log(cls, log: dict[str, Any], process_seconds: float) -> Figures:
        """The figures in a scenario's log, which may contain anything or nothing."""
        usage = log.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        seconds = _number(log.get("seconds"))
        seconds = round(process_seconds if seconds is None else seconds, 3)
        return cls.checked(log.get("steps"), usage.get("total_tokens"), usage.get("cost"), seconds)

    @classmethod
    def checked(cls, steps: object, tokens: object, cost: object, seconds: object) -> Figures:
        """Figures from JSON; those that are not numbers are unknown."""
        return cls(_count(steps), _count(tokens), _number(cost), _number(seconds))

    @classmethod
    def sum(cls, figures: Iterable[Figures]) -> Figures:
        """The sums of the known figures; None if none is known."""
        rows = list(figures)
        columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(cls)}
        known = {name: [value for value in values if value is not None] for name, values in columns.items()}
        return cls(**{name: sum(values) if values else None for name, values in known.items()})


@dataclass(frozen=True)
class CellResult:
    """The outcome of one scenario with one pair."""

    scenario: str
    pair: str
    passed: bool
    #: why it failed, in one line
    reason: str | None = None
    faults: tuple[str, ...] = ()
    figures: Figures = Figures()
    exit_status: int | None = None
    stop_reason: str | None = None
    provider: str | None = None
    model: str | None = None
    chosen_because: str | None = None
    #: the folder of its log and output
    folder: Path | None = None
    stderr_tail: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it among the cells of its matrix."""
        return self.scenario, self.pair

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON data, with the figures at the same level."""
        row = asdict(self)
        row.update(row.pop("figures"))
        return row | {"faults": list(self.faults), "folder": None if self.folder is None else str(self.folder)}


@dataclass(frozen=True)
class Matrix:
    """All cells that have an outcome, and those that an interrupt left without one."""

    started_at: str
    seconds: float
    scenarios: tuple[str, ...]
    pairs: tuple[str, ...]
    cells: tuple[CellResult, ...]
    not_run: tuple[tuple[str, str], ...] = ()

    def of_pair(self, pair: str) -> list[CellResult]:
        """The cells of one pair."""
        return [cell for cell in self.cells if cell.pair == pair]

    @property
    def failed(self) -> list[CellResult]:
        """The cells that did not pass."""
        return [cell for cell in self.cells if not cell.passed]

    def to_dict(self) -> dict[str, Any]:
        """The matrix as JSON data, with the totals of each pair."""
        return {
            "format": MATRIX_FORMAT,
            "started_at": self.started_at,
            "seconds": round(self.seconds, 3),
            "interrupted": bool(self.not_run),
            "scenarios": list(self.scenarios),
            "pairs": list(self.pairs),
            "totals": {pair: _totals(self.of_pair(pair)) for pair in self.pairs},
            "cells": [cell.to_dict() for cell in self.cells],
            "not_run": [{"scenario": scenario, "pair": pair} for scenario, pair in self.not_run],
        }

    def write(self, path: Path) -> None:
        """Replace the file atomically, so that no reader sees half of it. Raises `UsageError` if that fails."""
        text = json.dumps(self.to_dict(), indent=2, ensure_ascii=True) + "\n"
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(text, encoding="ascii")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise UsageError(f"cannot write {path}: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path) -> Matrix:
        """Read a file that `write` made. For any other file, raises a `UsageError` that says what is wrong."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} is not JSON") from error
        if not isinstance(data, dict) or data.get("format") != MATRIX_FORMAT or not isinstance(data.get("cells"), list):
            raise UsageError(f'{path} is not a matrix of format {MATRIX_FORMAT}: it lacks "format" or "cells"')
        cells = tuple(_cell(row, f"{path}: cells[{index}]") for index, row in enumerate(data["cells"]))
        if len({cell.key for cell in cells}) < len(cells):
            raise UsageError(f"{path} holds two cells of one scenario and pair")
        return cls(
            started_at=str(data.get("started_at", "")),
            seconds=_number(data.get("seconds")) or 0.0,
            scenarios=tuple(dict.fromkeys(cell.scenario for cell in cells)),
            pairs=tuple(dict.fromkeys(cell.pair for cell in cells)),
            cells=cells,
        )


def _totals(cells: list[CellResult]) -> dict[str, Any]:
    passed = sum(cell.passed for cell in cells)
    return {"passed": passed, "failed": len(cells) - passed, **asdict(Figures.sum(cell.figures for cell in cells))}


def _cell(row: object, where: str) -> CellResult:
    if not isinstance(row, dict):
        raise UsageError(f"{where} is not an object")
    for key, kind in (("scenario", str), ("pair", str), ("passed", bool)):
        if not isinstance(row.get(key), kind):
            raise UsageError(f'{where} has no "{key}" of type {kind.__name__}')
    reason = row.get("reason")
    return CellResult(
        scenario=row["scenario"],
        pair=row["pair"],
        passed=row["passed"],
        reason=reason if isinstance(reason, str) else None,
        figures=Figures.checked(*map(row.get, SHAPES)),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # NaN and infinity are not figures: JSON does not have them, but Python's reader accepts them
    return float(value) if 0 <= value < float("inf") else None
