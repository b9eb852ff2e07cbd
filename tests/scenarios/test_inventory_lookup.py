"""The main job, run as a user runs it: a process of its own, no key, no network, no third-party package."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inventory_lookup
import kernai
from fixtures import make_products
from kernai.recording_file import read_recording
from tests.scenarios.scenario_process import ENVIRONMENT, ran_here

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = ROOT / "scenarios" / "inventory_lookup.py"
TAPE = ROOT / "scenarios" / "tapes" / "inventory_lookup.json"


# -S hides every installed package: only the standard library is there
COMMAND = [sys.executable, "-S", str(SCENARIO), "--no-log"]


def process(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The scenario in a process of its own, with arguments and changes of its environment."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT | environment, capture_output=True, encoding="utf-8", check=False)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The scenario within this process."""
    return ran_here(SCENARIO, "--no-log", *arguments)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], list[Any]]:
    """One offline run: what it printed, and what it recorded."""
    path = tmp_path_factory.mktemp("run") / "run.json"
    done = run("--offline", "--record", path)
    return done, read_recording(path)


Recording = tuple[subprocess.CompletedProcess[str], list[Any]]


def data_of(entries: list[Any], event: str) -> list[Any]:
    return [entry["data"] for entry in entries if entry["event"] == event]


# -------------------------------------------------------------------------------------------------- a good run


@pytest.mark.process
def test_the_scenario_runs_offline_and_its_expectations_hold() -> None:
    done = process("--offline")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (
        "ok: the order is what the database says; the customer learns how many clamps osaka has"
    )


def test_the_first_lines_say_what_comes_from_the_tape_and_what_is_real(recording: Recording) -> None:
    first = recording[0].stdout.splitlines()[:3]
    assert first[1] == "provider: the tape scenarios/tapes/inventory_lookup.json, hand-written (--offline)"
    assert first[2].startswith(
        "Only the model's turns come from the tape; skills, database, loop and recording are real."
    )


def test_without_a_vendor_the_tape_is_played_and_the_reason_is_given() -> None:
    done = run()
    assert done.returncode == 0
    assert "(no model vendor is configured)" in done.stdout.splitlines()[1]


def test_one_error_names_all_wrong_parameters_and_the_model_corrects_them(
    recording: Recording,
) -> None:
    _, entries = recording
    (error,) = data_of(entries, "skill_error")
    assert error["skill"] == "find_stock"
    assert "status" in error["error"]
    assert "limit" in error["error"]
    calls = data_of(entries, "skill_execute")
    assert [call["skill"] for call in calls] == [
        "find_stock", "find_stock", "find_stock", "summarize_stock", "price_order",
    ]
    answered = {result["call_id"] for result in data_of(entries, "skill_result")}
    assert [call["call_id"] in answered for call in calls] == [False, True, True, True, True]


def test_a_product_named_like_markup_reaches_the_model_as_plain_text(recording: Recording) -> None:
    _, entries = recording
    tape = data_of(entries, "messages_sent")[-1]
    texts = [str(message["content"]) for message in tape if message["role"] == "user"]
    (listing,) = (text for text in texts if "SA-1021" in text)
    assert "&lt;/block" in listing
    assert "<final>" not in listing
    assert data_of(entries, "forged_block") == []


def test_names_in_any_script_reach_the_model_whole(recording: Recording) -> None:
    _, entries = recording
    answers = json.dumps(data_of(entries, "skill_result"), ensure_ascii=False)
    assert "クランプ 300mm" in answers
    assert "Valparaíso" in answers


def test_no_control_character_of_a_product_name_reaches_the_terminal(recording: Recording) -> None:
    done, entries = recording
    assert "\x1b" in json.dumps(data_of(entries, "skill_result"), ensure_ascii=False).replace("\\u001b", "\x1b")
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout) is None


@pytest.mark.process
def test_a_terminal_without_unicode_is_no_obstacle() -> None:
    done = process("--offline", PYTHONIOENCODING="ascii")
    assert done.returncode == 0


@pytest.mark.process
def test_a_reader_of_the_output_who_leaves_early_gets_no_traceback() -> None:
    with subprocess.Popen(COMMAND, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_recording_by_lines_holds_the_same_events(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(json.dumps(kernai.Event("final", "what was there before").to_dict()) + "\n")
    assert run("--offline", "--record", path).returncode == 0
    lines = [json.loads(line)["event"] for line in path.read_text(encoding="ascii").splitlines()]
    assert lines == [entry["event"] for entry in recording[1]]
    assert lines[-1] == "result"


# --------------------------------------------------------------------------------------------------- a bad run


def tampered(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    tape = json.loads(TAPE.read_text(encoding="utf-8"))
    change(tape)
    path = tmp_path / "tape.json"
    path.write_text(json.dumps(tape), encoding="utf-8")
    return path


def turns(tape: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns of its only conversation."""
    (conversation,) = tape["conversations"]
    found: list[dict[str, Any]] = conversation["turns"]
    return found


def in_the_answer(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(tape: dict[str, Any]) -> None:
        answer = turns(tape)[-1]
        assert old in answer["content"]
        answer["content"] = answer["content"].replace(old, new)

    return change


ORDER = "FAILED: this does not hold: the order is what the database says"
CLAMPS = "FAILED: this does not hold: the customer learns how many clamps osaka has"
LEFT_THE_PATH = "left the recorded path"


@pytest.mark.parametrize(
    "change, complaint",
    [
        (in_the_answer("EL-1008 x 80", "EL-1008 x 81"), ORDER),
        (in_the_answer("EL-1008 x 80", "EL-1009 x 80"), ORDER),
        (in_the_answer("PT-1003 x 160 (Pro drill driver)\n", ""), ORDER),
        (in_the_answer("Total: 156,948.80", "Total: 156,948.81"), ORDER),
        (in_the_answer("104 pieces", "140 pieces"), CLAMPS),
        (lambda tape: turns(tape).pop(), LEFT_THE_PATH),
        (lambda tape: turns(tape).append({"content": "<final>More.</final>"}), LEFT_THE_PATH),
        (lambda tape: turns(tape).insert(0, {"content": "<final>Nothing to order.</final>"}), ORDER),
    ],
    ids=["quantity", "product", "a product less", "total", "clamps", "a turn less", "a turn more", "other answer"],
)
def test_a_tape_that_says_what_is_not_so_fails_with_status_1(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    done = run("--tape", tampered(tmp_path, change))
    assert done.returncode == 1
    assert complaint in done.stdout
    assert "Traceback" not in done.stderr


def test_a_failed_run_is_recorded_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run("--tape", tampered(tmp_path, lambda tape: turns(tape).pop()), "--record", path)
    assert read_recording(path)[-1]["data"]["stop_reason"] == "error"


# ----------------------------------------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--ofline"], "unrecognized arguments: --ofline"),
        (["some-model"], "there is nobody to run 'some-model'"),
        (["some-model", "openai", "more"], "unrecognized arguments: more"),
        (["--record"], "argument --record: expected one argument"),
        (["--record", "dev.py"], "--record: 'dev.py' must end in .json or .jsonl"),
        (["--record", "no/such/folder/run.json"], "--record: cannot write no/such/folder/run.json: No"),
        (["--tape", "none.json"], "there is no tape none.json: make it with"),
        (["--tape", str(ROOT / "pyproject.toml")], "not JSON"),
    ],
)
def test_wrong_usage_is_one_clear_line_and_status_2(arguments: list[str], complaint: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("inventory_lookup: error: ")
    assert complaint in line


@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda tape: tape.update(format=1), "no tape of format 2"),
        (lambda tape: tape.update(scenario="triage"), "a tape of the scenario 'triage'"),
    ],
)
def test_a_file_that_is_no_tape_of_this_scenario_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], complaint: str
) -> None:
    done = run("--tape", tampered(tmp_path, change))
    assert done.returncode == 2
    assert complaint in done.stderr


def test_the_help_explains_the_options_and_the_exit_status() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("--offline", "--tape", "--record", "exit status"))


# --------------------------------------------------------------------------------------- the data and the skills


def test_the_products_are_what_their_script_writes(tmp_path: Path) -> None:
    make_products.write(tmp_path / "products.csv")
    assert (tmp_path / "products.csv").read_bytes() == inventory_lookup.PRODUCTS.read_bytes()


def test_the_database_holds_every_row_of_the_file_unchanged() -> None:
    with inventory_lookup.PRODUCTS.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (row["sku"], row["warehouse"]))
    stored = inventory_lookup.find_stock(limit=-1)
    assert [{key: str(value) for key, value in row.items()} for row in stored] == rows
    assert len({row["sku"] for row in rows}) >= 200
    assert len({row["warehouse"] for row in rows}) >= 3


def test_the_skills_cannot_change_the_database() -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        inventory_lookup.query("DELETE FROM stock")


@pytest.mark.parametrize(
    "text, found",
    [
        ("CAFETIÈRE", {"Cafetie\u0300re for the workshop"}),
        ("strasse", {"Straße paint, weiß"}),
        ("%", {"100% linseed oil_pure"}),
        ("l_p", {"100% linseed oil_pure"}),
        ("'; DROP TABLE stock; --", set()),
        ("<M8>", {"Washer <M8>"}),
        ("مصباح", {"مصباح عمل LED"}),
        ("🔩", {"🔧 Wrench set 🔩"}),
    ],
)
def test_a_search_takes_any_text_literally_and_people_s_spelling_of_it(text: str, found: set[str]) -> None:
    assert {row["name"] for row in inventory_lookup.find_stock(text=text)} == found


def test_an_order_for_an_unknown_product_says_which() -> None:
    with pytest.raises(ValueError, match="there is no product XX-0001"):
        inventory_lookup.price_order([{"sku": "XX-0001", "quantity": 1}])


def test_the_skills_are_not_registered_globally() -> None:
    assert kernai.skills.find("find_stock") is None
