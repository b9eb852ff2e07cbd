"""Comparing two matrices, and the file that holds one."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kit.definition import UsageError
from kit.matrix_comparison import BETTER, FIXED, MIXED, NEWLY_FAILING, SAME, STILL_FAILING, WORSE, Change, compare
from kit.matrix_result import CellResult, Figures, Matrix
from tests.scenarios.scenario_process import ran_here

MATRIX = Path(__file__).resolve().parents[2] / "scenarios" / "run_matrix.py"
FIGURES = Figures(steps=6, tokens=1000, cost=0.5, seconds=10.0)


def cell(passed: bool = True, scenario: str = "triage", pair: str = "a/b", **figures: Any) -> CellResult:
    return CellResult(scenario, pair, passed, None if passed else "why", figures=dataclasses.replace(FIGURES, **figures))


def matrix(*cells: CellResult) -> Matrix:
    pairs = tuple(dict.fromkeys(one.pair for one in cells))
    return Matrix("2026-11-21T00:00:00Z", 1.0, tuple(dict.fromkeys(one.scenario for one in cells)), pairs, cells)


@pytest.mark.parametrize("before, now, verdict", [
    (cell(), cell(), SAME),
    (cell(), cell(False), NEWLY_FAILING),
    (cell(False), cell(), FIXED),
    (cell(False), cell(False, steps=9), STILL_FAILING),
    (cell(), cell(steps=7), WORSE),
    (cell(), cell(tokens=999), BETTER),
    (cell(), cell(cost=0.6, steps=5), MIXED),
    (cell(), cell(cost=None), SAME),
    (cell(), cell(seconds=12.4), SAME),
    (cell(), cell(seconds=12.6), WORSE),
    (cell(seconds=0.1), cell(seconds=0.9), SAME),
])
def test_the_verdict_on_a_cell_compares_its_outcome_and_figures_with_those_before(before: CellResult, now: CellResult, verdict: str) -> None:
    assert Change(before, now).verdict == verdict


def compared(tmp_path: Path, before: Matrix, now: Matrix) -> subprocess.CompletedProcess[str]:
    before.write(tmp_path / "before.json")
    now.write(tmp_path / "now.json")
    return ran_here(MATRIX, "--compare", tmp_path / "before.json", tmp_path / "now.json")


def test_a_comparison_lists_new_failures_and_ends_with_status_1(tmp_path: Path) -> None:
    before = matrix(cell(), cell(scenario="lookup"), cell(scenario="memory"), cell(scenario="gone"))
    failing = dataclasses.replace(cell(False), reason="the\x1b[31m reason")
    now = matrix(failing, cell(scenario="lookup", steps=8), cell(scenario="memory"), cell(scenario="fresh"))
    done = compared(tmp_path, before, now)
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert "newly failing: triage with a/b" in lines
    assert "    the[31m reason" in lines
    assert "only before: gone with a/b (pass)" in lines
    assert "only now: fresh with a/b (pass)" in lines
    assert "6 -> 8 (+33%)" in done.stdout
    assert lines[-2] == "the 2 that passed both times: steps 12 -> 14 (+17%), tokens 2,000, cost 1.0000, seconds 20.00"
    assert lines[-1] == "1 newly failing, 1 worse, 1 same"


def test_a_comparison_without_a_new_failure_ends_with_status_0_and_may_be_of_two_models(tmp_path: Path) -> None:
    done = compared(tmp_path, matrix(cell(False)), matrix(cell()))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "0 newly failing, 1 fixed")
    done = compared(tmp_path, matrix(cell(pair="x/old")), matrix(cell(pair="y/new", tokens=500)))
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "two pairs, compared scenario by scenario: x/old before, y/new now"
    assert "1,000 -> 500 (-50%)" in done.stdout


def test_two_matrices_without_a_common_cell_are_not_compared() -> None:
    both = cell(), cell(pair="c/d")
    with pytest.raises(UsageError, match="nothing to compare"):
        compare(matrix(*both), matrix(*(dataclasses.replace(one, scenario="other") for one in both)))


@pytest.mark.parametrize("text, complaint", [
    *((text, "not a matrix of format 1") for text in ("[]", '{"format": 2, "cells": []}', '{"format": 1}')),
    ('{"format": 1, "cells": [7]}', r"cells\[0\] is not an object"),
    ('{"format": 1, "cells": [{"scenario": "a", "pair": "b"}]}', r'cells\[0\] has no "passed" of type bool'),
    ('{"format": 1, "cells": [{"scenario": 1}]}', r'cells\[0\] has no "scenario" of type str'),
    ("[" * 100_000, "is not JSON"),
    ('{"format": 1, "cells": [%s, %s]}' % (('{"scenario": "a", "pair": "b", "passed": true}',) * 2), "two cells of one"),
])
def test_a_file_that_is_not_a_matrix_is_refused_with_the_location_of_the_error(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(UsageError, match=complaint):
        Matrix.load(tmp_path / "m.json")


def test_invalid_figures_in_a_file_are_unknown(tmp_path: Path) -> None:
    row = '{"scenario": "a", "pair": "b", "passed": true, "steps": true, "tokens": -1, "cost": NaN, "seconds": "long"}'
    (tmp_path / "m.json").write_text(f'{{"format": 1, "cells": [{row}]}}')
    assert Matrix.load(tmp_path / "m.json").cells[0].figures == Figures()


def test_a_matrix_reads_back_as_it_was_written(tmp_path: Path) -> None:
    written = matrix(cell(), cell(False, scenario="lookup", cost=None))
    written.write(tmp_path / "m.json")
    assert Matrix.load(tmp_path / "m.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["m.json"]
