"""How scenarios are written, and how a run of one ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import ExpectationError, Outcome, Scenario

import kernai
from tests.scenarios.scenario_process import ENVIRONMENT, TURNS, Demo, tape


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


# ---------------------------------------------------------------------------------------------- writing a scenario


def scenario() -> Scenario:
    return Scenario("demo", description="tries things out")


def test_a_skill_of_a_scenario_may_have_options_or_be_an_agent_and_is_not_registered_globally() -> None:
    one = scenario()
    helper = kernai.Agent(instructions="Help.").as_skill("helper", "Helps.")
    assert one.add_skill(helper) is helper

    @one.skill(name="look", requires="vision", produces="image")
    def look_at(picture: kernai.Media) -> str:
        """Look at it."""
        return picture.id

    assert one.definition.skills == [helper, look_at]
    assert (look_at.name, look_at.requires, look_at.produces) == ("look", ("vision",), ("image",))
    assert kernai.skills.find("look") is None


async def awaited(*_: Outcome) -> bool:
    return False


@pytest.mark.parametrize("misuse, complaint", [
    (lambda: Scenario("no/such name", description=""), "name must be the file's name"),
    (lambda: scenario().add_skill(len), "add_skill takes a Skill, got builtin_function_or_method"),  # type: ignore[type-var]
    (lambda: scenario().protocols("mcp"), r"did you mean \['mcp'\]"),
    (lambda: scenario().capabilities("text"), r"did you mean \['text'\]"),
    (lambda: scenario().expect(True), "expect must be a plain function of the Outcome, got True"),  # type: ignore[call-overload]
    (lambda: scenario().expect(awaited), "expect must be a plain function of the Outcome, got the async function <function awaited"),
    (lambda: scenario().expect(lambda: True), "expect must be a function of the Outcome: too many"),  # type: ignore[type-var]
    (lambda: scenario().prepare(awaited), "prepare must be a plain function of no arguments"),
    (lambda: scenario().capabilities(["sight"]), "unknown capability 'sight'"),
])
def test_a_mistake_in_a_scenario_is_an_error_at_the_call(misuse: Callable[[], object], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError), match=complaint):
        misuse()


def outcome_of(text: str, *events: kernai.Event) -> Outcome:
    return Outcome(kernai.Result(text, kernai.StopReason.FINAL, 1, kernai.Usage(), (), "run"), events)


def raising(_: Outcome) -> bool:
    raise ExpectationError("ordered 3, due 4")


def broken(outcome: Outcome) -> bool:
    return bool(dict[str, int]()[outcome.text])


@pytest.mark.parametrize("check, options, holds, name, reason", [
    (lambda outcome: "x" in outcome.text, {"name": "has an x"}, True, "has an x", ""),
    (lambda outcome: outcome.of("plan"), {"name": "plans", "reason": "no plan"}, False, "plans", "no plan"),
    (lambda outcome: None, {"name": "forgot"}, False, "forgot", "it returned None, but must return True or False"),
    (raising, {}, False, "raising", "ordered 3, due 4"),
    (broken, {}, False, "broken", "it raised KeyError: 'x'"),
    (lambda outcome: sys.exit(0), {"name": "leaves"}, False, "leaves", "it raised SystemExit: 0"),
])
def test_an_expectation_says_why_it_does_not_hold(
    check: Any, options: dict[str, str], holds: bool, name: str, reason: str
) -> None:
    one = scenario()
    assert one.expect(check, **options) is check
    (expectation,) = one.definition.expectations
    verdict = expectation.judge(outcome_of("x"))
    assert (verdict.holds, verdict.name, verdict.reason) == (holds, name, reason)


def test_an_expectation_may_be_a_lambda_without_a_name_or_be_decorated_with_a_reason() -> None:
    one = scenario()
    one.expect(lambda outcome: True)
    assert one.definition.expectations[0].name.startswith("expectation 1 (line ")

    @one.expect(reason="the answer is empty")
    def says_something(outcome: Outcome) -> bool:
        return bool(outcome.text)

    assert one.definition.expectations[1].judge(outcome_of("")).reason == "the answer is empty"


def test_an_outcome_has_the_calls_and_results_of_skills_tasks_and_protocols() -> None:
    recorded: list[tuple[str, dict[str, Any]]] = [
        ("skill_result", {"skill": "a", "result": 1}), ("skill_result", {"skill": "b", "result": 2}), ("skill_error", {"skill": "a", "error": "no"}),
        ("workflow_complete", {"results": {"one": "1", "two": "error: no"}}), ("workflow_complete", {"results": {"two": "2"}}),
        ("protocol_result", {"protocol": "mcp", "result": "m"}), ("protocol_result", {"protocol": "desk", "result": "t"}),
    ]
    outcome = outcome_of("x", *(kernai.Event(type, data) for type, data in recorded))
    assert (outcome.results_of("a"), outcome.errors_of("a"), outcome.errors_of("b")) == ([1], ["no"], [])
    assert (outcome.task_results(), len(outcome.of("skill_result"))) == ({"one": "1", "two": "2"}, 2)
    assert (outcome.protocol_results(), outcome.protocol_results("mcp")) == (["m", "t"], ["m"])


# -------------------------------------------------------------------------------------------------- good runs


@pytest.mark.process
def test_a_good_run_ends_with_the_expectations_that_hold_and_status_0(demo: Demo) -> None:
    done = demo.process("--tape", demo.tape)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "ok: gives the number"
    assert f"log: {demo.log_files[0]}" in done.stdout


NEVER = "scenario.expect(lambda outcome: False, name='quotes', reason='said:\\nok: gives the number')"
PREPARED = "@scenario.prepare\ndef make():\n    "
DESK = """
scenario.protocols([kernai.Protocol('desk', lambda block, ctx: 'closed: ' + block.content)])
scenario.expect(lambda outcome: outcome.protocol_results() == ['closed: 7'], name='desk')
"""
PLAN = '<block type="plan">{"tasks": [{"id": "a", "input": "not on the tape"}]}</block>'
#: by what is special about a scenario: the lines that make it so, its tape, its exit status, and what it says
ENDINGS: dict[str, tuple[str, list[Any], int, str]] = {
    "an input that prepare sets": (f'scenario.input("nothing yet")\n{PREPARED}scenario.input("What is twice 21?")', [], 0, "ok: gives the number"),
    "no input": ("scenario.input('')", [], 2, "demo: error: there is no input: give one with"),
    "a limit": ("scenario.limits(kernai.Limits(max_calls=1))", [], 1, "FAILED: the run ended with max_calls"),
    "a limit that a resume lifts": (
        "scenario.limits(kernai.Limits(max_calls=1))\n"
        "scenario.kept(lambda kept: (kept.start(), kept.resume(limits=kernai.Limits()))[1])", [], 0, "ok: gives the number",
    ),
    "a protocol that nobody has": (
        "scenario.protocols(['mcp'])", [], 2, "the protocol 'mcp' is not registered: give its servers with scenario.mcp_config(path)",
    ),
    "its own protocol": (DESK, ['<block type="desk">7</block>', *TURNS], 0, "ok: "),
    "a reason with a line break": (NEVER, [], 1, "FAILED: expectation not met: quotes; said: ok: gives the number\n"),
    "a task that departs from the tape": (
        "", [PLAN, TURNS[1]], 1, "FAILED: the run has diverged from the tape tape.json: no conversation begins with",
    ),
    "calls that could not be made": (
        "", ['<block type="command" name="triple">14</block><block type="command">x</block>', *TURNS], 0,
        "skill calls: 3, 2 failed; tokens",
    ),
    "a call without a name": ("", ['<block type="command">x</block>', *TURNS], 0, "    error     no name: Command block missing skill name\n"),
    "reported tokens": (
        "", [turn | {"prompt_tokens": 9, "completion_tokens": 1} for turn in TURNS], 0, "skills, loop and recording are real.\n",
    ),
    "estimated tokens": ("", [], 0, "skills, loop and recording are real. Token counts are estimates.\n"),
}


@pytest.mark.parametrize("more, said, status, shown", ENDINGS.values(), ids=ENDINGS)
def test_a_run_ends_with_a_status_and_a_line_that_says_why(
    tmp_path: Path, more: str, said: list[Any], status: int, shown: str
) -> None:
    done = Demo(tmp_path, more, *said).replay()
    assert (done.returncode, shown in done.stdout + done.stderr) == (status, True), done


# --------------------------------------------------------------------------------------------------- bad runs


@pytest.mark.parametrize("more, error, place", [
    (f"{PREPARED}raise OSError('no space left')", "OSError: no space left", "raise OSError"),
    ("def broken():\n    return 1 / 0\nscenario.instructions(broken)", "ZeroDivisionError: division by zero", "return 1 / 0"),
    ("scenario.max_steps(0)", "ValueError: max_steps", ""),
    ("scenario.prepare(lambda: sys.exit(0))\nimport sys", "SystemExit: 0", "sys.exit"),
    ("scenario.kept(lambda kept: None)", "TypeError: kept's function must return a Result, got NoneType", ""),
], ids=["prepare", "instructions", "configuration", "exit", "kept"])
def test_an_error_in_the_scenarios_own_code_is_one_line_with_its_location(
    tmp_path: Path, more: str, error: str, place: str
) -> None:
    demo = Demo(tmp_path, more)
    done = demo.replay("--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert error in done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("FAILED"))
    assert line.startswith("FAILED: the scenario's own code failed: ")
    assert error in line
    found = re.search(r"demo\.py:(\d+): ", line)
    assert place in ("" if found is None else demo.file.read_text().splitlines()[int(found[1]) - 1])
    assert "--debug" in line
    assert Demo(tmp_path, more).replay("--no-log").stderr == ""
    assert demo.log["faults"] == [line.removeprefix("FAILED: ")]
    assert demo.log["expectations"] == [{"name": "gives the number", "holds": None, "reason": "the run has no answer"}]


def test_a_missing_package_in_prepare_is_a_usage_error(tmp_path: Path) -> None:
    demo = Demo(tmp_path, f"from harness import UsageError\n{PREPARED}raise UsageError('pip install pillow')")
    done = demo.replay()
    assert (done.returncode, done.stderr) == (2, "demo: error: pip install pillow\n")
    assert list(demo.logs.glob("*[!k]")) == [demo.logs / "manifest.json"]
    assert demo.manifest == []


def test_text_of_a_hostile_expectation_or_tape_cannot_control_the_terminal(tmp_path: Path) -> None:
    more = "scenario.expect(lambda outcome: False, name='\\x1b[2Jgone', reason='\\x9b31m')"
    done = Demo(tmp_path, more, model="\x1b]0;title\x07").replay()
    assert done.returncode == 1
    assert not any(character in done.stdout for character in "\x1b\x07\x9b")


@pytest.mark.process
def test_ctrl_c_results_in_status_130_and_a_log_of_what_happened_so_far(tmp_path: Path) -> None:
    more = "@scenario.skill\ndef wait() -> str:\n    'Wait.'\n    import time\n    while True: time.sleep(0.01)"
    demo = Demo(tmp_path, more, '<block type="command" name="wait"></block>', *TURNS)
    command = demo.command("--tape", demo.tape)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "call      wait" in line:
                break
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate()
    assert (process.returncode, errors) == (130, "")
    assert "FAILED: interrupted by Ctrl-C" in rest
    assert "Traceback" not in rest
    assert "diverged" not in rest
    log = demo.log
    assert (log["stop_reason"], log["passed"], log["faults"]) == ("cancelled", False, ["interrupted by Ctrl-C"])
    assert [entry["event"] for entry in log["events"]][-1] == "result"
    assert demo.manifest[0]["log"] == demo.log_files[0].name


# ------------------------------------------------------------------------------------------------ MCP servers


@pytest.mark.mcp
@pytest.mark.parametrize("server, said", [
    ('{"command": "no-such-command-here"}', "is started by 'no-such-command-here', which is not installed: install it\n"),
    ('{"command": "npx", "env": {"PATH": "/nowhere"}}', "install Node.js (https://nodejs.org)"),
])
def test_a_server_that_cannot_be_started_is_one_clear_line(tmp_path: Path, server: str, said: str) -> None:
    (tmp_path / "mcp.json").write_text(f'{{"servers": {{"files": {server}}}}}')
    done = Demo(tmp_path, f"scenario.mcp_config({str(tmp_path / 'mcp.json')!r})").replay()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("demo: error: the MCP server 'files' ")
    assert said in done.stderr


@pytest.mark.process
def test_without_the_mcp_package_the_error_names_the_extra_to_install(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "scenario.protocols(['mcp'])\nscenario.mcp_config('examples/mcp.yml')")
    command = demo.command("--tape", demo.tape)
    command.insert(1, "-S")
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "kernai[mcp]"' in done.stderr


# ------------------------------------------------------------------------------------------------- --save-tape


def test_a_tape_is_remade_from_its_own_replay(demo: Demo) -> None:
    done = demo.replay("--save-tape")
    assert done.returncode == 0
    assert f"tape: {demo.tape} (1 conversation, 2 turns, hand-written)" in done.stdout
    turns = demo.saved["conversations"][0]["turns"]
    assert [turn["asked"] for turn in turns] == [["What is twice 21?"], ['<block type="result" name="double">42</block>']]
    assert "prompt_tokens" not in turns[0]
    assert (demo.saved["provider"], demo.saved["model"]) == ("hand-written", "hand-written")
    assert "note:" not in demo.replay().stdout


def test_a_tape_is_made_from_a_log_without_running(demo: Demo) -> None:
    demo.replay()
    (log,) = demo.log_files
    demo.tape.unlink()
    done = demo.run("--save-tape", log, "--tape", demo.tape)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tape: {demo.tape} (1 conversation, 2 turns, hand-written)\n"
    assert len(demo.log_files) == 1
    assert demo.replay().returncode == 0


MODEL = """
class Mine(kernai.MockProvider):
    def __init__(self):
        super().__init__('<block type="command" name="double">21</block>', '<final>It is 42.</final>')
        self.with_token_counter(lambda *_: {"prompt_tokens": 9, "completion_tokens": 4})
register_provider("mine", Mine, kernai.Model("mine-1", cost=(1.0, 2.0)))
"""


def test_a_tape_is_made_from_a_run_with_a_real_model(tmp_path: Path) -> None:
    demo = Demo(tmp_path, MODEL)
    demo.tape = tmp_path / "tapes" / "demo.json"  # its folder does not exist yet
    done = demo.run("mine-1", "mine", "--save-tape", "--tape", demo.tape)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (demo.saved["provider"], demo.saved["model"]) == ("mine", "mine-1")
    assert demo.saved["conversations"][0]["turns"][1]["prompt_tokens"] == 9
    assert "recorded from mine mine-1" in demo.replay().stdout.splitlines()[1]


@pytest.mark.parametrize("text", ["print('my program')\n", '{"scenario": "demo", "events": []}'])
def test_a_file_that_is_not_a_tape_is_not_overwritten_and_nothing_is_run(tmp_path: Path, text: str) -> None:
    demo = Demo(tmp_path, MODEL)
    demo.tape.write_text(text)
    done = demo.run("mine-1", "mine", "--save-tape", "--tape", demo.tape)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--save-tape: {demo.tape} exists and is not a tape, so it is left unchanged" in done.stderr
    assert demo.tape.read_text() == text


def test_the_tape_of_a_bad_run_is_saved_with_a_warning(tmp_path: Path) -> None:
    demo = Demo(tmp_path, MODEL + "scenario.expect(lambda outcome: False, name='never so')")
    done = demo.run("", "mine", "--save-tape", "--tape", demo.tape)
    warning = "warning: the run that it was made from failed: expectation not met: never so"
    assert (done.returncode, warning in done.stdout) == (1, True)


@pytest.mark.parametrize("turns", [TURNS[:1], [*TURNS, "more"]], ids=["one turn missing", "one turn too many"])
def test_a_tape_that_was_only_partly_replayed_is_not_overwritten(demo: Demo, turns: list[Any]) -> None:
    demo.write_tape(tape(*turns))
    before = demo.saved
    done = demo.replay("--save-tape")
    assert done.returncode == 2
    assert "so the tape is left unchanged" in done.stderr
    assert "so the tape is left unchanged" in demo.run("--save-tape", *demo.log_files, "--tape", demo.tape).stderr
    assert demo.saved == before


@pytest.mark.parametrize("content, complaint", [
    (None, "to make the tape from a run, put --save-tape last"),
    ("{", "not JSON"),
    ("[]", "is not a scenario's log"),
    ('{"scenario": "demo"}', "is not a scenario's log"),
    ('{"scenario": "other", "events": []}', "a log of the scenario 'other', not of 'demo'"),
    ('{"scenario": "demo", "events": []}', 'lacks its "provider" or "model"'),
    ('{"scenario": "demo", "provider": "a", "model": "b", "events": []}', "no model answered"),
    ('{"scenario": "demo", "provider": "a", "model": "b", "events": [3]}', "entry 1 is not an event"),
    ('{"scenario": "demo", "provider": "a", "model": "b", "events": [{"event": "llm_response"}]}', "is damaged"),
    ('{"scenario": "demo", "provider": "a", "model": "b", "events": [{"event": "messages_sent", "data": 3}]}', "is damaged"),
])
def test_a_file_that_is_not_a_log_of_the_scenario_is_one_clear_error_line(demo: Demo, content: str | None, complaint: str) -> None:
    log = demo.file.with_name("log.json")
    if content is not None:
        log.write_text(content)
    before = demo.saved
    done = demo.run("--save-tape", log, "--tape", demo.tape)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert complaint in line
    assert demo.saved == before


# ------------------------------------------------------------------------------------------------------- help


@pytest.mark.process
def test_the_help_shows_every_option_examples_and_the_exit_status(demo: Demo) -> None:
    done = demo.process("--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    words = "--offline --list-providers --tape --record --save-tape --logs --no-log --plain --debug --capabilities"
    assert all(word in done.stdout for word in [*words.split(), "examples:", "exit status: 0", "PROVIDER=ollama"])


