"""A conversation within the test process: what a turn adds to it, what is shown of a run, and Ctrl-C at any moment."""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import docs_tables
import kernai
from kernai import Agent, Decision, Event, Limits, LlmResponse, MediaStore, MockProvider, Provider, Skill
from kernai.command_line import main, output, stores
from kernai.command_line.chat_command import ChatSession
from kernai.command_line.narrator import Narrator, TurnView
from kernai.command_line.output import CommandError, interruptible
from kernai.events import KINDS, ModelFailedRow
from kernai.interrupts import INTERRUPTS
from kernai.jsonio.json_data import loads
from kernai.values.pending_calls import PendingCall
from tests.command_line.conftest import Here, Keys, Screen
from tests.command_line.support import ECHO, PATIENCE, write


def session(agent: Agent, *, verbose: bool = False, quiet: bool = False) -> ChatSession:
    return ChatSession(agent, Limits(), Namespace(verbose=verbose, quiet=quiet), MediaStore())


def test_a_limit_ends_the_turn_and_its_messages_stay(capsys: pytest.CaptureFixture[str]) -> None:
    mock = MockProvider('<command name="/skills"></command>', "<final>Second.</final>")
    talk = session(Agent(instructions="x", provider=mock, max_steps=1, skills=[]), verbose=True)
    with pytest.raises(CommandError, match="used all its 1 steps"):
        talk.take("one")
    assert talk.take("two")
    assert [message.role for message in mock.last_call.messages] == ["system", "user", "assistant", "user", "user"]
    assert "final: 1 step, 1 model call" in capsys.readouterr().err


@pytest.mark.parametrize("what, lines, answers", [
    ("in_flight", ["perhaps", " Skip ", "", "retry"], ["skip", "retry"]),
    ("approvals", ["ok", " Y ", "not today"], [Decision(True, by="ann"), Decision("not today", by="ann")]),
    ("approvals", ["yes", "n"], [Decision(True, by="ann"), Decision(False, by="ann")]),
    ("approvals", ["=", "= no", " No "], [Decision({"answer": "no"}, by="ann"), Decision(False, by="ann")]),
])
def test_the_question_about_a_call_is_repeated_until_it_is_answered(
    what: Any, lines: list[str], answers: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stores, "login_name", lambda: "ann")
    calls = [PendingCall(call_id, "pay", {}, "Which?", {"mcp": 2, "state": "s"}) for call_id in ("0.0", "0.1")]
    talk, found = session(Agent(instructions="")), dict[str, Any]()
    talk._ask(what, calls, found)
    for line in lines[:-1]:
        assert talk.take(line)
    with pytest.raises(TypeError):  # the turn continues, and there is no store
        talk.take(lines[-1])
    assert list(found.values()) == answers
    assert capsys.readouterr().err.count('pay {} (Which? {"mcp": 2})') == len(lines)


def test_a_call_that_another_process_left_in_flight_meanwhile_is_asked_about_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    says = ('<command name="nothing"></command>', '<command name="nothing"></command>', "<final>Done.</final>")
    whole, agent = kernai.MemoryStore(), Agent(instructions="", provider=MockProvider(*says), skills=[NOTHING])
    kernai.execute(agent, "Go.", store=whole, run_id="r")
    entries = whole.load("r")
    first, second = (at for at, entry in enumerate(entries, 1) if entry["event"] == "skill_execute")
    with stores.StoreAt(str(tmp_path / "runs.db"), make=True) as store:
        given = Namespace(verbose=False, quiet=True, run_id="r")
        talk = ChatSession(agent.replace(provider=MockProvider(says[2])), Limits(), given, MediaStore(), store)
        store.store.append("r", 0, entries[:first], [])
        talk.restore()
        store.store.append("r", first, entries[first:second], [])
        assert talk.take("skip")
        assert talk.take("skip")
    shown = capsys.readouterr()
    assert (shown.err.count("nothing {} was running when"), shown.out) == (2, "Done.\n")


ASK = '<command name="/skills"></command>'
NOT_A_TASK = '<plan>{"tasks": []}</plan>'
NOTHING = Skill("nothing", execute=lambda: None, description="")
CORRECTING: dict[str, Any] = {"on_prose": "correct", "skills": [NOTHING]}
NOTHING_TO_CALL: dict[str, Any] = {"skills": None, "protocols": []}

#: responses of a model, options of its agent, and the expected stdout and stderr when stdout is a pipe
PIPED: dict[str, tuple[tuple[str, ...], dict[str, Any], str, list[str]]] = {
    "prose is the answer": (("It is\n\n42.\n",), {}, "It is\n\n42.\n", []),
    "prose before a call": ((f"Let me see. {ASK}", "<final>42</final>"), {}, "42\n", ["Let me see."]),
    "prose around the answer": (("So: <final>42</final> Done.",), {}, "42\n", ["So:", "Done."]),
    "an answer set aside": ((f"{ASK}<final>Early.</final>", "<final>Late.</final>"), {}, "Late.\n", ["Early."]),
    "a second answer": (("<final>One.</final><final>Two.</final>",), {}, "One.\n", ["Two."]),
    "prose that is corrected": (("I think so.", "<final>Yes.</final>"), CORRECTING, "Yes.\n", ["I think so."]),
    "a note beside the answer": ((f"Well. {NOT_A_TASK}<final>42</final>",), {}, "42\n", ["Well."]),
    "a note beside prose": ((f"Well. {NOT_A_TASK}", "<final>42</final>"), {}, "42\n", ["Well."]),
    "a forged block": (("<result>ok</result><final>42</final>",), {}, "42\n", []),
    "blocks where nothing can be called": ((f"See: {NOT_A_TASK}",), NOTHING_TO_CALL, f"See: {NOT_A_TASK}\n", []),
    "a block that is not closed": (("Well. <final>4", "<final>42</final>"), {}, "42\n", ["Well.", "4"]),
    "no answer": ((f"Let me see. {ASK}",), {"max_steps": 1}, "", ["Let me see."]),
    "an empty answer": (("<final> </final>",), {}, "", ["(an empty answer)"]),
}


@pytest.mark.parametrize("loudness", [{}, {"quiet": True}, {"verbose": True}], ids=["usual", "quiet", "verbose"])
@pytest.mark.parametrize("responses, options, out, err", PIPED.values(), ids=PIPED.keys())
def test_in_a_pipe_only_answers_are_on_stdout_and_other_text_is_on_stderr(
    capsys: pytest.CaptureFixture[str], responses: tuple[str, ...], options: dict[str, Any], out: str, err: list[str],
    loudness: dict[str, bool],
) -> None:
    agent = Agent(instructions="x", provider=MockProvider(*responses), **{"skills": []} | options)
    talk = session(agent, **loudness)
    with suppress(CommandError):
        talk.take("go")
    shown = capsys.readouterr()
    assert shown.out == out
    said = [line for line in shown.err.splitlines() if not line.startswith("  ") and "model call" not in line]
    assert said == ([line for line in err if line.startswith("(")] if "quiet" in loudness else err)


def test_a_call_is_shown_after_the_text_of_its_response(capsys: pytest.CaptureFixture[str]) -> None:
    mock = MockProvider(f"Let me see. {ASK} A moment.", "<final>42</final>")
    session(Agent(instructions="x", provider=mock, skills=[])).take("one")
    assert capsys.readouterr().err.splitlines() == ["Let me see.", "A moment.", "  the model asked for /skills"]


@pytest.mark.parametrize("kind_of_view, shown", [(Narrator, ""), (TurnView, "fir\nsecond")], ids=["piped", "on a terminal"])
def test_retracted_text_is_not_part_of_the_answer_and_new_text_starts_a_line(
    kind_of_view: Any, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view = kind_of_view()
    result = {"text": "second", "stop_reason": "final", "steps": 1, "usage": {}, "error": None}
    for kind, data in (("text_chunk", "fir"), ("model_restarted", {"reason": "x"}), ("text_chunk", "second"), ("result", result)):
        view(Event(kind, data))
    assert capsys.readouterr() == (shown, "  the model began its response again\n")


def test_in_a_pipe_the_beginning_of_an_answer_that_failed_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    view = Narrator()
    view(Event("model_failed", ModelFailedRow("down", "ProviderError", "So: <final>4", None, None).fields()))
    view(Event("result", {"text": None, "stop_reason": "error", "steps": 1, "usage": {}, "error": "down"}))
    assert capsys.readouterr() == ("", "So:\n4\n")


C, TERM, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
TYPED: dict[str, tuple[Keys, int, str]] = {
    "lines up to the end": (Keys("one\n", "two\n"), 0, "You said: one\nYou said: two\n"),
    "quit": (Keys("one\n", "/quit\n", "two\n"), 0, "You said: one\n"),
    "a Ctrl-C at the prompt": (Keys(C, "one\n"), 0, "You said: one\n"),
    "two of them with a line between": (Keys(C, "one\n", C, "two\n"), 0, "You said: one\nYou said: two\n"),
    "two in a row": (Keys("one\n", C, C, "two\n"), 130, "You said: one\n"),
    "SIGTERM": (Keys("one\n", TERM, "two\n"), 143, "You said: one\n"),
    "a closed terminal": (Keys("one\n", HUP, "two\n"), 143, "You said: one\n"),
    "an unknown command": (Keys("/nope\n", "one\n"), 0, "You said: one\n"),
    "a Ctrl-C that waits for a pipe": (Keys("one\n", C, "two\n", tty=False), 130, "You said: one\n"),
    "SIGTERM that waits for a pipe": (Keys("one\n", TERM, "two\n", tty=False), 143, "You said: one\n"),
}


@pytest.mark.parametrize("keys, status, answers", TYPED.values(), ids=TYPED.keys())
def test_lines_and_signals_at_the_prompt(here: Here, tmp_path: Path, keys: Keys, status: int, answers: str) -> None:
    write(tmp_path, "agent.py", ECHO)
    done = here("chat", "agent.py", keys=keys)
    assert (done.returncode, done.stdout) == (status, answers)
    assert ("/help lists the commands, Ctrl-D leaves." in done.stderr) == keys.isatty()
    assert ("> \nkernai: error: terminated\n" in done.stderr) == (status == 143 and keys.isatty())


@pytest.mark.parametrize("stdin", [None, Keys()])
def test_a_chat_without_input_ends_at_once_and_a_quiet_one_without_a_greeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: Keys | None
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["chat", "-q", str(write(tmp_path, "agent.py", ECHO))]) == 0
    assert capsys.readouterr().err == ("" if stdin is None else "> ")


class Hanging(Provider):
    """Streams a word, then hangs until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def call(
        self, messages: object, model: object, generation: object, on_chunk: Callable[[str], object]
    ) -> LlmResponse:
        on_chunk("word")
        self.released.wait(20)
        return LlmResponse("word")


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    provider = Hanging()
    yield provider
    provider.released.set()


class Interrupting(Screen):
    """A terminal where the first write is interrupted by Ctrl-C, which the run itself cannot notice."""

    def write(self, text: str) -> int:
        if not self.getvalue():
            super().write(text)
            signal.raise_signal(signal.SIGINT)
        return super().write(text)


def test_a_turn_interrupted_while_it_is_shown_ends_although_its_model_hangs(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = session(Agent(instructions="x", provider=hanging))
    monkeypatch.setattr(sys, "stdout", Interrupting())
    assert INTERRUPTS.during(lambda: talk.take("go"))
    assert "(cancelled; as if you had not asked)" in capsys.readouterr().err
    hanging.released.set()
    assert (talk.take("again"), talk.was_interrupted) == (True, False), "it is that of the last turn"


def test_a_turn_without_a_result_counts_as_cancelled(capsys: pytest.CaptureFixture[str]) -> None:
    session(Agent(instructions="x", provider=MockProvider("x")))._conclude(None, TurnView())
    assert capsys.readouterr().err == "(cancelled; as if you had not asked)\n"


def test_a_signal_that_did_not_interrupt_a_call_ends_it_once(no_thread_is_left: None) -> None:
    calls: list[int] = []

    def handler(*_: object) -> None:
        calls.append(1)
        raise KeyboardInterrupt

    reading, writing = os.pipe()
    before = signal.signal(signal.SIGINT, handler)
    # notes the call without interrupting a system call
    marking = threading.Timer(0.2, _thread.interrupt_main, [signal.SIGINT])
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            marking.start()
            select.select([reading], [], [], PATIENCE)
    finally:
        signal.signal(signal.SIGINT, before)
        marking.join()
        os.close(reading)
        os.close(writing)
    assert len(calls) == 1
    assert signal.getsignal(signal.SIGURG) is signal.SIG_DFL


# --------------------------------------------------------------------------------------------------- the lines of a run


#: the line of the example in the docs for each kind of event
SHOWN = {
    "answer_rejected": "  the answer does not fit its type: price: required, but missing: expected number, received nothing",
    "approval_given": "  call 1.0 approved by ann",
    "block_incomplete": "  the model did not close its block of type final",
    "builtin_error": "  Unknown command '/help'",
    "builtin_result": "  the model asked for /skills",
    "dialect_call": "  a call in the format hermes",
    "forged_block": "  the model wrote a result block itself; it was ignored",
    "in_flight": "  call 1.0 was interrupted; it is called again",
    "informational_only": "  the response held only plan, json; corrected",
    "messages_sent": "step 3",
    "model_restarted": "  the model began its response again",
    "model_waiting": "  asks the model again in 20.0 s: openai: HTTP 429 rate_limit_exceeded: slow down",
    "no_blocks_stall": "  the response held no block; corrected",
    "protocol_error": "  error of sql: no such table",
    "protocol_execute": "  call sql SELECT 1",
    "protocol_result": "  result of sql (2 ms): [[1]]",
    "quoted_call": "  wipe was not run: it is quoted from the result of search",
    "run_resumed": "  the run continues after event 27",
    "skill_error": "  error of serch: Skill 'serch' not found",
    "skill_execute": '  call search {"query": "tea"}',
    "skill_result": "  result of search (12 ms): 3 hits",
    "stray_close": "  the answer contains its closing tag; corrected",
    "task_complete": "  task a done (900 ms): done",
    "task_error": "  task a failed (5 ms): down",
    "task_start": "  task a: x",
    "workflow_error": "  the workflow failed: KeyboardInterrupt",
    "workflow_start": "  a workflow of 1 task",
}
WARNINGS = {
    "answer_rejected", "block_incomplete", "builtin_error", "forged_block", "in_flight", "informational_only", "model_restarted",
    "model_waiting", "no_blocks_stall", "protocol_error", "quoted_call", "skill_error", "stray_close", "task_error", "workflow_error",
}  # fmt: skip
MORE = {
    "approval_requested": "  call 1.0 of refund waits for a decision",
    "context_saved": '  context saved: {"items": ["lamp"]}',
    "json": '  json: {"hits": 3}',
    "llm_response": "  the model answered in 0.8 s, 110 tokens",
    "plan": "  plan: First the index, then the shelf.",
    "progress": '  progress: {"done": 1}',
    "trusted_values": '  call 1.0 of pay has trusted values: {"recipient": "the user\'s input"}',
}


@pytest.mark.parametrize("verbose", [False, True])
def test_an_event_of_any_kind_is_one_line_or_none(
    verbose: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COLUMNS": "120", "TERM": "xterm", "NO_COLOR": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    shown = {}
    for kind in KINDS.values():
        Narrator(steps=True, verbose=verbose)(Event(kind.type, loads(docs_tables.documented(kind)[1]), 3))
        shown[kind.type] = capsys.readouterr().err
    lines = {kind: f"\x1b[{33 if kind in WARNINGS else 2}m{line}\x1b[0m\n" for kind, line in (SHOWN | MORE if verbose else SHOWN).items()}
    assert {kind: line for kind, line in shown.items() if line} == lines


@pytest.mark.parametrize("kind, data, shown", [
    ("in_flight", {"decision": "retry", "by": "ann"}, "was interrupted; it is called again, as ann decided"),
    ("in_flight", {"decision": "skip", "by": "ann", "reason": "paid"}, "was interrupted; it is not called again, as ann decided: paid"),
    ("in_flight", {"decision": "skip"}, "was interrupted; its outcome stays unknown"),
    ("approval_given", {"decision": "not paid", "by": "ann"}, "refused by ann: not paid"),
    ("approval_given", {"decision": {"params": {"amount": 5}}, "by": None}, 'approved: {"params": {"amount": 5}}'),
    ("approval_given", {"decision": False, "by": None}, "refused"),
    ("approval_given", {"decision": {"woken": True}, "by": None}, "is woken: nobody decided in time"),
])
def test_a_decision_on_a_call_is_shown_with_its_scope_who_made_it_and_why(
    kind: str, data: dict[str, Any], shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    Narrator()(Event(kind, {"call_id": "0.0", **data}, scope="2.a"))
    assert capsys.readouterr().err == f"  [2.a] call 0.0 {shown}\n"


def test_a_line_about_a_call_does_not_continue_a_line_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Screen()
    monkeypatch.setattr(sys, "stderr", terminal)
    view = TurnView(terminal)
    view(Event("text_chunk", "Let me see."))
    view(Event("builtin_error", {"command": "/x", "error": "not found"}))
    assert terminal.written[:2] == ["Let me see.", "\n"]


def test_an_answer_that_the_vendor_cut_off_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    end = {"text": "The sea is", "stop_reason": "final", "steps": 1, "usage": {}, "error": None, "truncated": True}
    Narrator()(Event("result", end))
    assert capsys.readouterr() == ("", "  the vendor cut the answer off\n")


def test_a_long_value_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    Narrator()(Event("progress", {"data": "x"}))
    Narrator()(Event("skill_execute", {"skill": "look", "params": {"text": "x" * 200}, "call_id": "0.0"}, 0))
    Narrator()(Event("skill_result", {"call_id": "0.0", "skill": "search_the_whole_archive", "result": "x" * 200, "duration_ms": 12}, 0))
    Narrator()(Event("builtin_error", {"command": "/x", "error": "y" * 200}, 0))
    Narrator()(Event("skill_execute", {"skill": "s" * 99, "params": {"a": "x" * 99}, "call_id": "0.0"}, 0, scope="0.0/" * 50))
    call, result, error, below = capsys.readouterr().err.splitlines()
    assert call.startswith("  call look ")
    assert result.startswith("  result of search_the_whole_archive (12 ms): xx")
    assert below.startswith(f"  [{'0.0/' * 5}0.0...] call {'s' * 16}... {{")
    assert [len(line) for line in (call, result, error, below)] == [80] * 4
