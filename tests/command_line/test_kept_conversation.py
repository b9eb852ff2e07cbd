"""`chat --store`: a conversation that survives its process, and the decisions it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernai import SqliteStore
from tests.command_line.conftest import Here
from tests.command_line.support import ECHO, as_json, environment, error_lines, write
from tests.command_line.terminal import CTRL_C, CTRL_D, Terminal
from tests.command_line.test_stores import CLERK

COUNTING = """
from kernai import Agent, MockProvider, ProviderError

def answer(messages, model):
    if messages[-1].text == "fail":
        raise ProviderError("the vendor is down")
    return f"<final>{sum(one.role == 'user' for one in messages)} so far</final>"

agent = Agent(instructions="Count.", provider=MockProvider().on_call(answer), protocols=[])
"""
TALK = ("--store", "talks.db", "--run-id", "m")


def lines_of(run_id: str, folder: Path) -> list[str]:
    with SqliteStore(folder / "talks.db") as store:
        return [entry["event"] for entry in store.load(run_id)]


def leave(terminal: Terminal) -> None:
    terminal.until("> ")  # before it reads lines, Ctrl-D would be the end of something else
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_the_next_start_with_the_same_id_continues(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    first = here("chat", "agent.py", *TALK, cwd=tmp_path, input="one\ntwo\n")
    assert (first.returncode, first.stdout) == (0, "1 so far\n2 so far\n")
    assert first.stderr == "Run m; to continue it later: kernai chat agent.py --store talks.db --run-id m\n"
    second = here("chat", "agent.py", *TALK, cwd=tmp_path, input="three\n/save all.json\n")
    assert second.stdout == "3 so far\n"
    assert "(the conversation continues; 4 messages so far)" in second.stderr.splitlines()
    assert [one["content"] for one in as_json((tmp_path / "all.json").read_text())][::2] == ["one", "two", "three"]


def test_a_turn_that_failed_stays_known_and_the_next_one_continues(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    done = here("chat", "agent.py", *TALK, cwd=tmp_path, input="one\nfail\nthree\n")
    assert (done.returncode, done.stdout) == (3, "1 so far\n3 so far\n")
    assert here("chat", "agent.py", *TALK, cwd=tmp_path, input="four\n").stdout == "4 so far\n"


def test_a_reset_begins_another_run_and_shows_how_to_return(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    done = here("chat", "agent.py", *TALK, cwd=tmp_path, input="one\n/reset\ntwo\n")
    assert done.stdout == "1 so far\n1 so far\n"
    assert "the one before: kernai chat agent.py --store talks.db --run-id m)" in done.stderr
    with SqliteStore(tmp_path / "talks.db") as store:
        assert len(list(store.runs())) == 2


def test_an_agent_that_has_changed_is_refused_before_the_first_line(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK.replace(", approval=True", ""))
    assert here("chat", "clerk.py", *TALK, cwd=tmp_path, input="Refund order 42\n").returncode == 0
    write(tmp_path, "clerk.py", CLERK.replace("skills=[find_order, refund]", "skills=[refund]"))
    done = here("chat", "clerk.py", *TALK, cwd=tmp_path, input="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = error_lines(done.stderr)
    assert "the agent decides differently" in error
    assert "begin another conversation, with another --run-id" in hint


def test_where_nobody_can_be_asked_a_pause_ends_the_program_and_stays(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK)
    for given in ("Refund order 42\ny\n", ""):
        done = here("chat", "clerk.py", *TALK, cwd=tmp_path, input=given)
        assert (done.returncode, done.stdout) == (4, "")
        assert 'refund {"number": 42, "amount": 30} waits for your decision' in done.stderr
        assert "nobody is here to ask" in error_lines(done.stderr)[0]
    assert not (tmp_path / "paid.txt").exists()


@pytest.mark.slow
@pytest.mark.process
def test_a_pause_asks_in_the_terminal(tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK)
    with Terminal(["chat", "clerk.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk(
            "> ", "Refund order 42\n", "any other text refuses and says why)", "\n",
            "any other text refuses and says why)", "it was never paid\n", "it was never paid</block>",
            "Refund order 42\n", "any other text refuses and says why)",
        )
        leave(terminal)
    with Terminal(["chat", "clerk.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk("any other text refuses and says why)", "y\n", "Order 42 is refunded.")
        leave(terminal)
    assert (tmp_path / "paid.txt").read_text() == "30 "


@pytest.mark.slow
@pytest.mark.process
def test_a_conversation_that_was_killed_continues_where_it_was(tmp_path: Path) -> None:
    hanging = "print('moved', flush=True); __import__('time').sleep(60)"
    write(tmp_path, "clerk.py", CLERK.replace(", approval=True", "").replace("os._exit(9)", hanging))
    write(tmp_path, "die", "")
    with Terminal(["chat", "clerk.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk("> ", "Refund order 42\n")
        terminal.until("moved")  # and with SIGKILL, as every terminal here that is left before its end
    (tmp_path / "die").unlink()
    with Terminal(["chat", "clerk.py", *TALK], tmp_path, environment()) as terminal:
        terminal.until("may have taken effect")
        terminal.talk(
            "retry: it is called again)", "perhaps\n", "retry: it is called again)", "skip\n",
            "the outcome of this call is unknown", "hello\n", "I read: hello",
        )
        leave(terminal)
    assert (tmp_path / "paid.txt").read_text() == "30 "
    assert lines_of("m", tmp_path).count("in_flight") == 1


SLOW_ECHO = ECHO.replace("    return f", """\
    if messages[-1].text == "wait":
        print("asked", flush=True)
        __import__("time").sleep(60)
    return f""")


@pytest.mark.slow
@pytest.mark.process
def test_a_turn_that_was_cancelled_is_not_resumed(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", SLOW_ECHO)
    with Terminal(["chat", "agent.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk("> ", "wait\n", "asked", CTRL_C, "(cancelled)")
        terminal.insist("two\n", "You said: two")
        leave(terminal)
    with Terminal(["chat", "agent.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk("messages so far)", "three\n", "You said: three")
        leave(terminal)
    assert "asked" not in terminal.shown
