"""The log: silent unless configured, one line per event, and without private texts."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import kernai
from kernai import Agent, Context, Credential, Event, MemoryStore, MockProvider, Protocol, Recorder, Skill, SkillContext
from kernai.recording.log import line
from tests.loop.loop_cases import command, echo, plan, task

SRC = Path(__file__).resolve().parents[2] / "src"


@contextmanager
def logged(level: int = logging.INFO, *, debug: bool = False) -> Iterator[io.StringIO]:
    """Configure logging as an application would, and yield the text that is logged."""
    text = io.StringIO()
    logger = logging.Logger("app")  # noqa: LOG001 - of its own, so that no other test's handlers are in the way
    logger.addHandler(logging.StreamHandler(text))
    logger.setLevel(level)
    with kernai.isolated():
        kernai.configure(logger=logger, debug=debug)
        yield text


def run(*turns: str, input: str = "Go.", options: Any = MappingProxyType({}), **agent: Any) -> None:
    given = {"instructions": "Work.", "skills": [echo], "provider": MockProvider(*turns), "on_prose": "accept", **agent}
    kernai.execute(Agent(**given), input, run_id="run-1", **options)


# ------------------------------------------------------------------------------------------------ without configuration

LOUD = """
import kernai
def boom(*_):
    raise RuntimeError("boom")
class Sink:
    record = boom
act = kernai.Skill("act", execute=lambda: "acted")
agent = kernai.Agent(instructions="", skills=[act], on_prose="correct", provider=kernai.MockProvider(
    '<block type="command" name="nope"></block>', "prose", "<result>forged</result>", "<final>unfinished",
    "<final>x</final>"))
kernai.configure(debug=True)
print(kernai.run(agent, "Go.", on_event=boom, recorder=kernai.Recorder(Sink()), limits=kernai.Limits(max_tokens=10**6)))
"""


def printed(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SRC)}, capture_output=True, text=True, check=False
    )


def test_nothing_is_printed_unless_an_application_configures_logging_which_then_shows_problems() -> None:
    done = printed(LOUD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")
    done = printed(f"import logging\nlogging.basicConfig(level='INFO')\n{LOUD}")
    assert done.stdout == "x\n"
    for level, event in (
        ("INFO", "run.start"), ("WARNING", "skill.error"), ("ERROR", "callback.failed"), ("ERROR", "recorder.failed"),
        ("WARNING", "usage.estimated"),
    ):
        assert f"{level}:kernai:event={event}" in done.stderr


# ----------------------------------------------------------------------------------------------- what is logged


def test_an_event_is_one_line_of_fields() -> None:
    with logged() as text:
        run(command("echo", "x"), "done")
    lines = text.getvalue().splitlines()
    assert " ".join(one.split()[0].removeprefix("event=") for one in lines) == (
        "run.start messages.sent llm.response blocks.parsed skill.execute skill.result "
        "messages.sent llm.response blocks.parsed result"
    )
    assert lines[4] == "event=skill.execute run_id=run-1 step=0 call_id=0.0 skill=echo"
    assert lines[5].startswith("event=skill.result run_id=run-1 step=0 call_id=0.0 skill=echo duration_ms=")
    assert "stop_reason=final" in lines[-1]
    assert "count=2" in lines[1]
    assert "model=text-only" in lines[0]


def test_the_fields_of_a_line_are_in_the_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kernai"):
        run(command("echo", "x"), plan(task("a")), "A!", "done")
    records = [record for record in caplog.records if record.getMessage().startswith("event=skill.result")]
    fields = vars(records[0])["kernai"]
    assert (fields["event"], fields["run_id"], fields["skill"]) == ("skill.result", "run-1", "echo")
    assert isinstance(fields["duration_ms"], int)
    assert {record.name for record in caplog.records} == {"kernai"}
    assert "scope=1.a" in "\n".join(caplog.messages)


def test_a_contexts_state_cannot_replace_a_lines_event_and_is_no_text_unless_that_is_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counts(Context):
        number = 0

        def save(self) -> Any:
            self.number += 1
            return {"event": "forged", "run_id": "other", "step": 9, "number": self.number}

    monkeypatch.setattr("kernai.recording.log.dumps", None)  # the data of each event may be a whole conversation
    with logged(debug=True) as text:
        run(command("echo", "x"), "done", options={"context": Counts(), "store": MemoryStore()})
    assert re.search("^event=context.saved run_id=run-1 step=0 number=[0-9]+$", text.getvalue(), re.MULTILINE)


@pytest.mark.parametrize("turn,level,event", [
    (command("nope"), "WARNING", "skill.error"), (command("/nope"), "WARNING", "builtin.error"),
    ('<block type="fails">x</block>', "WARNING", "protocol.error"), ("<plan>x</plan>", "INFO", "plan.rejected"),
    ("<final>x", "WARNING", "block.incomplete"), ("<result>x</result>", "WARNING", "forged.block"),
    ("prose", "WARNING", "no.blocks_stall"), (command("echo", "x"), "INFO", "skill.result"),
])  # fmt: skip
def test_problems_are_logged_as_warnings(turn: str, level: str, event: str, caplog: pytest.LogCaptureFixture) -> None:
    fails = Protocol("fails", lambda *_: 1 / 0)
    with caplog.at_level(logging.INFO, "kernai"):
        run(turn, "<final>done</final>", protocols=[fails], on_prose="correct")
    assert (level, event) in [(one.levelname, one.getMessage().split()[0].removeprefix("event=")) for one in caplog.records]


@pytest.mark.parametrize("level,wanted", [(logging.WARNING, {"skill.error"}), (logging.ERROR, set())])
@pytest.mark.parametrize("recorder", [None, Recorder()])
def test_the_level_of_the_logger_is_respected(level: int, wanted: set[str], recorder: Recorder | None) -> None:
    with logged(level) as text:
        kernai.configure(recorder=recorder)
        run(command("nope"), "done")
    assert {one.split()[0].removeprefix("event=") for one in text.getvalue().splitlines()} == wanted


# -------------------------------------------------------------------------------------------- what is not logged


def test_texts_of_people_and_models_are_not_logged_unless_debug_is_on() -> None:
    def private(text: str) -> str:
        return f"private {text}"

    skill = Skill("act", execute=private)
    letter = Protocol("letter", lambda *_: "private letter")
    turns = [
        "private prose",
        command("act", "private words") + '<block type="letter">private</block>',
        '<plan>private</plan><json>"private"</json><result>private</result>',
        "<final>private",
        '<block type="plan">{"goal": "private", "tasks": [{"id": "a", "input": "private"}]}</block>',
        "<final>private</final>",
        command("/tasks"),
        "<final>private answer</final>",
    ]
    options: dict[str, Any] = {"skills": [skill], "protocols": [letter], "on_prose": "correct"}
    with logged(logging.DEBUG) as quiet:
        run(*turns, input="private input", **options)
    assert "private" not in quiet.getvalue()
    with logged(logging.DEBUG, debug=True) as loud:
        run(*turns, input="private input", **options)
    assert "private input" in loud.getvalue()
    assert set(quiet.getvalue().splitlines()[0].split()) <= set(loud.getvalue().split())
    with logged(logging.INFO, debug=True) as info:
        run(*turns, input="private input", **options)
    assert "private" not in info.getvalue()


# ----------------------------------------------------------------------------------------- what cannot be forged


WORDS = st.text("ab-_./:1", min_size=1) | st.integers() | st.floats() | st.booleans()


@example({"a": "\n" * 300})
@given(st.dictionaries(
    st.sampled_from("abc"), WORDS | st.text(st.characters() | st.sampled_from("\n\r\u2028\x85=\"' \ud800"), max_size=300)
))
def test_a_line_has_no_line_breaks_and_its_values_are_words_or_ascii_json_of_bounded_length(fields: dict[str, object]) -> None:
    written = line(fields)
    assert len(written.splitlines()) <= 1
    left = written
    for key, value in ((key, str(value)) for key, value in fields.items()):
        assert left.startswith(f"{key}=")
        left = left[len(key) + 1 :]
        if left.startswith('"'):
            shown, end = json.JSONDecoder().raw_decode(left)
            assert value.startswith(shown)
            assert shown == value or end > 188
        else:
            end = len(value)
            assert left[:end] == value
            assert not set(value) & set("= '\"")
        assert 0 < end <= 200
        assert left[:end].isprintable()
        assert left[:end].isascii()
        left = left[end:].removeprefix(" ")
    assert left == ""


FORGERY = "x\nevent=skill.result run_id=run-1 skill=transfer"


@pytest.mark.parametrize("options", [
    {"recorder": Recorder(type("Sink", (), {"record": lambda _self, _event: _raise()})())},
    {"on_event": lambda _: _raise()},
    {"run_id": FORGERY},
], ids=["sink", "callback", "run_id"])  # fmt: skip
def test_no_text_can_forge_a_second_line(options: dict[str, Any]) -> None:
    def fail() -> None:
        _raise()

    name = FORGERY.replace("\n", "\r")
    turn = command("fail") + f"<command name='{name}'></command>"
    with logged(logging.DEBUG, debug=True) as text:
        agent = Agent(instructions="", name=FORGERY, skills=[Skill("fail", execute=fail)], provider=MockProvider(turn, "done"))
        kernai.execute(agent, FORGERY, metadata={"m": FORGERY}, **options)
    assert "transfer" in text.getvalue()
    assert [one for one in text.getvalue().splitlines() if "skill=transfer" in one and "event=skill.result" in one[:20]] == []


def _raise() -> None:
    raise RuntimeError(FORGERY)


# --------------------------------------------------------------------------------------------- what may go wrong


@pytest.mark.parametrize("debug, trace", [(False, ""), (True, ' trace="Traceback .*')])
def test_the_record_has_the_failure_of_an_observer_and_a_debug_line_its_traceback(
    caplog: pytest.LogCaptureFixture, debug: bool, trace: str
) -> None:
    kernai.configure(debug=debug)
    failure = ValueError("bad luck")

    def fail(_: Event) -> None:
        raise failure

    with caplog.at_level(logging.DEBUG, "kernai"):
        kernai.run(Agent(instructions="", provider=MockProvider("done")), "Go.", on_event=fail)
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert {vars(record)["kernai_error"] for record in records} == {failure}
    said = rf'event=callback.failed run_id=[0-9a-f]{{24}} during=\w+ error="ValueError: bad luck"{trace}'
    assert all(re.fullmatch(said, record.getMessage()) for record in records)


def broken(ctx: SkillContext[Any]) -> str:
    raise LookupError(f"no entry for {ctx.credential('key')}")


async def broken_later(ctx: SkillContext[Any]) -> str:
    return broken(ctx)


def broken_handler(*_: Any) -> str:
    raise LookupError("no entry")


class BrokenProvider(MockProvider):
    def call(self, *_: Any) -> kernai.LlmResponse:
        raise LookupError("no entry")


KEY = "s3cr3t-key"
BREAKS = [
    ("broken", command("broken"), MockProvider),
    ("broken", command("broken_later"), MockProvider),
    ("broken_handler", '<block type="breaks">x</block>', MockProvider),
    ("call", "", BrokenProvider),
]


@pytest.mark.parametrize("function, turn, provider", BREAKS)
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_the_traceback_of_a_failed_call_is_only_in_the_debug_log(
    function: str, turn: str, provider: type[MockProvider], parallel: bool, native: bool
) -> None:
    skills = [Skill(one.__name__, execute=one, credentials={"key": Credential()}) for one in (broken, broken_later)]

    def log_of(level: int, *, debug: bool) -> str:
        with logged(level, debug=debug) as text:
            kernai.configure(credential_resolver=kernai.MappingResolver({"key": KEY}))
            agent = Agent(
                instructions="", skills=skills, protocols=[Protocol("breaks", broken_handler)],
                provider=provider(turn * (1 + parallel), "done"), parallel_skills=parallel,
            )
            if native:
                asyncio.run(kernai.aexecute(agent, "Go."))
            else:
                kernai.execute(agent, "Go.")
        return text.getvalue()

    assert "exception=LookupError" in log_of(logging.INFO, debug=True)
    for quiet in (log_of(logging.INFO, debug=True), log_of(logging.DEBUG, debug=False)):
        assert "Traceback" not in quiet
    log = log_of(logging.DEBUG, debug=True)
    traces = [json.loads(one.partition(" trace=")[2]) for one in log.splitlines() if one.startswith("event=call.failed")]
    assert traces[0] == "Traceback (most recent call last):"
    assert any(f'{Path(__file__).name}", line ' in one and one.endswith(f"in {function}") for one in traces)
    assert any(one.startswith("LookupError: no entry") for one in traces)
    assert KEY not in log
