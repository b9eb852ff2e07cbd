"""Durable runs: `run --store`, `runs`, `resume`, `replay`, and `view` and `diff` of a store."""

from __future__ import annotations

import json
import re
import shlex
import signal
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import Media, PendingCall, SqliteStore
from kernai.command_line import stores
from kernai.command_line.diff_command import scopes_of
from kernai.command_line.recording import Source
from tests.command_line.conftest import Here, Screen
from tests.command_line.support import AGENT, as_json, environment, error_lines, events_of, write

#: refunds an order when a person approves; if a file `die` exists, the process dies after the payment
CLERK = """
import os
from pathlib import Path
from kernai import Agent, MockProvider, Skill, skill

@skill(register=False)
def find_order(number: int) -> dict[str, int]:
    with open("looked.txt", "a") as file:
        file.write("x")
    return {"number": number, "paid": 30}

@skill(register=False, approval=True)
def refund(number: int, amount: int) -> str:
    with open("paid.txt", "a") as file:
        file.write(f"{amount} ")
    if Path("die").exists():
        os._exit(9)
    return f"{amount} paid back"

def answer(messages, model):
    last = messages[-1].text
    if last.startswith("Refund"):
        return '<command name="find_order">{"number": 42}</command>'
    if '"paid"' in last:
        return '<command name="refund">{"number": 42, "amount": 30}</command>'
    if "paid back" in last:
        return "<final>Order 42 is refunded.</final>"
    return f"<final>I read: {last}</final>"

agent = Agent(
    name="clerk", instructions="You refund orders.", skills=[find_order, refund], protocols=[],
    provider=MockProvider().on_call(answer),
)
"""
START = ("run", "clerk.py", "Refund order 42", "--store", "runs.db", "--run-id", "r42")
RESUME = ("resume", "clerk.py", "runs.db", "r42")


@pytest.fixture
def paused(here: Here, tmp_path: Path) -> Path:
    """A folder with the clerk and a run that waits for a decision on call 1.0."""
    write(tmp_path, "clerk.py", CLERK)
    assert here(*START, "-q").returncode == 4
    return tmp_path


def statuses(folder: Path, store: str = "runs.db") -> dict[str, str]:
    with SqliteStore(folder / store) as kept:
        return {run.run_id: run.status for run in kept.runs()}


def test_a_waiting_run_shows_the_whole_call_and_how_to_continue(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK.replace("30", "30" * 150))
    done = here(*START)
    assert (done.returncode, done.stdout) == (4, "")
    summary, *rest = done.stderr.splitlines()[-3:]
    assert summary.startswith("waiting: 2 steps, 2 model calls, ")
    assert rest == [
        f'waits for a decision: 1.0 refund {{"number": 42, "amount": {"30" * 150}}}',
        "hint: kernai resume clerk.py runs.db r42 --approve 1.0, or --refuse 1.0=WHY",
    ]
    assert stat.S_IMODE((tmp_path / "runs.db").stat().st_mode) == 0o600
    assert not (tmp_path / "paid.txt").exists()


@pytest.mark.parametrize("words", [("run", "clerk.py", "Go"), ("chat", "clerk.py")])
def test_a_task_that_the_model_named_is_quoted_in_the_command_to_paste(here: Here, tmp_path: Path, words: tuple[str, ...]) -> None:
    plan = '<block type="plan">{"tasks": [{"id": "$(touch x) b", "input": "Refund order 42"}]}</block>'
    write(tmp_path, "clerk.py", CLERK.replace("    if last.sta", f"    if last == 'Go':\n        return {plan!r}\n    if last.sta"))
    done = here(*words, "--store", "runs.db", "--run-id", "r", input="Go\n")
    assert "kernai resume clerk.py runs.db r --approve '0.$(touch x) b/1.0'" in done.stderr.splitlines()[-1]


def test_an_approved_call_is_made_and_earlier_calls_are_not_repeated(
    here: Here, paused: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "bob")
    done = here(*RESUME, "--approve", "1.0=all of it")
    assert (done.returncode, done.stdout) == (0, "Order 42 is refunded.\n")
    assert '  call 1.0 approved by bob: {"answer": "all of it"}' in done.stderr.splitlines(), "by default the logged-in user decides"
    assert ((paused / "looked.txt").read_text(), (paused / "paid.txt").read_text()) == ("x", "30 ")
    again = here(*RESUME, "-q")
    assert (again.returncode, again.stdout, again.stderr) == (0, "Order 42 is refunded.\n", "")


@pytest.mark.parametrize("given, reason", [("1.0=order 42 was not paid", "order 42 was not paid"), ("1.0", "refused")])
def test_a_refused_call_is_not_made_and_the_model_reads_why(here: Here, paused: Path, given: str, reason: str) -> None:
    done = here(*RESUME, "--refuse", given, "-q")
    assert done.stdout == f'I read: <block type="error" name="refund">{reason}</block>\n'
    assert not (paused / "paid.txt").exists()


def test_without_a_decision_the_run_keeps_waiting_and_nothing_is_written(here: Here, paused: Path) -> None:
    with SqliteStore(paused / "runs.db") as store:
        before = store.load("r42")
        done = here(*RESUME, "--json", "-q")
        assert store.load("r42") == before
    assert done.returncode == 4
    assert [call["call_id"] for call in as_json(done.stdout)["pending"]] == ["1.0"]


def test_a_run_continues_with_another_input(here: Here, paused: Path) -> None:
    here("approve", "runs.db", "r42", "1.0")
    assert here(*RESUME, "--input", "Thanks!", "-q").stdout == "I read: Thanks!\n"
    assert here(*RESUME, "--input", "-", "-q", input="Bye!\n").stdout == "I read: Bye!\n"


@pytest.mark.process
def test_a_call_interrupted_by_a_crash_is_reported_and_repeated_only_on_request(here: Here, paused: Path) -> None:
    write(paused, "die", "")
    died = subprocess.run(
        [sys.executable, "-m", "kernai", *RESUME, "--approve", "1.0"], cwd=paused, env=environment(), timeout=60, check=False
    )
    assert died.returncode == 9
    (paused / "die").unlink()
    assert statuses(paused) == {"r42": "abandoned"}
    error, hint = error_lines(here(*RESUME).stderr)
    assert error.endswith('calls that may have taken effect: 1.0 refund {"number": 42, "amount": 30}')
    assert "kernai resume clerk.py runs.db r42 --in-flight skip" in hint
    assert (paused / "paid.txt").read_text() == "30 "
    skipped = here(*RESUME, "--in-flight", "skip")
    assert "the outcome of this call is unknown" in skipped.stdout
    assert "  call 1.0 was interrupted; its outcome stays unknown" in skipped.stderr.splitlines()
    assert (paused / "paid.txt").read_text() == "30 "


COUNTED = """
from kernai import Agent, Cost, LlmResponse, MockProvider, Model, ProviderError

def answer(messages, model):
    if len(messages) == 2:
        return LlmResponse("<command name='/skills'></command>", prompt_tokens=1_000, completion_tokens=500)
    raise ProviderError("down")

agent = Agent(instructions="x", provider=MockProvider().on_call(answer), skills=[], model=Model("m", cost=Cost(1, 2)))
"""


def test_runs_are_listed_with_their_usage_the_last_changed_first(here: Here, paused: Path) -> None:
    write(paused, "counted.py", COUNTED)
    here("run", "counted.py", "How many\nlamps? " + "x" * 200, "--store", "runs.db", "--run-id", "lamps")
    done = here("runs", "runs.db")
    assert done.stderr == 'r42 waits for a decision: 1.0 refund {"number": 42, "amount": 30}\n'
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["RUN", "AGENT", "STATUS", "STEPS", "TOKENS", "COST", "LAST", "CHANGE", "INPUT"]
    first, second = [row.split(maxsplit=7) for row in rows]
    assert [*first[:6], first[7][:15]] == ["lamps", "-", "error", "2", "1,500", "$0.0020", "How many lamps?"]
    assert [*second[:6], second[7]] == ["r42", "clerk", "waiting", "2", "-", "-", "Refund order 42"]
    assert max(map(len, rows)) == 120
    narrow = here("runs", "runs.db", env=environment(COLUMNS="60")).stdout.splitlines()
    assert [row.split("Z  ")[1] for row in narrow[1:]] == ["How many lamps? x...", "Refund order 42"]
    coloured = here("runs", "runs.db", screen=Screen(), env=environment(TERM="xterm", NO_COLOR="")).stdout.splitlines()
    assert [line[:5] for line in coloured] == ["\x1b[2mR", "\x1b[31m", "\x1b[33m"], "dim heads, a failure red, what waits yellow"
    limited = here("runs", "runs.db", "--limit", "1").stdout.splitlines()
    assert [row.split()[0] for row in limited] == ["RUN", "lamps"]
    last, earlier = as_json(here("runs", "runs.db", "--json").stdout)
    assert last.pop("updated_at") > earlier["updated_at"]
    assert last.pop("input").startswith("How many\nlamps? x")
    figures = {"tags": {}, "steps": 2, "tokens": 1_500, "cost": 0.002}
    assert last == {"run_id": "lamps", "agent": None, "status": "error", **figures, "why": None, "pending": []}
    assert [earlier[name] for name in ("agent", "tokens", "input")] == ["clerk", None, "Refund order 42"]
    assert [call["call_id"] for call in earlier["pending"]] == ["1.0"]


def test_a_damaged_run_is_listed_with_the_others_and_says_what_blocks_it(here: Here, paused: Path) -> None:
    with SqliteStore(paused / "runs.db") as store:
        for run_id, calls in (("odd", []), ("hot", [PendingCall("0.0", "pay", {})])):
            store.append(run_id, 0, [{"event": "run_start", "scope": "", "data": {"input": 5}}], [])
            store.block(run_id, "no agent\nknows it", calls)
        mail: kernai.UserInput = [kernai.outside("Pay\n9.50"), Media.from_bytes(b"x", mime_type="image/png")]
        kernai.execute(kernai.Agent(instructions="", provider=kernai.MockProvider("Yes.")), mail, store=store, run_id="mail")
    done = here("runs", "runs.db")
    assert done.stderr.splitlines()[1:] == [
        "hot waits for a decision: 0.0 pay {} (no agent knows it)", "odd is blocked: no agent knows it",
    ]
    rows = {row.split()[0]: [*row.split()[3:6], row.split()[-1]] for row in done.stdout.splitlines()[1:]}
    others = {"hot": ["0", "-", "-", "-"], "odd": ["0", "-", "-", "-"]}
    assert rows == {"r42": ["2", "-", "-", "42"], **others, "mail": ["1", "-", "-", "[image]"]}
    assert "Z  Pay 9.50 [image]\n" in done.stdout
    with closing(sqlite3.connect(paused / "runs.db")) as file, file:
        file.execute("UPDATE entries SET checksum = 0")
    assert "docs/durable.md says how to save what is whole" in here("view", "runs.db", "r42").stderr
    assert here("cancel", "runs.db", "r42").stdout == "closed\n", "nobody has to read it for that"


@pytest.mark.parametrize("why, reason", [("it was never paid", "it was never paid"), ("", "refused")])
def test_a_decision_is_stored_for_the_process_that_continues_the_run(here: Here, paused: Path, why: str, reason: str) -> None:
    assert here("approve", "runs.db", "r42", "1.0=[3]", "--by", "bob").stderr.startswith("to continue the run: ")
    done = here("approve", "runs.db", "r42", "1.0", "--no", why, "--by", "ann")
    assert (done.returncode, done.stdout) == (0, 'refused: 1.0 refund {"number": 42, "amount": 30}\n')
    assert done.stderr == 'this replaces the decision of bob: {"answer": [3]}\nto continue the run: kernai resume AGENT runs.db r42\n'
    assert here("runs", "runs.db").stderr.startswith("r42 has its decisions; `kernai resume AGENT runs.db r42` continues it, or")
    waiting = {one: PendingCall(one) for one in ("a", "a=b.0")}
    assert stores.decided("a=b.0=c=d", "r", waiting) == ("a=b.0", {"answer": "c=d"}), "a task has any id"
    continued = here(*RESUME)
    assert continued.stdout == f'I read: <block type="error" name="refund">{reason}</block>\n'
    assert "  call 1.0 refused by ann" in continued.stderr


def test_runs_can_be_cancelled_and_deleted_by_status_and_age(here: Here, paused: Path) -> None:
    done = here("cancel", "runs.db", "r42", "--reason", "the customer has left")
    assert "r42 --input TEXT` opens it; " in error_lines(here(*RESUME).stderr)[1]
    assert error_lines(here("cancel", "runs.db", "r42").stderr)[0].endswith("run 'r42' has ended already: closed")
    assert (done.returncode, done.stdout, statuses(paused)) == (0, "closed\n", {"r42": "closed"})
    assert here("runs", "runs.db", "--older-than", "5m").stderr == "runs.db has no such runs\n"
    for given, count in ((("--older-than", "5m"), 0), (("--status", "waiting"), 0), (("--status", "closed"), 1)):
        done = here("runs", "runs.db", "--delete", *given)
        assert done.stdout == f"{count} {'run' if count == 1 else 'runs'} deleted\n"
    assert as_json(here("runs", "runs.db", "--delete", "--status", "closed", "--json").stdout) == {"deleted": 0}
    assert statuses(paused) == {}
    done = here("runs", "runs.db")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "runs.db has no runs\n")


def test_a_run_that_was_closed_while_it_waited_continues_with_an_input(here: Here, paused: Path) -> None:
    here("cancel", "runs.db", "r42")
    assert error_lines(here(*RESUME, "--approve", "1.0").stderr)[1].startswith("hint: no call of this run waits; `kernai resume --in-flight`")
    assert here(*RESUME, "--input", "Hello?", "-q").stdout == "I read: Hello?\n"


#: commands with a run in a store, in the old spelling and in the new one
SPELLINGS = {
    "resume": (("clerk.py", "--store", "runs.db", "r42"), ("clerk.py", "runs.db", "r42")),
    "replay": (("clerk.py", "--store", "runs.db", "r42"), ("clerk.py", "runs.db", "r42")),
    "replay of an agent made here": (
        ("--skills", "clerk.py", "--store", "runs.db", "r42"), ("--skills", "clerk.py", "runs.db", "r42"),
    ),
    "view": (("runs.db:r42", "-o", "-"), ("runs.db", "r42", "-o", "-")),
    "diff": (("runs.db:r42", "run.jsonl", "--all"), ("runs.db", "r42", "run.jsonl", "--all")),
    "diff the other way": (("run.jsonl", "runs.db:r42"), ("run.jsonl", "runs.db", "r42")),
}


@pytest.mark.parametrize("command", SPELLINGS)
def test_a_run_in_a_store_is_given_as_store_and_run_and_older_spellings_still_work(
    here: Here, paused: Path, command: str
) -> None:
    here(*START[:3], "--record", "run.jsonl", "-q")
    older, newer = [here(command.split(maxsplit=1)[0], *words) for words in SPELLINGS[command]]
    times = re.compile(r"\d+\.\d s$", re.MULTILINE)
    assert (older.returncode, older.stdout) == (newer.returncode, newer.stdout)
    assert times.sub("", older.stderr) == times.sub("", newer.stderr)
    assert newer.returncode in (0, 1, 4), newer.stderr
    assert not error_lines(newer.stderr) or newer.returncode == 4


def test_a_run_without_an_id_gets_one_that_is_shown_and_its_files_are_where_the_command_was_given(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", f"import os\nos.chdir('/')\n{AGENT}")
    done = here("run", "agent.py", "How many lamps?", "--store", "runs.db", "--record", "run.jsonl")
    assert (tmp_path / "run.jsonl").exists()
    (run_id,) = statuses(tmp_path)
    assert done.stderr.splitlines()[0] == f"run {run_id} in runs.db"
    assert here("run", str(tmp_path / "agent.py"), "x", "--store", str(tmp_path / "quiet.db"), "-q").stderr == ""


ERRORS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "an id that is taken": (START, "runs.db already has a run 'r42'", "`kernai resume clerk.py runs.db r42` continues it"),
    "an id that no conversation can have": (("chat", "clerk.py", "--store", "no.db", "--run-id", "a/b"), "with a store, RUN must be 1 to 128 of", "refund-42"),
    "an id that none can have": (("run", "clerk.py", "x", "--store", "no.db", "--run-id", "a/b"), "with a store, RUN must be 1 to 128 of", "refund-42"),
    "a recording in a folder that is not there": (("run", "clerk.py", "x", "--store", "no.db", "--record", "no/r.jsonl"), "--record: cannot write no/r.jsonl: No such file", "a file that can be written"),
    "a recording of a conversation in a folder that is not there": (("chat", "clerk.py", "--store", "no.db", "--record", "no/r.json"), "--record: cannot write no/r.json: No such file", "a file that can be written"),
    "a recording in the file of the store": (("run", "clerk.py", "x", "--store", "a.json", "--record", "a.json"), "--record: a.json is the store of the run", "name another"),
    "no id": (("run", "clerk.py", "x", "--run-id", ""), "--run-id is empty", "leave it out"),
    "a store that is none": (("runs", "clerk.py"), "clerk.py': file is not a database", "--store STORE` makes one"),
    "a store that is not there": (("runs", "no.db"), "cannot open no.db: No such file", "--store STORE` makes one"),
    "a store that is empty": (("runs", "empty"), "empty is empty", "makes one"),
    "a store that is a folder": (("run", "clerk.py", "x", "--store", "."), "not a regular file", "name a new file in a folder that exists"),
    "a store in a folder that is not there": (("run", "clerk.py", "x", "--store", "no/runs.db"), "No such file or directory", "name a new file in a folder that exists"),
    "a store in memory": (("run", "clerk.py", "x", "--store", ":memory:"), "path must name a file, got ':memory:'", "name a new file"),
    "a store without a name": (("run", "clerk.py", "x", "--store", ""), "path must name a file, got ''", "name a new file"),
    "a run that is not there": (("resume", "clerk.py", "runs.db", "r43"), "has no run 'r43'", "`kernai runs runs.db` lists"),
    "a call that does not wait": ((*RESUME, "--approve", "0.0"), "call '0.0' of run 'r42' waits for no decision", "those that wait: 1.0 refund"),
    "a refusal that sounds like consent": ((*RESUME, "--refuse", "1.0=yes"), "--refuse 1.0: a text refuses", "say why, or use --approve"),
    "an answer that sounds like a refusal": ((*RESUME, "--approve", "1.0= No"), "an answer approves the call", "or quote it: '\"no\"'"),
    "a refusal as an answer": (("approve", "runs.db", "r42", "1.0="), "an answer approves the call", "to refuse, use --no or --refuse"),
    "a difference to a run without its store": (("diff", "runs.db", "r42", "r43"), "cannot read r43: No such file", "with --store STORE the run is STORE RUN"),
    "two decisions on one call": ((*RESUME, "--approve", "1.0", "--refuse", "1.0"), "two decisions on call '1.0'", "one"),
    "an input before the decision": ((*RESUME, "--input", "x"), "--input: the run waits for a decision first", "--refuse those that wait: 1.0 refund"),
    "an empty input": ((*RESUME, "--approve", "1.0", "--input", " "), "--input is empty", "leave it out"),
    "no run": (("resume", "clerk.py", "--store", "runs.db"), "give an agent, a store and a run", "`kernai runs STORE` lists the runs"),
    "no run of a named agent": (("resume", "clerk.py:agent", "runs.db", "--model", "ollama/x"), "give an agent, a store and a run", "STORE RUN"),
    "an answer with a refusal": (("approve", "runs.db", "r42", "1.0=x", "--no", "WHY"), "an answer and --no exclude each other", "leave one"),
    "a consent as a refusal": (("approve", "runs.db", "r42", "1.0", "--no", "yes"), "a text refuses", "just the call's id to approve"),
    "a deletion of every run": (("runs", "runs.db", "--delete"), "--delete would delete every run", "--older-than AGE"),
    "an age before any date": (("runs", "runs.db", "--older-than", "999999d"), "of at most 5 digits with d, h or m", "--help"),
    "a deletion by agent": (("runs", "runs.db", "--delete", "--agent", "clerk"), "--delete takes --older-than and --status", "--agent and --limit"),
    "a run to cancel that is not there": (("cancel", "runs.db", "r43"), "no run 'r43'", "lists those it has"),
    "an age without a unit": (("runs", "runs.db", "--older-than", "90"), "such as 90d, got '90'", "--help"),
    "an input that is no text": ((*RESUME, "--input", "gr\udcfc"), "argument --input: character 2 is not valid", "--help"),
    "a refusal that is no text": ((*RESUME, "--refuse", "1.0=\udcfc"), "argument --refuse: character 4 is not valid", "--help"),
    "a reason that is no text": (("approve", "runs.db", "r42", "1.0", "--no", "\udcfc"), "argument --no: character 0", "--help"),
    "a worker with a file": (("worker", "clerk.py", "--store", "runs.db"), "this command needs a PostgreSQL store", "postgresql://"),
    "a worker with one agent": (("worker", "clerk.py:agent", "--store", "postgresql://h/d"), "no file or module 'clerk.py:agent'", "all agents"),
    "a file to migrate": (("store", "migrate", "runs.db"), "this command needs a PostgreSQL store", "postgresql://"),
    "a status with a typo": (("runs", "runs.db", "--status", "wating"), "argument --status: invalid choice: 'wating' (choose from", "--help"),
    "too many words": ((*RESUME, "r43"), "give an agent, a store and a run", "kernai resume AGENT STORE RUN"),
    "another word for calls in flight": ((*RESUME, "--in-flight", "guess"), "invalid choice: 'guess'", "--help"),
    "a replay of a run that is not there": (("replay", "clerk.py", "runs.db", "x"), "no run 'x'", "lists"),
    "a replay with capabilities of no model": (("replay", "clerk.py", "runs.db", "r42", "--model-capabilities", "text"), "is for a --model", "VENDOR/NAME"),
    "a replay that names its run twice": (("replay", "clerk.py", "runs.db", "r42", "--run-id", "r42"), "--run-id is for a recording", "leave it"),
    "a view of a whole database": (("view", "postgresql://u:secret@h/d"), "postgresql://u:***@h/d is a store: say which of its runs", "postgresql://u:***@h/d RUN"),
    "a run in a store that is followed": (("view", "runs.db", "r42", "--follow"), "--follow needs a file", "the run so far"),
    "a store that is followed": (("view", "runs.db", "--follow"), "runs.db is a store", "`kernai runs runs.db`"),
    "a replay without an agent": (("replay", "run.jsonl"), "no agent at 'run.jsonl'", "or make one: --system"),
    "a resume without an agent": (("resume", "no.db", "r42"), "no agent at 'no.db'", "the agent comes first"),
    "a replay of an agent made by options without a run": (("replay", "--system", "x"), "there is no recording", "STORE RUN for a run"),
    "a diff with a store": (("diff", "runs.db", "r42", "runs.db"), "runs.db is a store", "`kernai runs runs.db`"),
    "a conversation's id without a store": (("chat", "clerk.py", "--run-id", "m"), "--run-id is for", "add --store STORE"),
}  # fmt: skip


@pytest.mark.parametrize("arguments, error, hint", ERRORS.values(), ids=ERRORS.keys())
def test_an_error_with_a_store_is_one_line_and_a_hint(
    here: Here, paused: Path, arguments: tuple[str, ...], error: str, hint: str
) -> None:
    write(paused, "empty", "")
    before = (paused / "runs.db").read_bytes()
    done = here(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    lines = error_lines(done.stderr)
    assert len(lines) == 2
    assert error in lines[0]
    assert hint in lines[1]
    assert (paused / "runs.db").read_bytes() == before
    assert not (paused / "no.db").exists()


@pytest.mark.parametrize("command", ["resume", "chat"])
def test_a_run_that_another_process_works_on_is_left_to_it(here: Here, paused: Path, command: str) -> None:
    words = ("runs.db", "r42") if command == "resume" else ("--store", "runs.db", "--run-id", "r42")
    with SqliteStore(paused / "runs.db") as store:
        store.claim("r42", "the night shift", 60)
        done = here(command, "clerk.py", *words, "-q")
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = error_lines(done.stderr)
    assert error.startswith("kernai: error: run 'r42' is being worked on by the night shift, since 20")
    assert hint.startswith("hint: let it finish, or ask it to stop: `kernai cancel STORE RUN`")


def test_a_second_cancellation_without_a_reason_keeps_the_first_ones(here: Here, paused: Path) -> None:
    with SqliteStore(paused / "runs.db") as store:
        store.claim("r42", "the night shift", 60)
        for reason in (("--reason", "the customer has left"), ()):
            done = here("cancel", "runs.db", "r42", *reason)
            assert done.stdout == "the process that is working on it was asked to stop\n"
        assert store.cancel_requests(["r42"]) == {"r42": "the customer has left"}


@pytest.mark.parametrize("path, shown", [
    ("postgresql://u:secret@h:5432/d", "postgresql://u:***@h:5432/d"),
    ("postgres://u:sec/r@et@h1,h2/d?x=1", "postgres://u:***@h1,h2/d?x=1"),
    ("postgresql://u:sec?ret@h:5432/d?x=a@b", "postgresql://u:***@h:5432/d?x=a@b"),
    ("postgresql://u:se/c?r/et@h/d", "postgresql://u:***@h/d"), ("postgresql://h:5432/d?user=a@b", "postgresql://h:5432/d?user=a@b"),
    ("postgresql://h:5432/d?user=u&password=sec%40ret&x=1", "postgresql://h:5432/d?user=u&password=***&x=1"),
    ("postgresql:///d?sslpassword=secret", "postgresql:///d?sslpassword=***"), ("postgresql+x://u:pw@h/d", "postgresql+x://u:***@h/d"),
    ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
    ("odd://a:b@c.db", "odd://a:b@c.db"),
])
def test_the_password_of_a_database_is_never_shown(path: str, shown: str) -> None:
    assert str(Source(path, "r42")) == f"{shown} r42"


def test_a_run_that_hit_a_limit_says_how_to_continue_and_does(here: Here, paused: Path) -> None:
    options = ("--store", "runs.db", "--run-id", "few")
    done = here("run", "clerk.py", "Refund order 42", *options, "--max-calls", "1")
    assert done.returncode == 1
    hint = error_lines(done.stderr)[1]
    assert hint == "hint: `kernai resume clerk.py runs.db few` continues it; --max-calls allows more"
    assert here("resume", "clerk.py", "runs.db", "few", "-q").returncode == 4


def test_a_run_whose_first_entries_cannot_be_written_is_not_said_to_be_kept(here: Here, paused: Path) -> None:
    with closing(sqlite3.connect(paused / "runs.db")) as full:
        full.execute("CREATE TRIGGER full BEFORE INSERT ON entries BEGIN SELECT RAISE(ABORT, 'no space'); END")
    done = here("run", "clerk.py", "Refund order 42", "--store", "runs.db", "--run-id", "lost")
    assert (done.returncode, "kept" in done.stderr) == (1, False)


SLOW = """
import threading
from kernai import Agent, MockProvider, skill

@skill(register=False, idempotent=True)
def wait() -> str:
    print("waiting", flush=True)
    while FOREVER:  # not one wait, which would miss a signal that arrives just before it
        threading.Event().wait(0.02)
    return "done"

agent = Agent(instructions="x", skills=[wait], provider=MockProvider().on_call(
    lambda messages, model: "<final>Done.</final>" if len(messages) > 2 else '<command name="wait"></command>'))
"""


@pytest.mark.process
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_run_ended_by_a_signal_can_be_continued(here: Here, tmp_path: Path, number: int, status: int) -> None:
    write(tmp_path, "slow.py", SLOW.replace("FOREVER", "True"))
    options = ("--store", "runs.db", "--run-id", "s", "--record", "r.json")
    started = subprocess.Popen(
        [sys.executable, "-m", "kernai", "run", "slow.py", "x", *options],
        cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stderr is not None
    with started:
        while started.stderr.readline() != "waiting\n":
            assert started.poll() is None
        started.send_signal(number)
        shown = started.stderr.read()
    assert started.returncode == status
    if status > 0:
        assert len(error_lines(shown)) == 1
        last = events_of(tmp_path / "r.json")[-1]
        assert (last["event"], last["data"]["stop_reason"]) == ("result", "cancelled")
        assert "to continue it: kernai resume slow.py runs.db s; with --in-flight, if a call was running" in shown
    write(tmp_path, "slow.py", SLOW.replace("FOREVER", "False"))
    assert here("resume", "slow.py", "runs.db", "s", "-q").stdout == "Done.\n"


def test_an_agent_that_decides_differently_cannot_continue_and_its_replay_shows_where(here: Here, paused: Path) -> None:
    write(paused, "other.py", CLERK.replace("skills=[find_order, refund]", "skills=[refund]"))
    error, hint = error_lines(here("resume", "other.py", "runs.db", "r42").stderr)
    assert "the agent decides differently from the recording, starting at event 4 (skill_execute)" in error
    assert "`kernai replay other.py runs.db r42` shows where" in hint
    done = here("replay", "other.py", "runs.db", "r42")
    assert (done.returncode, done.stderr) == (1, "")
    head = ["--- runs.db r42", "+++ other.py, now", "@@ event 4: skill_execute @@"]
    assert done.stdout.splitlines()[:3] == head
    assert done.stdout.splitlines()[3].startswith("-skill_execute")
    assert done.stdout.splitlines()[4].startswith("+skill_error")
    shown = as_json(here("replay", "other.py", "runs.db", "r42", "--json").stdout)
    assert (shown["same"], shown["divergence"]["seq"]) == (False, 4)


def test_the_replay_command_in_the_hint_works(here: Here, paused: Path) -> None:
    model = ("--model", "ollama/m", "--model-capabilities", "text", "--max-steps", "5")
    done = here("resume", "runs.db", "r42", "--approve", "1.0", *model)
    typed = shlex.split(error_lines(done.stderr)[1].split("`")[1])
    assert (typed[:3], typed[4:10]) == (["kernai", "replay", "--system"], [*model])
    again = here(*typed[1:])
    assert (again.returncode, again.stdout.splitlines()[1][:14]) == (1, "+++ --system '")


def test_a_replay_calls_nothing_and_reads_stores_and_recordings(here: Here, paused: Path) -> None:
    here(*RESUME, "--approve", "1.0")
    write(paused, "offline.py", CLERK.replace("MockProvider().on_call(answer)", "None").replace('"a"', '"no such mode"'))
    done = here("replay", "offline.py", "runs.db", "r42")
    assert (done.returncode, done.stdout, done.stderr) == (0, "the same\n", "")
    write(paused, "agent.py", AGENT.replace("skills=[", "max_steps=1, skills=["))
    for name in ("run.json", "run.jsonl"):
        here("run", "agent.py", "How many lamps?", "--record", name, "--max-steps", "2")
        assert json.loads(here("replay", "agent.py", name, "--json", "--max-steps", "2").stdout) == {
            "same": True, "divergence": None, "loosened": {}, "changes": [],
        }
    lines = (paused / "run.jsonl").read_text().splitlines(keepends=True)
    write(paused, "half.jsonl", "".join(lines[:3]))
    assert here("replay", "agent.py", "half.jsonl", "--max-steps", "2").stdout == "the same, as far as the recording goes\n"


def test_a_replay_needs_a_run_id_for_several_runs_and_refuses_a_newer_format_which_is_only_shown(
    here: Here, tmp_path: Path
) -> None:
    write(tmp_path, "agent.py", AGENT)
    recorded = []
    for run_id in ("one", "two"):
        here("run", "agent.py", "How many lamps?", "--run-id", run_id, "--record", "run.jsonl")
        recorded.append((tmp_path / "run.jsonl").read_text())
    write(tmp_path, "both.jsonl", "".join(recorded))
    error, hint = error_lines(here("replay", "agent.py", "both.jsonl").stderr)
    assert "2 runs (one, two)" in error
    assert "--run-id" in hint
    error, hint = error_lines(here("view", "both.jsonl", "two").stderr)
    assert ("unrecognized arguments: two" in error, "is a recording, not a store" in hint) == (True, True)
    write(tmp_path, "damaged.jsonl", recorded[0].replace('"call_id":"0.0"', '"call_id":0') + '{"event":"final","run_id":[]}\n')
    assert "is damaged: its event" in error_lines(here("replay", "agent.py", "damaged.jsonl").stderr)[0]
    assert here("replay", "agent.py", "both.jsonl", "--run-id", "two").returncode == 0
    write(tmp_path, "newer.jsonl", recorded[0].replace('"format":2', '"format":3'))
    note = "note: newer.jsonl is in format 3, and this kernai knows up to 2: it may misunderstand some events; update it\n"
    shown = [here("view", "newer.jsonl"), here("diff", "run.jsonl", "newer.jsonl")]
    assert [(done.returncode, done.stderr) for done in shown] == [(0, note), (1, note)]
    refused = here("replay", "agent.py", "newer.jsonl")
    assert (refused.returncode, error_lines(refused.stderr)[1]) == (2, "hint: --debug shows the traceback")


def test_diff_finds_no_difference_between_a_resumed_and_an_uninterrupted_run(here: Here, paused: Path) -> None:
    write(paused, "free.py", CLERK.replace(", approval=True", ""))
    here("run", "free.py", "Refund order 42", "--store", "runs.db", "--run-id", "few", "--max-calls", "1")
    here("resume", "free.py", "runs.db", "few")
    here("run", "free.py", "Refund order 42", "--store", "runs.db", "--run-id", "whole")
    done = here("diff", "runs.db", "few", "runs.db", "whole")
    assert (done.returncode, done.stdout[:9]) == (0, "the same:")
    assert done.stderr == "note: runs.db few was resumed; not compared: 2 events about this\n"


def test_events_are_left_out_only_if_the_resume_refers_to_these_events() -> None:
    resume: dict[str, Any] = {"event": "run_resumed", "run_id": "r", "data": {"from_seq": 2, "dropped": [1]}}
    first: dict[str, Any] = {"event": "run_start", "run_id": "r", "data": {}}
    second: dict[str, Any] = {"event": "result", "run_id": "r", "data": {}}

    def kept(*recorded: dict[str, Any]) -> list[list[str]]:
        return [[entry["event"] for entry in entries] for entries in scopes_of(recorded).values()]

    assert kept(first, second, resume) == [["run_start"]]
    assert kept(first, second, first, second, resume) == [["run_start", "result"], ["run_start"]], "another run of the same id"
    resume["data"]["dropped"] = [0]
    assert kept(first, resume, second) == [["run_start", "result"]], "a recording that begins later counts otherwise"


def test_the_page_of_a_run_in_a_store_is_written_beside_the_store_with_its_pictures(here: Here, tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + bytes(range(16))
    seeing = kernai.Agent(instructions="x", provider=kernai.MockProvider("<final>A square.</final>"))
    (tmp_path / "kept").mkdir()
    with SqliteStore(tmp_path / "kept" / "runs.db") as store:
        picture = Media.from_bytes(png, mime_type="image/png")
        kernai.execute(seeing, ["What is it?", picture], store=store, run_id="see")
    assert here("view", "kept/runs.db", "see").stdout == "kept/see.html\n"
    page = (tmp_path / "kept" / "see.html").read_text()
    assert "data:image/png;base64," in page
    assert "<title>see" in page
    assert "A square." in here("view", "kept/runs.db:see", "-o", "-").stdout


def test_replaying_with_an_agent_that_lost_a_protection_says_how_to_accept_that(here: Here, paused: Path) -> None:
    here(*RESUME, "--approve", "1.0")
    more = CLERK.replace("_order, refund]", "_order, refund, Skill('a $b', execute=lambda: 1)]")  # as servers name tools
    write(paused, "loose.py", more.replace(", approval=True", ""))
    done = here("replay", "loose.py", "runs.db", "r42")
    assert done.returncode == 1
    head, lost, quoted, _, how = done.stdout.splitlines()
    assert head == "the agent decides the same, but has lost protections since the recording:"
    assert lost.startswith("- ")
    assert (how, quoted) == ("  to accept it: --accept refund.approval", "  to accept it: --accept 'a $b.allowed'")
    found = as_json(here("replay", "loose.py", "runs.db", "r42", "--json").stdout)
    assert (found["same"], found["divergence"], [*found["loosened"]]) == (False, None, ["a $b.allowed", "refund.approval"])
    accepted = ("--accept", "refund.approval", "--accept", "a $b.allowed")
    assert here("replay", "loose.py", "runs.db", "r42", *accepted).returncode == 0
