"""The scenarios as programs, and their skills and data."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

import customer_support_triage as triage
import inventory_lookup
from fixtures import make_incident, make_products
from fixtures.fraud_investigation import make_payments
from kernai.recording_file import read_recording
from kit.answers import figure
from tests.scenarios.scenario_process import ENVIRONMENT, SCENARIOS, data_of, ran_here, recorded

INVENTORY = SCENARIOS / "inventory_lookup.py"

# --------------------------------------------------------------------------------------------------- good runs


def process(name: str, *arguments: str, python: tuple[str, ...] = (), **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, str(SCENARIOS / f"{name}.py"), "--offline", "--no-log", *arguments]
    return subprocess.run(command, env={**ENVIRONMENT, **more}, capture_output=True, encoding="utf-8", timeout=120, check=False)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("name", ["inventory_lookup", "approval_of_payments", "crash_and_resume", "fork_another_way"])
def test_the_standard_library_alone_is_enough_and_no_file_but_the_recording_is_left(name: str, tmp_path: Path) -> None:
    """-S hides every installed package. The recording of the run that was killed holds the events of both processes."""
    done = process(name, "--record", str(tmp_path / "run.jsonl"), python=("-S",), TMPDIR=str(tmp_path), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("ok: ")
    assert os.listdir(tmp_path) == ["run.jsonl"]
    types = [entry["event"] for entry in read_recording(tmp_path / "run.jsonl")]
    if name == "crash_and_resume":
        assert (types[0], types[-1], types.count("skill_execute"), types.count("llm_response")) == ("run_start", "result", 4, 5)


@pytest.mark.process
@pytest.mark.parametrize("name, task", [("crash_and_resume", f"scenario {SCENARIOS}/crash_and_resume.py"), ("run_matrix", "matrix")])
def test_with_a_python_that_has_no_kernai_one_line_says_what_to_run(name: str, task: str) -> None:
    done = process(name, python=("-S",), PYTHONPATH="")
    advice = f"`python3 dev.py {task}` runs it with one that has"
    assert (done.returncode, done.stderr) == (2, f"{name}: error: this Python has no kernai; {advice}\n")


def test_the_first_lines_say_what_is_real_and_no_control_character_is_printed() -> None:
    done = ran_here(INVENTORY, "--offline", "--no-log")
    first = done.stdout.splitlines()
    assert first[1] == "provider: the tape scenarios/tapes/inventory_lookup.json, hand-written (--offline)"
    assert first[2].startswith("Only the model's turns come from the tape; skills, database, loop and recording are real.")
    assert "\\u001b" in json.dumps(data_of(recorded("inventory_lookup"), "skill_result"))
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout) is None


# --------------------------------------------------------------------------------------------- skills and data


@pytest.mark.parametrize(
    "write, made", [
        (make_incident.write, SCENARIOS / "fixtures" / "incident_investigation"), (make_payments.write, SCENARIOS / "fixtures" / "fraud_investigation"),
        (lambda folder: make_products.write(folder / "products.csv"), SCENARIOS / "fixtures"),
    ],
)
def test_the_data_files_are_what_their_script_writes(tmp_path: Path, write: Callable[[Path], object], made: Path) -> None:
    write(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {name: (made / name).read_bytes() for name in written}
    assert written


def test_the_skills_cannot_change_the_database() -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        inventory_lookup.query("DELETE FROM stock")


@pytest.mark.parametrize("text, found", [
    ("CAFETIÈRE", {"Cafetie\u0300re for the workshop"}),
    ("%", {"100% linseed oil_pure"}),
    ("'; DROP TABLE stock; --", set()),
    ("<M8>", {"Washer <M8>"}),
    ("مصباح", {"مصباح عمل LED"}),
    ("🔩", {"🔧 Wrench set 🔩"}),
])
def test_a_search_takes_text_literally_but_ignores_case_and_ways_to_write_a_letter(text: str, found: set[str]) -> None:
    assert {row["name"] for row in inventory_lookup.find_stock(text=text)} == found


@pytest.mark.parametrize("ticket, order, euros, complaint", [
    ("T-903", "O-5533", "25.00", "25.00 euros are not due: for O-5533 24.90 were paid too much"),
    ("T-903", "O-5540", "10.00", "O-5540 is not an order of Tomás O'Hara"),
    ("T-907", "O-5188", "39.00", "39.00 euros are not due: for O-5188 0.00 were paid too much"),
    ("T-904", "O-5540", "480.00", "above your limit of 50.00"),
    ("T-999", "O-5540", "1.00", "there is no 'T-999' among the tickets"),
])
def test_the_help_desk_refuses_refunds_that_the_policy_forbids(ticket: str, order: str, euros: str, complaint: str) -> None:
    triage.desk.clear()
    with pytest.raises((PermissionError, ValueError), match=complaint):
        triage.refund(ticket, order, Decimal(euros))
    assert triage.desk.refunds == {}
    triage.refund("T-903", "O-5533", Decimal("24.90"))
    with pytest.raises(PermissionError, match=r"0\.00 were paid too much"):  # a second time
        triage.refund("T-903", "O-5533", Decimal("24.90"))


@pytest.mark.parametrize("answer, found", [
    ("**Total**: 1,234.50 EUR", "1234.50"), ("- total: 4 + 5 = 9", "9"), ("Total: 1\nTotal: 2", "2"),
    ("Total: unknown", None), ("Subtotal: 12", None), ("12 in total", None),
])
def test_a_figure_is_read_from_the_line_with_its_label(answer: str, found: str | None) -> None:
    if found is None:
        with pytest.raises(Exception, match="no line `Total: ` with a figure"):
            figure(answer, "Total")
    else:
        assert str(figure(answer, "Total")) == found
