"""`kernai chat`: through a pipe, in a real terminal with real Ctrl-C, and with a store that outlives the process."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kernai as package
from kernai import SqliteStore
from kernai.durable.lease import end_run
from tests.command_line.conftest import Here, Keys
from tests.command_line.support import (
    CTRL_C,
    CTRL_D,
    ECHO,
    Terminal,
    as_json,
    environment,
    error_lines,
    events_of,
    kernai,
    write,
)
from tests.command_line.test_stores import CLERK
from vendor_wires import WIRES
from wire_server import Gate, WireRequest, WireServer

OLLAMA = WIRES["ollama"]
MODEL = ("--model", "ollama/llama3.2")


def said_in(request: WireRequest) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request.json["messages"]]

# ---------------------------------------------------------------------------------------------- through a pipe


def test_each_line_of_a_pipe_is_a_turn_and_the_conversation_is_kept(here: Here) -> None:
    with WireServer([OLLAMA.answer("Hel", "lo."), OLLAMA.answer("You said hi.")]) as server:
        done = here("chat", *MODEL, input="hi\n\nwhat did I say?", env=environment(OLLAMA_HOST=server.url))
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello.\nYou said hi.\n", "")
    said = [said_in(request) for request in server.requests]
    assert [role for role, _ in said[0]] == ["system", "user"]
    assert said[1][1:] == [("user", "hi"), ("assistant", "Hello."), ("user", "what did I say?")]


def test_a_vendors_failure_ends_the_turn_and_not_the_session(here: Here) -> None:
    answers = [OLLAMA.answer("One."), OLLAMA.error(400, "no luck"), OLLAMA.answer("Three.")]
    with WireServer(answers) as server:
        done = here("chat", *MODEL, input="1\n2\n3\n", env=environment(OLLAMA_HOST=server.url))
    assert (done.returncode, done.stdout) == (3, "One.\nThree.\n")
    assert "no luck" in error_lines(done.stderr)[0]
    # the failed second turn is not in the messages
    assert [text for _, text in said_in(server.requests[2])[1:]] == ["1", "One.", "3"]


def test_the_commands_of_a_session_work(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, "agent.py", ECHO)
    write(tmp_path, "precious.json", "{}")
    (tmp_path / "a.png").write_bytes(b"x")
    lines = [
        "/help", "one", "/save ~/talk.json", "two", "/save talk.json", "/save precious.json", "/save no/talk.json", "/save",
        "/attach a.png", "see", "again", "/attach", "/attach gone.png", "/attach a.png", "/reset", "/save empty.json", "//tmp", "/nope", "/quit", "not sent",
    ]  # fmt: skip
    done = here("chat", "agent.py", input="\n".join(lines))
    assert [line.partition("media_")[0] for line in done.stdout.splitlines()] == [
        "You said: one", "You said: two", "You said: see[image:", "You said: again", "You said: /tmp",
    ]  # fmt: skip
    assert [line for line in error_lines(done.stderr) if line.startswith("kernai:")] == [
        "kernai: error: precious.json exists, so it is left unchanged",
        "kernai: error: cannot write no/talk.json: No such file or directory",
        "kernai: error: /save needs a file",
        "kernai: error: /attach needs a file or a URL",
        "kernai: error: cannot read media file 'gone.png': No such file or directory",
        "kernai: error: there is no /nope",
    ]
    assert "note: the model text-only is not known to take image input" in done.stderr
    assert "/attach FILE|URL" in done.stderr
    notes = f"(2 messages in {tmp_path}/talk.json)", "(image image/png goes with the next line)", "(the conversation is forgotten)"
    assert set(notes) <= set(done.stderr.splitlines())
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["content"] for message in saved][::2] == ["one", "two"]
    assert stat.S_IMODE((tmp_path / "talk.json").stat().st_mode) == 0o600
    assert json.loads((tmp_path / "empty.json").read_text()) == []
    assert (tmp_path / "precious.json").read_text() == "{}"


def test_the_agents_own_failure_ends_the_turn_and_not_the_session(here: Here, tmp_path: Path) -> None:
    source = ECHO + "\nturns = iter([1])\ndef instructions():\n    next(turns)\n    raise RuntimeError('broken')\nagent.update_instructions(instructions)\n"
    write(tmp_path, "agent.py", source)
    done = here("chat", "agent.py", "-q", input="one\ntwo\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "kernai: error: RuntimeError: broken"
    assert len([line for line in done.stderr.splitlines() if line.startswith("kernai:")]) == 2


def test_a_recording_holds_every_turn_and_invalid_bytes_in_a_line_do_not_end_the_session(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    assert here("chat", "agent.py", "--record", "talk.jsonl", input=b"\xff\nok\n").stdout == "You said: \ufffd\nYou said: ok\n"
    inputs = [event["data"]["input"] for event in events_of(tmp_path / "talk.jsonl") if event["event"] == "run_start"]
    assert inputs == ["\ufffd", "ok"]


# ------------------------------------------------------------------------------------------------- in a terminal


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.set()


@pytest.mark.process
def test_ctrl_c_cancels_the_turn_and_not_the_session_even_before_the_first_word(tmp_path: Path, gate: Gate) -> None:
    answers = [OLLAMA.answer("This ", "never ends").trickle(gate), OLLAMA.answer("late").stall(gate), OLLAMA.answer("Fine.")]
    cancelled = "(cancelled; as if you had not asked)\n> "
    with WireServer(answers) as server:
        with Terminal(["chat", *MODEL], tmp_path, environment(OLLAMA_HOST=server.url)) as terminal:
            terminal.talk("> ", "never stop\r", "This", CTRL_C, cancelled, "hello?\r")
            server.until(lambda: len(server.requests) == 2)
            terminal.type(CTRL_C)
            terminal.talk(cancelled, "and now?\r", "Fine.\n> ", "/quit\r")
            assert terminal.end() == 0
        assert [text for _, text in said_in(server.requests[2])[1:]] == ["and now?"]
        gate.set()


WAITING = """
import threading
import kernai

@kernai.skill
def wait() -> str:
    threading.Event().wait()

WAIT = "<command name='wait'></command>"
TURNS = iter([WAIT, "<final>Fine.</final>"])
agent = kernai.Agent(instructions="x", provider=kernai.MockProvider().on_call(lambda *_: next(TURNS)), skills=["wait"])
"""


@pytest.mark.process
def test_ctrl_c_ends_a_skill_and_the_call_stays_in_the_conversation(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", WAITING)
    with Terminal(["chat", "agent.py"], tmp_path, environment()) as terminal:
        terminal.talk(
            "> ", "wait for it\r", "call wait", CTRL_C, "(cancelled)\n> ", "/save talk.json\r",
            "messages in talk.json)\n> ", "well?\r", "Fine.\n> ", CTRL_D,
        )
        assert terminal.end() == 0
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["role"] for message in saved][:2] == ["user", "assistant"]


@pytest.mark.process
def test_ctrl_c_at_the_prompt_clears_the_line_and_twice_in_a_row_ends_the_session(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    with Terminal(["chat", "agent.py"], tmp_path, environment()) as terminal:
        terminal.talk(
            "> ", "half a line", "half a line", CTRL_C, "(Ctrl-C again, Ctrl-D or /quit leaves)\n> ", "whole\r",
            "You said: whole\n> ", CTRL_C, "leaves)\n> ", CTRL_C,
        )
        assert terminal.end() == 130
    assert "half" not in terminal.shown.partition("You said")[2]


@pytest.mark.process
def test_repeated_ctrl_c_never_ends_the_session_even_if_tasks_hang(tmp_path: Path) -> None:
    plan = '<plan>{"goal": "g", "strategy": "parallel", "tasks": [{"id": "a", "input": "x"}, {"id": "b", "input": "x"}]}</plan>'
    write(tmp_path, "agent.py", WAITING.replace("iter([", f"iter([*[WAIT] * 3, '{plan}', WAIT, "))
    with Terminal(["chat", "agent.py"], tmp_path, environment()) as terminal:
        terminal.until("> ")
        for calls in (1, 1, 1, 2):
            terminal.type("go\r")
            for _ in range(calls):
                terminal.until("call wait")
            # the second Ctrl-C may come late and clear a line (a third would then be twice in a row), and it makes the
            # terminal drop pending output; what counts is that the session continues
            terminal.type(CTRL_C * 2)
            terminal.insist("/help\r", "Ctrl-C             cancel the turn")
        terminal.type("/quit\r")
        assert terminal.end() == 0


# ----------------------------------------------------------------------------------------------------------- in a store


COUNTING = """
from kernai import Agent, MockProvider, ProviderError

def answer(messages, model):
    if messages[-1].text == "fail":
        raise ProviderError("the vendor is down")
    return f"<final>{sum(one.role == 'user' for one in messages)} so far</final>"

agent = Agent(instructions="Count.", provider=MockProvider().on_call(answer), protocols=[])
"""
TALK = ("--store", "talks.db", "--run-id", "m")


def test_starting_again_with_the_same_id_continues_the_conversation(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    first = here("chat", "agent.py", *TALK, input="one\ntwo\n")
    assert (first.returncode, first.stdout) == (0, "1 so far\n2 so far\n")
    assert first.stderr == "Run m; to continue it later: kernai chat agent.py --store talks.db --run-id m\n"
    second = here("chat", "agent.py", *TALK, input="three\n/save all.json\n")
    assert second.stdout == "3 so far\n"
    assert "(the conversation continues; 4 messages so far)" in second.stderr.splitlines()
    assert [one["content"] for one in as_json((tmp_path / "all.json").read_text())][::2] == ["one", "two", "three"]


def test_a_failed_turn_stays_in_the_conversation_and_the_next_one_continues(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    done = here("chat", "agent.py", *TALK, input="one\nfail\nthree\n")
    assert (done.returncode, done.stdout) == (3, "1 so far\n3 so far\n")
    later = here("chat", "agent.py", *TALK, "-q", input="four\n")
    assert (later.stdout, later.stderr) == ("4 so far\n", "")


def test_a_reset_starts_another_run_and_shows_how_to_return(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    done = here("chat", "agent.py", *TALK, input="one\n/reset\ntwo\n")
    assert done.stdout == "1 so far\n1 so far\n"
    assert "the one before: kernai chat agent.py --store talks.db --run-id m)" in done.stderr
    with SqliteStore(tmp_path / "talks.db") as store:
        assert len(list(store.runs())) == 2


def test_an_agent_that_cannot_continue_is_refused_before_the_first_line(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK.replace(", approval=True", ""))
    assert here("chat", "clerk.py", *TALK, input="Refund order 42\n").returncode == 0
    done = here("chat", "clerk.py", *TALK, "--max-steps", "2", input="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert error_lines(done.stderr)[1] == "hint: --max-steps allows more"
    write(tmp_path, "clerk.py", CLERK.replace("skills=[find_order, refund]", "skills=[refund]"))
    done = here("chat", "clerk.py", *TALK, input="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = error_lines(done.stderr)
    assert "the agent decides differently" in error
    assert "begin another conversation, with another --run-id" in hint


def test_a_pause_ends_the_program_if_nobody_can_be_asked_and_is_kept(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK)
    for given in ("Refund order 42\ny\n", ""):
        done = here("chat", "clerk.py", *TALK, input=given)
        assert (done.returncode, done.stdout) == (4, "")
        shown = 'refund {"number": 42, "amount": 30} waits for your decision' in done.stderr
        assert (shown, "y approves" in done.stderr) == (True, False)
        error, hint = error_lines(done.stderr)
        assert ("nobody is here to ask" in error, "`kernai resume clerk.py talks.db m --approve 1.0`" in hint) == (True, True)
    assert not (tmp_path / "paid.txt").exists()


def test_at_a_pause_the_person_at_the_terminal_sees_the_whole_call_and_is_asked(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK.replace("30", "30" * 150))
    refused = here("chat", "clerk.py", *TALK, keys=Keys("Refund order 42\n", "\n", "it was never paid\n", "Refund order 42\n"))
    assert (refused.returncode, f'"amount": {"30" * 150}}} waits for your decision' in refused.stderr) == (0, True)
    assert refused.stderr.count("Enter looks again)") == 3
    assert "it was never paid</block>" in refused.stdout
    assert here("chat", "clerk.py", *TALK, keys=Keys("y\n")).stdout == "Order 42 is refunded.\n"
    assert (tmp_path / "paid.txt").read_text() == "30" * 150 + " "


REMINDING = """
from datetime import UTC, datetime, timedelta
from kernai import Agent, MockProvider, Pause, SkillContext, skill

@skill(register=False)
def remind(ctx: SkillContext) -> str:
    if ctx.woken:
        return "it is time"
    raise Pause("tea", until=datetime.now(UTC) + timedelta(milliseconds=1))

says = MockProvider('<command name="remind"></command>', "<final>Tea!</final>")
agent = Agent(instructions="", provider=says, skills=[remind])
"""


def test_an_empty_line_continues_a_call_whose_time_has_come(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", REMINDING)
    done = here("chat", "agent.py", *TALK, keys=Keys("Remind me\n", "\n"))
    assert (done.returncode, "remind {} (tea until 20" in done.stderr, done.stdout.endswith("Tea!\n")) == (0, True, True), done


@pytest.mark.parametrize("late", [False, True])
def test_a_chat_goes_on_if_somebody_else_ends_the_run_whose_call_it_asks_about(here: Here, tmp_path: Path, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        with SqliteStore(tmp_path / "talks.db") as store:
            assert end_run(store, "m")

    def typed() -> Iterator[str]:
        yield "Refund order 42\n"
        if not late:
            end()
        yield from ("y\n", "hello\n")

    def begun(*given: Any, **options: Any) -> Any:
        if late and options.get("approvals"):
            end()
        return stream(*given, **options)

    stream = package.stream
    monkeypatch.setattr(package, "stream", begun)
    write(tmp_path, "clerk.py", CLERK)
    keys = Keys()
    keys.typed = typed()
    done = here("chat", "clerk.py", *TALK, keys=keys)
    assert "(meanwhile, somebody else has decided or ended the run)" in done.stderr
    assert (done.returncode, done.stdout) == (0, "I read: hello\n"), done.stderr
    assert not (tmp_path / "paid.txt").exists()


@pytest.mark.process
def test_a_conversation_continues_after_its_process_was_killed(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK.replace(", approval=True", ""))
    write(tmp_path, "die", "")
    assert kernai("chat", "clerk.py", *TALK, cwd=tmp_path, input="Refund order 42\n").returncode == 9
    (tmp_path / "die").unlink()
    assert "`kernai resume clerk.py talks.db m --in-flight skip`" in error_lines(here("chat", "clerk.py", *TALK, input="hello\n").stderr)[1]
    done = here("chat", "clerk.py", *TALK, keys=Keys("perhaps\n", "skip\n", "hello\n"))
    assert done.stderr.count("was running when the program ended, and may have taken effect") == 2
    assert "(continuing the interrupted turn)" in done.stderr
    assert "the outcome of this call is unknown" in done.stdout
    assert done.stdout.endswith("I read: hello\n")
    assert (tmp_path / "paid.txt").read_text() == "30 "
    with SqliteStore(tmp_path / "talks.db") as store:
        assert [entry["event"] for entry in store.load("m")].count("in_flight") == 1


INTERRUPTED = """
import kernai, signal, time

@kernai.skill(register=False)
def wait(ctx: kernai.SkillContext) -> str:
    signal.pthread_kill(__import__("threading").main_thread().ident, signal.SIGINT)
    while not ctx.cancelled:
        time.sleep(0.01)

def answer(messages, model):
    return '<command name="wait"></command>' if messages[-1].text == "wait" else f"<final>You said: {messages[-1].text}</final>"

agent = kernai.Agent(instructions="x", provider=kernai.MockProvider().on_call(answer), skills=[wait])
"""


def test_a_cancelled_turn_is_not_resumed(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", INTERRUPTED)
    cancelled = here("chat", "agent.py", *TALK, keys=Keys("wait\n", "two\n"))
    assert "(cancelled)" in cancelled.stderr
    assert cancelled.stdout == "You said: two\n"
    assert here("chat", "agent.py", *TALK, input="three\n").stdout == "You said: three\n"
    assert here("chat", "agent.py", *TALK, input="wait\nfour\n").returncode == 130, "Ctrl-C ends a session with piped input"
