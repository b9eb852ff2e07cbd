"""`kernai chat`: through a pipe, in a real terminal with real Ctrl-C, and with a store that outlives the process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernai import SqliteStore
from tests.command_line.conftest import Here
from tests.command_line.support import (
    AGENT,
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
from wire_server import Gate, WireServer

OLLAMA = WIRES["ollama"]
MODEL = ("--model", "ollama/llama3.2")

# ---------------------------------------------------------------------------------------------- through a pipe


def test_each_line_of_a_pipe_is_a_turn_and_the_conversation_is_kept(here: Here, tmp_path: Path) -> None:
    with WireServer([OLLAMA.answer("Hel", "lo."), OLLAMA.answer("You said hi.")]) as server:
        done = here("chat", *MODEL, cwd=tmp_path, input="hi\n\nwhat did I say?", env=environment(OLLAMA_HOST=server.url))
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello.\nYou said hi.\n", "")
    said = [OLLAMA.text_of(request) for request in server.requests]
    assert [role for role, _ in said[0]] == ["system", "user"]
    assert said[1][1:] == [("user", "hi"), ("assistant", "Hello."), ("user", "what did I say?")]


def test_a_vendors_failure_ends_the_turn_and_not_the_session(here: Here, tmp_path: Path) -> None:
    answers = [OLLAMA.answer("One."), OLLAMA.error(400, "no luck"), OLLAMA.answer("Three.")]
    with WireServer(answers) as server:
        done = here("chat", *MODEL, cwd=tmp_path, input="1\n2\n3\n", env=environment(OLLAMA_HOST=server.url))
    assert (done.returncode, done.stdout) == (3, "One.\nThree.\n")
    assert "no luck" in error_lines(done.stderr)[0]
    # the failed second turn is not in the messages
    assert [text for _, text in OLLAMA.text_of(server.requests[2])[1:]] == ["1", "One.", "3"]


def test_the_commands_of_a_session_work(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    write(tmp_path, "precious.json", "{}")
    (tmp_path / "a.png").write_bytes(b"x")
    lines = [
        "/help", "one", "/save talk.json", "two", "/save talk.json", "/save precious.json", "/save no/talk.json", "/save",
        "/attach a.png", "see", "/attach", "/attach gone.png", "/reset", "/save empty.json", "//tmp", "/nope", "/quit", "not sent",
    ]  # fmt: skip
    done = here("chat", "agent.py", cwd=tmp_path, input="\n".join(lines))
    assert [line.partition("[")[0] for line in done.stdout.splitlines()] == [
        "You said: one", "You said: two", "You said: see", "You said: /tmp",
    ]  # fmt: skip
    assert [line for line in error_lines(done.stderr) if line.startswith("kernai:")] == [
        "kernai: error: precious.json exists, so it is left unchanged",
        "kernai: error: cannot write no/talk.json: No such file or directory",
        "kernai: error: /save needs a file",
        "kernai: error: /attach needs a file or a URL",
        "kernai: error: cannot read gone.png: No such file or directory",
        "kernai: error: there is no /nope",
    ]
    assert "/attach FILE|URL" in done.stderr
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["content"] for message in saved][::2] == ["one", "two"]
    assert json.loads((tmp_path / "empty.json").read_text()) == []
    assert (tmp_path / "precious.json").read_text() == "{}"


def test_saving_a_conversation_again_replaces_a_link_instead_of_following_it(here: Here, tmp_path: Path) -> None:
    lay = "import kernai, os\ndef answer(messages, model):\n    if messages[-1].text == 'lay':\n        os.rename('talk.json', 'elsewhere')\n        os.symlink('elsewhere', 'talk.json')\n    return '<final>ok</final>'\n"
    write(tmp_path, "agent.py", lay + "agent = kernai.Agent(instructions='x', provider=kernai.MockProvider().on_call(answer))\n")
    here("chat", "agent.py", cwd=tmp_path, input="one\n/save talk.json\nlay\n/save talk.json\n")
    saved = [len(json.loads((tmp_path / name).read_text())) for name in ("elsewhere", "talk.json")]
    assert saved == [2, 4]
    assert not (tmp_path / "talk.json").is_symlink()


def test_attached_media_are_sent_with_the_next_line_only(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    (tmp_path / "a.png").write_bytes(b"x")
    done = here("chat", "agent.py", cwd=tmp_path, input="/attach a.png\nsee\nagain\n")
    first, second = done.stdout.splitlines()
    assert first.startswith("You said: see[image:media_")
    assert second == "You said: again"
    assert "note: the model text-only is not known to take image input" in done.stderr


@pytest.mark.process
def test_output_of_skills_and_their_programs_goes_to_stderr_in_a_chat(tmp_path: Path) -> None:
    prints = "print('counting')\n    import subprocess; subprocess.run(['echo', 'a program'], check=True)\n    return f"
    write(tmp_path, "agent.py", AGENT.replace("return f", prints))
    done = kernai("chat", "agent.py", cwd=tmp_path, input="How many lamps?\n")
    assert done.stdout == "We have 12 lamps.\n"
    assert {"counting", "a program"} <= set(done.stderr.splitlines())


@pytest.mark.process
def test_a_tilde_is_the_home_folder(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    env = environment() | {"HOME": str(tmp_path)}
    assert kernai("chat", "agent.py", cwd=tmp_path, input="one\n/save ~/talk.json\n", env=env).returncode == 0
    assert (tmp_path / "talk.json").exists()


def test_a_recording_holds_every_turn(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    here("chat", "agent.py", "--record", "talk.jsonl", cwd=tmp_path, input="one\ntwo\n")
    inputs = [event["data"]["input"] for event in events_of(tmp_path / "talk.jsonl") if event["event"] == "run_start"]
    assert inputs == ["one", "two"]


def test_the_agents_own_failure_ends_the_turn_and_not_the_session(here: Here, tmp_path: Path) -> None:
    source = ECHO + "\nturns = iter([1])\ndef instructions():\n    next(turns)\n    raise RuntimeError('broken')\nagent.update_instructions(instructions)\n"
    write(tmp_path, "agent.py", source)
    done = here("chat", "agent.py", "-q", cwd=tmp_path, input="one\ntwo\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "kernai: error: RuntimeError: broken"
    assert len([line for line in done.stderr.splitlines() if line.startswith("kernai:")]) == 2


def test_invalid_bytes_in_a_line_do_not_end_the_session(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    assert here("chat", "agent.py", cwd=tmp_path, input=b"\xff\nok\n").stdout == "You said: \ufffd\nYou said: ok\n"


@pytest.mark.process
def test_closing_the_output_early_ends_the_session_quietly(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    command = f"yes hello | {sys.executable} -m kernai chat agent.py -q | head -1; echo ${{PIPESTATUS[1]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("You said: hello\n141\n", "")


# ------------------------------------------------------------------------------------------------- in a terminal


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.set()


@pytest.mark.process
def test_quiet_shows_no_greeting(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", ECHO)
    with Terminal(["chat", "agent.py", "-q"], tmp_path, environment()) as terminal:
        assert terminal.until("> ") == "> "
        terminal.type(CTRL_D)
        assert terminal.end() == 0


@pytest.mark.process
def test_ctrl_c_cancels_the_turn_and_not_the_session(tmp_path: Path, gate: Gate) -> None:
    answers = [OLLAMA.answer("This ", "never ends").trickle(gate), OLLAMA.answer("Fine.")]
    with WireServer(answers) as server:
        with Terminal(["chat", *MODEL], tmp_path, environment(OLLAMA_HOST=server.url)) as terminal:
            terminal.talk(
                "> ", "never stop\r", "This", CTRL_C, "(cancelled; as if you had not asked)\n> ", "and now?\r",
                "Fine.\n> ", "/quit\r",
            )
            assert terminal.end() == 0
        assert [text for _, text in OLLAMA.text_of(server.requests[1])[1:]] == ["and now?"]


@pytest.mark.process
def test_ctrl_c_before_the_first_word_does_not_wait_for_the_vendor(tmp_path: Path, gate: Gate) -> None:
    with WireServer([OLLAMA.answer("late").stall(gate), OLLAMA.answer("Fine.")]) as server:
        with Terminal(["chat", *MODEL], tmp_path, environment(OLLAMA_HOST=server.url)) as terminal:
            terminal.talk("> ", "hello?\r")
            server.until(lambda: len(server.requests) == 1)
            terminal.type(CTRL_C)
            terminal.talk("(cancelled; as if you had not asked)\n> ", "again\r", "Fine.\n> ", CTRL_D)
            assert terminal.end() == 0
        gate.set()


WAITING = """
import threading
import kernai

@kernai.skill
def wait() -> str:
    threading.Event().wait()

TURNS = iter(["<command name='wait'></command>", "<final>Fine.</final>"])
agent = kernai.Agent(
    instructions="x", provider=kernai.MockProvider().on_call(lambda *_: next(TURNS)), skills=["wait"]
)
"""


@pytest.mark.process
def test_one_ctrl_c_abandons_tasks_that_hang(tmp_path: Path) -> None:
    plan = '<plan>{"goal": "g", "strategy": "parallel", "tasks": [{"id": "a", "input": "x"}, {"id": "b", "input": "x"}]}</plan>'
    write(tmp_path, "agent.py", WAITING.replace("TURNS = iter([", f"TURNS = iter(['{plan}', \"<command name='wait'></command>\", "))
    with Terminal(["chat", "agent.py"], tmp_path, environment()) as terminal:
        terminal.talk("> ", "both\r")
        for _ in range(2):
            terminal.until("] call wait")
        terminal.type(CTRL_C)
        terminal.until("(cancelled)\n> ")
        terminal.insist("and now?\r", "Fine.\n> ")
        terminal.type("/quit\r")
        assert terminal.end() == 0


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
def test_repeated_ctrl_c_never_ends_the_session_during_a_turn(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", WAITING.replace("TURNS = iter([", "TURNS = iter([\"<command name='wait'></command>\"] * 10 + ["))
    with Terminal(["chat", "agent.py"], tmp_path, environment()) as terminal:
        terminal.until("> ")
        for _ in range(10):
            terminal.type("go\r")
            terminal.until("call wait")
            # the second Ctrl-C may come late and clear a line (a third would then be twice in a row), and it makes the
            # terminal drop pending output; what counts is that the session continues
            terminal.type(CTRL_C * 2)
            terminal.insist("/help\r", "Ctrl-C             cancel the turn")
        terminal.type("/quit\r")
        assert terminal.end() == 0


@pytest.mark.process
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_session_that_waits_for_a_pipe(tmp_path: Path, number: int, status: int) -> None:
    write(tmp_path, "agent.py", ECHO)
    with subprocess.Popen(
        [sys.executable, "-m", "kernai", "chat", "agent.py"],
        cwd=tmp_path, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == "You said: hello\n"
        process.send_signal(number)
        assert process.wait(30) == status
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


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


def lines_of(run_id: str, folder: Path) -> list[str]:
    with SqliteStore(folder / "talks.db") as store:
        return [entry["event"] for entry in store.load(run_id)]


def leave(terminal: Terminal) -> None:
    terminal.until("> ")  # Ctrl-D must not be sent before the session reads lines
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_starting_again_with_the_same_id_continues_the_conversation(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    first = here("chat", "agent.py", *TALK, cwd=tmp_path, input="one\ntwo\n")
    assert (first.returncode, first.stdout) == (0, "1 so far\n2 so far\n")
    assert first.stderr == "Run m; to continue it later: kernai chat agent.py --store talks.db --run-id m\n"
    second = here("chat", "agent.py", *TALK, cwd=tmp_path, input="three\n/save all.json\n")
    assert second.stdout == "3 so far\n"
    assert "(the conversation continues; 4 messages so far)" in second.stderr.splitlines()
    assert [one["content"] for one in as_json((tmp_path / "all.json").read_text())][::2] == ["one", "two", "three"]


def test_a_failed_turn_stays_in_the_conversation_and_the_next_one_continues(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    done = here("chat", "agent.py", *TALK, cwd=tmp_path, input="one\nfail\nthree\n")
    assert (done.returncode, done.stdout) == (3, "1 so far\n3 so far\n")
    assert here("chat", "agent.py", *TALK, cwd=tmp_path, input="four\n").stdout == "4 so far\n"


def test_a_reset_starts_another_run_and_shows_how_to_return(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "agent.py", COUNTING)
    done = here("chat", "agent.py", *TALK, cwd=tmp_path, input="one\n/reset\ntwo\n")
    assert done.stdout == "1 so far\n1 so far\n"
    assert "the one before: kernai chat agent.py --store talks.db --run-id m)" in done.stderr
    with SqliteStore(tmp_path / "talks.db") as store:
        assert len(list(store.runs())) == 2


def test_a_changed_agent_is_refused_before_the_first_line(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK.replace(", approval=True", ""))
    assert here("chat", "clerk.py", *TALK, cwd=tmp_path, input="Refund order 42\n").returncode == 0
    write(tmp_path, "clerk.py", CLERK.replace("skills=[find_order, refund]", "skills=[refund]"))
    done = here("chat", "clerk.py", *TALK, cwd=tmp_path, input="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = error_lines(done.stderr)
    assert "the agent decides differently" in error
    assert "begin another conversation, with another --run-id" in hint


def test_a_conversation_with_longer_turns_than_allowed_now_needs_more_steps_and_no_other_run(
    here: Here, tmp_path: Path
) -> None:
    write(tmp_path, "clerk.py", CLERK.replace(", approval=True", ""))
    assert here("chat", "clerk.py", *TALK, cwd=tmp_path, input="Refund order 42\n").returncode == 0
    done = here("chat", "clerk.py", *TALK, "--max-steps", "2", cwd=tmp_path, input="hello\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert error_lines(done.stderr)[1] == "hint: --max-steps allows more"


def test_a_pause_ends_the_program_if_nobody_can_be_asked_and_is_kept(here: Here, tmp_path: Path) -> None:
    write(tmp_path, "clerk.py", CLERK)
    for given in ("Refund order 42\ny\n", ""):
        done = here("chat", "clerk.py", *TALK, cwd=tmp_path, input=given)
        assert (done.returncode, done.stdout) == (4, "")
        assert 'refund {"number": 42, "amount": 30} waits for your decision' in done.stderr
        assert "nobody is here to ask" in error_lines(done.stderr)[0]
    assert not (tmp_path / "paid.txt").exists()


@pytest.mark.slow
@pytest.mark.process
def test_at_a_pause_the_person_at_the_terminal_is_asked(tmp_path: Path) -> None:
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
def test_a_conversation_continues_after_its_process_was_killed(tmp_path: Path) -> None:
    hanging = "print('moved', flush=True); __import__('time').sleep(60)"
    write(tmp_path, "clerk.py", CLERK.replace(", approval=True", "").replace("os._exit(9)", hanging))
    write(tmp_path, "die", "")
    with Terminal(["chat", "clerk.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk("> ", "Refund order 42\n")
        terminal.until("moved")  # leaving the block kills the program with SIGKILL
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
def test_a_cancelled_turn_is_not_resumed(tmp_path: Path) -> None:
    write(tmp_path, "agent.py", SLOW_ECHO)
    with Terminal(["chat", "agent.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk("> ", "wait\n", "asked", CTRL_C, "(cancelled)")
        terminal.insist("two\n", "You said: two")
        leave(terminal)
    with Terminal(["chat", "agent.py", *TALK], tmp_path, environment()) as terminal:
        terminal.talk("messages so far)", "three\n", "You said: three")
        leave(terminal)
    assert "asked" not in terminal.shown
