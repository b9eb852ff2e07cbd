"""The matrix, run as a user runs it, over real processes that pass, fail, crash, hang or report wrongly."""

from __future__ import annotations

import json
import re
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario_process import ENVIRONMENT, ROOT, ran_here
from tests.scenarios.test_live_view import Terminal

MATRIX = ROOT / "scenarios" / "run_matrix.py"
PATIENCE = 60  # seconds for a process or a socket: far more than it takes, so that only a hang fails
PAIR = "played/mock-1"

HEAD = """
import os, signal, socket, subprocess, sys
import kernai
from harness import Scenario
from kit.known_providers import register_provider
def played():
    return kernai.MockProvider("<final>forty-two</final>").with_token_counter(
        lambda messages, content: {"prompt_tokens": 90, "completion_tokens": 10})
register_provider("played", played, kernai.Model("mock-1", cost=(1000.0, 1000.0)))
scenario = Scenario("NAME", description="a scenario of the tests")
scenario.instructions("Answer.")
scenario.input("What is it?")
"""
TAIL = """
if __name__ == "__main__":
    scenario.main()
"""
# A grandchild that outlives its parent and ignores Ctrl-C; the test sees its end as the end of its connection.
HANGS = """
GRANDCHILD = '''
import signal, socket, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
    line.recv(1)
'''
@scenario.prepare
def hang():
    subprocess.Popen([sys.executable, "-c", GRANDCHILD, os.environ["PORT"]]).wait()
"""
MIDDLES = {
    "passes": 'scenario.expect(lambda outcome: "forty" in outcome.text)',
    "disagrees": 'scenario.expect(lambda outcome: "seven" in outcome.text, name="it is seven", reason="\\x1b[31mno\\x1b[0m")',
    "crashes": 'scenario.prepare(lambda: (sys.stderr.write("\\x1b]0;stolen\\x07last words\\n"), sys.stderr.flush(), os._exit(3)))',
    "is_killed": "scenario.prepare(lambda: os.kill(os.getpid(), signal.SIGKILL))",
    "says_nothing": "scenario.prepare(lambda: os._exit(0))",
    "lies": 'scenario.prepare(lambda: (open(sys.argv[2] + "/x.json", "w").write(\'{"passed": "yes"}\'), os._exit(0)))',
    "is_another": 'scenario.prepare(lambda: (open(sys.argv[2] + "/x.json", "w").write(\'{"passed": true, "scenario": "a"}\'), os._exit(0)))',
    "fails_in_the_end": "import atexit; atexit.register(lambda: os._exit(1))",
    "hangs": HANGS,
    "never_begins": "",
}


def folder_with(folder: Path, *names: str, **renamed: str) -> Path:
    """Make a folder with some of the test scenarios, perhaps under other names."""
    folder.mkdir(exist_ok=True)
    for name, middle in {**dict(zip(names, names, strict=True)), **renamed}.items():
        (folder / f"{name}.py").write_text(HEAD.replace("NAME", name) + MIDDLES[middle] + TAIL)
    return folder


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, str(MATRIX), *map(str, arguments)]


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=ENVIRONMENT | environment, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=False
    )


# ------------------------------------------------------------------------------------- outcomes of every kind

Ran = tuple[subprocess.CompletedProcess[str], dict[str, Any]]
SETTLED = tuple(name for name in MIDDLES if name not in ("hangs", "never_begins"))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run one matrix over scenarios that end in every way."""
    base = tmp_path_factory.mktemp("matrix")
    folder, output = folder_with(base / "scenarios", *SETTLED), base / "matrix.json"
    done = run("--folder", folder, "--pair", PAIR, "--jobs", "4", "--output", output)
    return done, json.loads(output.read_text())


@pytest.mark.process
@pytest.mark.parametrize("name, reason", [
    ("passes", None),
    ("disagrees", "expectation not met: it is seven; [31mno[0m"),
    ("crashes", "exit status 3"),
    ("is_killed", "killed by signal SIGKILL"),
    ("says_nothing", "it wrote no log"),
    ("lies", "its log is not that of a scenario"),
    ("is_another", "its log is of the scenario 'a'"),
    ("fails_in_the_end", "its log says that it passed, but the exit status is 1"),
])
def test_a_cell_passes_only_if_both_its_log_and_its_exit_status_say_so(ran: Ran, name: str, reason: str | None) -> None:
    (cell,) = (cell for cell in ran[1]["cells"] if cell["scenario"] == name)
    assert (cell["passed"], cell["reason"]) == (reason is None, reason)


@pytest.mark.process
def test_the_matrix_has_the_figures_of_each_cell_and_their_sums(ran: Ran) -> None:
    _, matrix = ran
    (cell,) = (cell for cell in matrix["cells"] if cell["scenario"] == "passes")
    assert {key: cell[key] for key in ("pair", "provider", "model", "steps", "tokens", "cost", "stop_reason")} == {
        "pair": PAIR, "provider": "played", "model": "mock-1", "steps": 1, "tokens": 100, "cost": 0.1, "stop_reason": "final",
    }
    (crashed,) = (cell for cell in matrix["cells"] if cell["scenario"] == "crashes")
    assert (crashed["steps"], crashed["tokens"], crashed["cost"]) == (None, None, None)
    totals = matrix["totals"][PAIR]
    assert (totals["passed"], totals["failed"], totals["tokens"]) == (1, len(SETTLED) - 1, 300)
    assert (matrix["format"], matrix["pairs"], matrix["scenarios"]) == (1, [PAIR], sorted(SETTLED))


@pytest.mark.process
def test_the_report_has_a_line_per_cell_a_table_totals_and_reasons(ran: Ran) -> None:
    done, _ = ran
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert done.stderr == ""
    assert len([line for line in lines if re.match(rf"\[\d/{len(SETTLED)}\] (pass|FAIL)  ", line)]) == len(SETTLED)
    assert "passes            played/mock-1  pass         1     100  $0.1000" in done.stdout
    assert "played/mock-1     1     7     3+    300+  $0.3000+" in done.stdout
    assert "    | ]0;stolenlast words" in lines
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout) is None


@pytest.mark.process
def test_scenarios_are_chosen_by_name_or_glob_and_pair_may_be_repeated(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "scenarios", "passes", "disagrees", "crashes")
    output = tmp_path / "matrix.json"
    pairs = ("--pair", "played", "--pair", PAIR, "--pair", "played/other/model", "--pair", "played/other_model", "--pair", PAIR)
    done = run("pass*", "passes.py", "--folder", folder, *pairs, "--output", output)
    assert done.returncode == 0
    cells = json.loads(output.read_text())["cells"]
    assert [(cell["pair"], cell["model"]) for cell in cells] == [
        ("played", "mock-1"), (PAIR, "mock-1"), ("played/other/model", "other/model"), ("played/other_model", "other_model"),
    ]
    lines = [json.loads(line) for line in (folder / "logs" / "manifest.json").read_text().splitlines()]
    assert [json.loads((folder / "logs" / line["log"]).read_text())["scenario"] for line in lines] == ["passes"] * 4


@pytest.mark.process
def test_without_a_pair_the_scenario_chooses_and_one_that_cannot_run_is_reported_once(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "scenarios", "passes", "disagrees")
    done = run("passes", "--folder", folder, PROVIDER="played")
    assert done.returncode == 0
    assert "default: played mock-1 (PROVIDER in the environment)" in done.stdout.splitlines()
    assert len(list((folder / "logs").glob("matrix-*.json"))) == 1
    done = run("--folder", folder, "--pair", "opnai/gpt-4o")
    assert done.returncode == 1
    reasons = done.stdout.partition("FAIL disagrees, passes with opnai/gpt-4o\n")[2].splitlines()
    assert reasons[0].startswith("    unknown provider 'opnai': did you mean 'openai'?")


# ------------------------------------------------------------------------------------------- hanging and Ctrl-C


@pytest.fixture
def line() -> Iterator[socket.socket]:
    """A port of this machine that a hanging scenario's own child connects to, and keeps until it is killed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        yield server


def wait_for_its_end(connection: socket.socket) -> None:
    with connection:
        connection.settimeout(PATIENCE)
        assert connection.recv(1) == b""


@pytest.mark.process
def test_a_cell_that_hangs_is_killed_with_all_processes_it_started(tmp_path: Path, line: socket.socket) -> None:
    folder, output = folder_with(tmp_path / "scenarios", "hangs"), tmp_path / "matrix.json"
    arguments, port = ("--folder", folder, "--pair", PAIR, "--output", output), str(line.getsockname()[1])
    done = run(*arguments, "--timeout", seconds := "3", PORT=port)
    if not select.select([line], [], [], 0)[0]:  # on a busy machine, the processes may start more slowly
        done = run(*arguments, "--timeout", seconds := "30", PORT=port)
    wait_for_its_end(line.accept()[0])
    (cell,) = json.loads(output.read_text())["cells"]
    assert (done.returncode, cell["reason"]) == (1, f"killed after {seconds} seconds (--timeout)")


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_stops_the_children_and_writes_the_finished_cells(tmp_path: Path, line: socket.socket, number: int) -> None:
    folder = folder_with(tmp_path / "scenarios", a_passes="passes", b_hangs="hangs", c_never_begins="never_begins")
    output = tmp_path / "matrix.json"
    arguments = ("--folder", folder, "--pair", PAIR, "--jobs", "1", "--output", output)
    environment = ENVIRONMENT | {"PORT": str(line.getsockname()[1])}
    with subprocess.Popen(command(*arguments), env=environment, stdout=subprocess.PIPE, encoding="utf-8") as process:
        connection, _ = line.accept()
        process.send_signal(number)
        printed, _ = process.communicate(timeout=PATIENCE)
    wait_for_its_end(connection)
    matrix = json.loads(output.read_text())
    assert process.returncode == 130
    assert "interrupted: 2 not finished" in printed
    assert [(cell["scenario"], cell["passed"]) for cell in matrix["cells"]] == [("a_passes", True)]
    assert [one["scenario"] for one in matrix["not_run"]] == ["b_hangs", "c_never_begins"]
    assert matrix["interrupted"] is True


# ---------------------------------------------------------------------------------------------------- terminals


def on_a_terminal(*arguments: str | Path, columns: int = 100) -> str:
    terminal = Terminal(command(*arguments), columns, 40, {})
    terminal.end()
    return terminal.raw.decode()


@pytest.mark.process
def test_a_terminal_shows_colours_and_a_bar_but_no_output_of_the_scenarios_and_wraps_no_numbers(tmp_path: Path) -> None:
    pytest.importorskip("rich", reason="rich is not installed: pip install rich")
    folder = folder_with(tmp_path / "scenarios", "passes", "crashes")
    shown = on_a_terminal("--folder", folder, "--pair", PAIR)
    assert "\x1b[32mpass\x1b[0m" in shown
    assert "\x1b[1;31mFAIL\x1b[0m" in shown
    assert "2/2" in shown
    assert "]0;stolenlast words" in shown
    assert "\x1b]0;" not in shown
    (folder / "crashes.py").unlink()
    shown = on_a_terminal("--folder", folder, "--pair", PAIR, columns=50)
    rows = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()
    assert [row.split()[-5:-1] for row in rows if " pass " in row and "$" in row] == [["pass", "1", "100", "$0.1000"]]


# ------------------------------------------------------------------------------------------- listing and usage


def test_the_list_shows_descriptions_and_runs_nothing(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "scenarios", "passes", "crashes")
    (folder / "helper.py").write_text("def scenario(): ...\n")
    (folder / "broken.py").write_text("(\nscenario = Scenario('broken', description='x')\n")
    done = ran_here(MATRIX, "--folder", folder, "--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["scenario", "broken", "crashes", "passes"]
    assert done.stdout.count("a scenario of the tests") == 2
    assert not (folder / "logs").exists()


@pytest.mark.parametrize("arguments, complaint", [
    (["--jobs", "0"], "must be a whole number of at least 1, got '0'"),
    (["--timeout", "nan"], "must be a number of at least 0.1, got 'nan'"),
    (["--list", "--offline"], "--list runs nothing: leave --offline out"),
    (["--compare", "a.json", "b.json", "--pair", "openai"], "--compare runs nothing: leave --pair out"),
    (["triage", "--compare", "a.json", "b.json"], "--compare runs nothing: leave triage out"),
    (["--pair", "/gpt-4o"], "--pair takes PROVIDER/MODEL or PROVIDER, not '/gpt-4o'"),
    (["simple_basline"], "no scenario is called 'simple_basline'; did you mean 'simple_baseline'?"),
    (["xyz*"], "no scenario is called 'xyz*'; --list shows them all"),
    (["--folder", "no/such"], "there is no folder no/such"),
    (["--folder", str(ROOT / "docs")], "holds no scenario"),
    (["--offlin"], "unrecognized arguments: --offlin"),
    (["--output", str(ROOT), "--offline"], "--output takes a file"),
    (["--output", str(MATRIX), "--offline"], "run_matrix.py exists and is not a matrix, so it is left unchanged"),
    (["--logs", str(MATRIX), "--offline"], "cannot write to"),
    (["--compare", "one.json"], "--compare: expected 2 arguments"),
    (["--compare", "none.json", "none.json"], "cannot read none.json: No such file or directory"),
    (["--compare", str(MATRIX), str(MATRIX)], "is not JSON"),
])
def test_wrong_usage_is_one_clear_line_and_status_2(arguments: list[str], complaint: str) -> None:
    done = ran_here(MATRIX, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("run_matrix: error: ")
    assert complaint in line
