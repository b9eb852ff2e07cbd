"""The program as a whole: help, errors, exit statuses, and output streams that are closed or limited in encoding."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kernai import __version__
from kernai.command_line import main, output
from kernai.command_line.agents import A_MODEL
from kernai.command_line.output import STATUSES
from kernai.command_line.program import SUMMARIES, command_of
from tests.command_line.conftest import Here, Screen
from tests.command_line.support import AGENT, ECHO, SRC, environment, error_lines, kernai, write

ROOT = SRC.parent


def test_without_arguments_the_program_prints_its_commands_and_exit_statuses(here: Here, tmp_path: Path) -> None:
    shown = here()
    assert (shown.returncode, shown.stderr, max(map(len, shown.stdout.splitlines())) <= 80) == (0, "", True)
    assert re.findall(r"^  (\w+) +\w", shown.stdout.partition("commands:")[2], re.MULTILINE)[: len(SUMMARIES)] == list(SUMMARIES)
    for status, meaning in STATUSES.items():
        assert re.search(rf"^  {status} +{re.escape(meaning)}$", shown.stdout, re.MULTILINE)
    for help in ("--help", "-h", "help", "--debug"):
        assert here(help).stdout == shown.stdout
    assert here("--version").stdout == here("-V").stdout == f"kernai {__version__}\n"
    assert here("help", "run").stdout == here("run", "--help").stdout


@pytest.mark.parametrize("command", SUMMARIES)
def test_every_command_has_a_help_with_examples_whose_description_fits_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    usage, _, rest = shown.partition("\n\n")
    examples = shown.partition("\nexamples:\n")[2].strip().splitlines()
    assert usage.startswith(f"usage: kernai {command} ")
    assert "--debug" in usage
    assert any(line.strip().startswith(f"kernai {command}") for line in examples)
    described = rest.partition("positional arguments:")[0].partition("options:")[0]
    assert 0 < max(map(len, described.splitlines())) <= 60


NO_MODEL = "there is no model file '/no.gguf'" if find_spec("xllamacpp") else "a model in this process needs xllamacpp"
WRONG = {
    "an unknown command": (["prase"], "kernai: error: unknown command 'prase'", "hint: did you mean `kernai parse`?"),
    "one like no other": (["zzz"], "kernai: error: unknown command 'zzz'", "hint: there are run, chat, runs, resume, approve, cancel, worker, store, replay, skills, parse, view, diff, doctor"),
    "an option without a command": (["--json"], "kernai: error: unknown option --json", "hint: options of a command come after it: kernai COMMAND --help"),
    "-- before a command": (["--", "run"], "kernai: error: unknown option --\n", "hint: options of a command come after it: kernai COMMAND --help"),
    "nothing to run": (["run"], "kernai: error: there is no agent", "hint: the agent comes first, as FILE.py, FILE.py:NAME or MODULE:NAME; or make one"),
    "an unknown option": (["run", "a.py", "x", "--modle", "m"], "kernai: error: unknown option --modle", "hint: did you mean --model? `kernai run --help` lists the options"),
    "an abbreviated option": (["parse", "x", "--ful"], "kernai: error: unknown option --ful", "hint: did you mean --full? `kernai parse --help`"),
    "another library's option": (["run", "--max-turns=3"], "kernai: error: unknown option --max-turns", "hint: did you mean --max-steps? "),
    "an option like no other": (["chat", "--zzz"], "kernai: error: unknown option --zzz", "hint: `kernai chat --help` lists the options"),
    "a store without --store": (["run", "a.py", "x", "postgresql://u:secret@h/d"], "kernai: error: unrecognized arguments: postgresql://u:***@h/d", "hint: `kernai run --help` lists the arguments; a text with spaces needs quotes"),
    "a blank model": (["replay", "a.py", "run.jsonl", "--model", ""], "kernai: error: --model: Model id must be a non-blank string, got ''", "hint: name the one that made the recording"),
    "no store": (["runs"], "kernai: error: the following arguments are required: STORE\n", "hint: `kernai runs --help`"),
    "quiet and verbose": (["run", "a.py", "x", "-q", "-v"], "kernai: error: argument --verbose/-v: not allowed with argument --quiet/-q", "hint: "),
    "no steps": (["run", "a.py", "x", "--max-steps", "0"], "kernai: error: argument --max-steps: must be a whole number of at least 1, got '0'", "hint: "),
    "a word as a number": (["run", "a.py", "x", "--max-steps", "ten"], "kernai: error: argument --max-steps: must be a whole number of at least 1, got 'ten'", "hint: "),
    "an endless timeout": (["run", "a.py", "x", "--timeout", "inf"], "kernai: error: argument --timeout: must be a number of at least 0, got 'inf'", "hint: "),
    "one price": (["run", "a.py", "x", "--price", "3"], "kernai: error: argument --price: must be two prices such as 3,15, got '3'", "hint: "),
    "an unknown capability": (["run", "a.py", "x", "--model-capabilities", "text,eyes"], "kernai: error: argument --model-capabilities: no capability 'eyes'; there are text, vision", "hint: "),
    "a file that is not there": (["run", "nowhere.py", "x"], "kernai: error: cannot read nowhere.py: No such file or directory", "hint: give the path of a Python file"),
    "a folder for a file": (["parse", "."], "kernai: error: cannot read .: Is a directory", "hint: name a file of UTF-8 text, or - for stdin"),
    "a response for a file": (["parse", "<final>42</final>"], "kernai: error: cannot read <final>42</final>: No such file", "hint: name a file of UTF-8 text"),
    "a folder that is followed": (["view", ".", "--follow"], "kernai: error: cannot read .: Is a directory", "hint: `kernai run AGENT ... --record FILE`"),
    "no form of an agent": (["run", "agent", "x"], "kernai: error: no agent at 'agent'", "hint: the agent comes first, as FILE.py, FILE.py:NAME or MODULE:NAME; or make one: --system"),
    "an unknown module": (["run", "no_such_module:agent", "x"], "kernai: error: no module 'no_such_module'", "hint: modules are searched from the working directory"),
    "input that is no text": (["run", "a.py", "gr\udcfc"], "kernai: error: INPUT: character 2 is not valid", "hint: pipe it in as UTF-8"),
    "blank input": (["run", "a.py", " "], "kernai: error: there is no input", "hint: give it as the second argument"),
    "media that are not there": (["run", "a.py", "x", "--media", "none.png"], "kernai: error: cannot read media file 'none.png': No such file or directory", "hint: give a file, or a URL"),
    "a folder as media": (["run", "a.py", "x", "--media", "."], "kernai: error: path must be a regular file: '.' is not one", "hint: give a file, or a URL"),
    "a recording of another kind": (["run", "a.py", "x", "--record", "run.txt"], "kernai: error: --record: 'run.txt' must end in .json or .jsonl", "hint: name a file that can be written"),
    "a recording over something else": (["run", "a.py", "x", "--record", "other.json"], "kernai: error: --record: other.json exists and is not a recording", "hint: name another file"),
    "a folder for a recording": (["run", "a.py", "x", "--record", "folder.json"], "kernai: error: --record: folder.json exists and is not a recording", "hint: name another file"),
    "a model's file that is not there": (["run", "x", "--system", "y", "--model", "gguf//no.gguf"], f"kernai: error: --model: {NO_MODEL}", "hint: "),
    "a vendor without a key": (["chat", "--model", "openai/gpt-4o"], "kernai: error: --model: openai needs a key: set the environment variable OPENAI_API_KEY", "hint: `kernai doctor` shows which keys are set"),
    "a ceiling without a price": (["run", "a.py", "x", "--max-cost", "1"], "kernai: error: --max-cost needs the price of model 'text-only'", "hint: give --model with --price"),
    "nobody to talk to": (["chat"], "kernai: error: the agent has no provider", "hint: give one, such as --model"),
    "an agent and a description of one": (["run", "a.py", "x", "--system", "y"], "kernai: error: --system makes an agent, and AGENT names another: a.py", "hint: leave one out"),
    "a file without skills": (["run", "x", "--skills", "silent.py", "--model", "ollama/m"], "kernai: error: --skills: there is no skill in silent.py", "hint: make one"),
    "a folder of skills": (["skills", "."], "kernai: error: no skill files match '.'", "hint: name a Python file, or a pattern in quotes"),
    "a URL without a model": (["run", "x", "--system", "y", "--base-url", "http://x"], "kernai: error: --base-url is for a --model", "hint: give one"),
    "a recording without an end": (["view", "/dev/zero"], "kernai: error: cannot read /dev/zero: it is neither a file nor a pipe", "hint: "),
    "a page over the recording": (["view", "run.jsonl", "-o", "run.jsonl"], "kernai: error: run.jsonl already exists and is not a page of this viewer", "hint: name another file"),
    "a page over a folder": (["view", "run.jsonl", "-o", "folder.json"], "kernai: error: cannot write folder.json: it is not a regular file", "hint: name another file with -o"),
    "a page nowhere": (["view", "run.jsonl", "-o", "no/x.html"], "kernai: error: cannot write no/x.html: No such file or directory", "hint: name another file with -o"),
    "pictures nowhere": (["view", "run.jsonl", "--media", "no"], "kernai: error: --media: no is not a folder", "hint: name the one"),
    "a port of a file": (["view", "run.jsonl", "--port", "80"], "kernai: error: --port belongs to --follow", "hint: a file needs no port"),
    "a port that is none": (["view", "run.jsonl", "--follow", "--port", "70000"], "kernai: error: --port: cannot listen on port 70000: bind(): port must be 0-65535.", "hint: leave --port out"),
    "a file that is written at the end": (["view", "later.json", "--follow"], "kernai: error: --follow needs JSON lines, and a .json is written", "hint: record to a .jsonl"),
    "help for no command": (["help", "rnu"], "kernai: error: unknown command 'rnu'", "hint: did you mean `kernai run`?"),
    "a file without an end": (["parse", "/dev/zero"], "kernai: error: cannot read /dev/zero: it is neither a file nor a pipe", "hint: name a file of UTF-8 text"),
    "no recording to compare": (["diff", "a.py", "a.py"], "kernai: error: a.py is neither JSON nor JSON lines", "hint: `kernai run AGENT ... --record FILE` makes a recording; with --store STORE the run is STORE RUN"),
    "a recording with a gap": (["diff", "gap.json", "gap.json"], 'kernai: error: gap.json: "since" of messages_sent does not fit what was before', "hint: "),
    "a recording without events": (["diff", "empty.json", "empty.json"], "kernai: error: empty.json is not a recording: it has no events", "hint: `kernai run AGENT ... --record FILE` makes a recording"),
}  # fmt: skip


@pytest.mark.parametrize("arguments, error, hint", WRONG.values(), ids=WRONG.keys())
def test_wrong_usage_is_one_line_a_hint_and_exit_status_2(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], error: str, hint: str
) -> None:
    write(tmp_path, "a.py", AGENT)
    write(tmp_path, "silent.py", "import kernai\nagent = kernai.Agent(instructions='x')\n")
    write(tmp_path, "other.json", '{"name": "precious"}')
    write(tmp_path, "empty.json", "[]")
    write(tmp_path, "gap.json", '[{"event": "messages_sent", "since": 2, "data": []}]')
    write(tmp_path, "run.jsonl", '{"event": "final", "data": "x"}\n')
    (tmp_path / "folder.json").mkdir()
    for name in [one for one in os.environ if one.endswith(("_API_KEY", "_TOKEN"))]:
        monkeypatch.delenv(name)
    done = here(*arguments)
    lines = error_lines(done.stderr)
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 2)
    assert f"{lines[0]}\n".startswith(error)
    assert lines[1].startswith(hint)
    assert (tmp_path / "other.json").read_text() == '{"name": "precious"}'
    assert not list(tmp_path.glob("*.part"))


def test_a_deleted_working_directory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["run", "a.py", "x"]) == 2
    assert error_lines(capsys.readouterr().err) == ["kernai: error: the working directory has been removed", "hint: change to one that exists"]


@pytest.mark.parametrize("arguments", [["--debug", "prase"], ["parse", "nowhere", "--debug"], ["run", "--debug"], ["chat", "a.py", "--debug"]])
def test_debug_shows_the_traceback_before_the_error(here: Here, tmp_path: Path, arguments: list[str]) -> None:
    write(tmp_path, "a.py", AGENT)
    done = here(*arguments, input="/nope\n")
    assert done.returncode == 2
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert error_lines(done.stderr)
    assert "Traceback" not in here(*[one for one in arguments if one != "--debug"], input="/nope\n").stderr


TRACE = "--debug shows the traceback"
RAISED = {
    "a provider's": ("kernai.ProviderError('down')", 3, "down", "`kernai doctor` looks at keys and servers; --debug shows the traceback"),
    "kernai's": ("kernai.KernaiError('no')", 1, "no", TRACE),
    "a file's": ("FileNotFoundError(2, 'No such file', 'x.txt')", 2, "x.txt: No such file", TRACE),
    "a missing key": ("KeyError('k')", 1, "KeyError: 'k'", TRACE),
    "a text for a terminal": ("RuntimeError('no\\n\\x1b[31mluck')", 1, "RuntimeError: no [31mluck", TRACE),
    "an exit": ("SystemExit()", 1, "SystemExit", TRACE),
    "a bug": ("ZeroDivisionError()", 1, "ZeroDivisionError", TRACE),
    "Ctrl-C": ("KeyboardInterrupt()", 130, "interrupted", None),
    "Ctrl-C that made a library fail": ("(lambda e: setattr(e, '__context__', KeyboardInterrupt()) or e)(KeyError())", 130, "interrupted", None),
    "SIGTERM": ("__import__('signal').raise_signal(15)", 143, "terminated", None),
    "a closed pipe": ("BrokenPipeError()", 141, None, None),
}


@pytest.mark.parametrize("error, status, message, hint", RAISED.values(), ids=RAISED.keys())
@pytest.mark.parametrize("debug", [False, True])
def test_every_exception_is_reported_in_one_line(
    here: Here, tmp_path: Path, error: str, status: int, message: str | None, hint: str | None, debug: bool
) -> None:
    write(tmp_path, "agent.py", f"import kernai\ndef instructions():\n    raise {error}\n"
          "agent = kernai.Agent(instructions=instructions, provider=kernai.MockProvider('x'))\n")
    done = here(*(["--debug"] if debug else []), "run", "agent.py", "x", "-q")
    assert (done.returncode, done.stdout) == (status, "")
    errors = error_lines(done.stderr)
    hinted = hint is not None and not (debug and hint == TRACE)
    assert errors == [*([f"kernai: error: {message}"] if message else []), *([f"hint: {hint}"] if hinted else [])]
    assert ("Traceback" in done.stderr) == (debug and message is not None)
    assert "\x1b" not in done.stderr


def test_the_program_works_if_its_streams_were_closed_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["parse", "-"]) == 0
    for stream in (sys.stdout, sys.stderr):
        os.close(stream.fileno())


def test_input_that_is_not_utf_8_is_an_error(here: Here) -> None:
    done = here("parse", "-", "--check", input=b"ab\xff")
    assert done.stderr.startswith("kernai: error: cannot read -: 'utf-8' codec can't decode byte 0xff in position 2: ")
    assert done.returncode == 2


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))], ids=["nobody reads it", "a full disk"])
def test_an_error_that_cannot_be_written_has_its_exit_status(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    class Buffered(io.StringIO):
        def flush(self) -> None:
            raise error

    monkeypatch.setattr(sys, "stderr", Broken())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert main(["prase"]) == 2
    monkeypatch.setattr(sys, "stdout", Buffered())
    assert main(["--version"]) == (141 if isinstance(error, BrokenPipeError) else 1)


@pytest.mark.parametrize("arguments", [["run", "f.py", "x"], ["run", "f:agent", "x"], ["skills", "f.py"]], ids=" ".join)
@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_ends_the_program_while_it_loads_a_file_unless_it_is_ignored(
    here: Here, tmp_path: Path, arguments: list[str], number: int, status: int
) -> None:
    write(tmp_path, "f.py", f"import signal\ntry:\n    signal.raise_signal({number})\n    open('loaded', 'w').close()\n"
          f"finally:\n    signal.raise_signal({number})\n    open('cleaned', 'w').close()\n")
    assert here(*arguments).returncode == status
    assert not (tmp_path / "loaded").exists()
    assert (tmp_path / "cleaned").exists() == (number == signal.SIGHUP), "a shell repeats a terminal's SIGHUP"
    before = signal.signal(number, signal.SIG_IGN)  # as `nohup` does with SIGHUP
    here(*arguments)
    signal.signal(number, before)
    assert (tmp_path / "loaded").exists()


@pytest.mark.parametrize("handler, status", [("lambda *_: open('stopped', 'w').close()", 0), ("signal.SIG_IGN", 143)])
def test_a_closed_terminal_stops_a_program_that_handles_sigterm_in_its_own_way(
    here: Here, tmp_path: Path, handler: str, status: int
) -> None:
    program = f"import signal\nsignal.signal(15, {handler})\nsignal.raise_signal(1)\n"
    assert here("skills", str(write(tmp_path, "f.py", program))).returncode == status
    assert (tmp_path / "stopped").exists() == (status == 0)


def test_a_sigterm_that_arrives_while_an_object_is_freed_ends_the_program_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    class Stdout(io.StringIO):
        def write(self, text: str) -> int:
            Freed()
            return super().write(text)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "stdout", Stdout())
    assert main(["--version"]) == 143
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.process
def test_characters_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    response = write(tmp_path, "r.txt", "<final>Grüße aus 東京 \U0001f600</final>")
    env = environment(PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0")
    shown = kernai("parse", str(response), cwd=tmp_path, env=env)
    assert shown.returncode == 0
    assert r"Gr\xfc\xdfe aus \u6771\u4eac \U0001f600" in shown.stdout


def in_bash(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``kernai COMMAND`` in a shell, with its redirections."""
    line = f"{sys.executable} -m kernai {command}"
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.process
@pytest.mark.parametrize("redirection, shown", [
    *[(one, "") for one in (">&-", ">&- 2>&- <&-", "| true", "2>&1 | true", "> /dev/full")],
    *[(one, "x" * 70_000 + "\n") for one in ("2>&-", "2> /dev/full", "2> >(true)")],
])
def test_a_closed_or_full_output_ends_the_program_without_a_traceback_but_with_the_answer(
    tmp_path: Path, redirection: str, shown: str
) -> None:
    write(tmp_path, "agent.py", AGENT.replace("We have 12 lamps.", "x" * 70_000))
    done = in_bash(f"run agent.py lamps {redirection}", tmp_path)
    assert done.stdout == shown
    assert not shown or done.returncode == 0
    assert "full" not in redirection or shown or "kernai: error: OSError: [Errno 28] No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.process
@pytest.mark.parametrize("command, shown", [("parse r.txt", "1:1  block final"), ("chat agent.py -q < <(yes hello)", "You said: hello")])
def test_closing_the_output_early_is_no_error(tmp_path: Path, command: str, shown: str) -> None:
    write(tmp_path, "agent.py", ECHO)
    write(tmp_path, "r.txt", "<final>x</final>\n" * 20_000)
    done = in_bash(f"{command} | head -1; echo ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.stdout, done.stderr) == (f"{shown}\n141\n", "")


@pytest.mark.process
@pytest.mark.parametrize("command", [
    "parse /dev/stdin < r.txt", "parse /dev/stdin < <(cat r.txt)", "parse /dev/stdin < /dev/null",
    "diff <(cat r.json) r.json", "view /dev/stdin -o - < <(cat r.json)",
])
def test_a_pipe_or_stdin_may_be_given_as_a_file(tmp_path: Path, command: str) -> None:
    write(tmp_path, "r.txt", "<final>x</final>")
    write(tmp_path, "r.json", '[{"event": "final", "data": "x"}]')
    done = in_bash(command, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_a_command_does_not_import_modules_that_only_others_need(tmp_path: Path) -> None:
    write(tmp_path, "r.txt", "<final>x</final>")
    code = (
        "import sys; from kernai.command_line import main; main(['parse', 'r.txt']);"
        "print([n for n in sys.modules if n.startswith(('asyncio', 'kernai_providers', 'kernai.viewer', 'kernai.mcp',"
        " 'kernai.command_line.recording', 'http', 'ssl', 'socket', 'subprocess'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("term, no_color, coloured", [("xterm", "", True), ("xterm", "1", False), ("dumb", "", False)])
def test_colour_is_used_only_on_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, term: str, no_color: str, coloured: bool
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)
    assert output.styled("x", "red", Screen()) == ("\x1b[31mx\x1b[0m" if coloured else "x")


@pytest.mark.parametrize("has_stdout", [True, False])
def test_other_output_than_the_answer_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], has_stdout: bool
) -> None:
    if not has_stdout:  # as with `>&-`
        monkeypatch.setattr(sys, "__stdout__", None)
    with output.stdout_is_stderr() as out:
        print("printed")
        if has_stdout:
            os.write(1, b"by a program\n")
        out.write("the answer\n")
    assert capfd.readouterr() == ("the answer\n", "printed\nby a program\n" if has_stdout else "printed\n")


def test_the_documentation_names_every_command_option_exit_status_and_model(here: Here) -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    shown = here("--help").stdout + A_MODEL
    assert [status for status in STATUSES if f"| {status} |" not in page] == []
    for command in SUMMARIES:
        assert f"## `kernai {command}" in page
        help = here(command, "--help").stdout
        options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", help.partition("examples:")[0]))
        missing = {one for one in options if f"`{one}" not in page and f" {one}" not in page}
        assert command == "view" or missing == set()  # `view` has its own page
        shown += help
    models = set(re.findall(r"--model ([a-z]+/[\w.-]+)", shown))
    assert models
    assert {one for one in models if one not in page} == set()


# ----------------------------------------------------------------------------------------------------------- completion


BASH = """
source ./script
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _kernai 2> /dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "source ./script; complete -C {line}"
#: a typed line, and its completions
TYPED = {
    "kernai re": ["resume", "replay"],
    "kernai run --mo": ["--model", "--model-capabilities"],
    "kernai chat --model g": ["gemini-openai/", "gemini/", "gguf/", "groq/"],
    "kernai resume agent.py --in-flight ''": ["fail", "skip", "retry"],
    "kernai completion ''": ["bash", "fish", "zsh"],
    "kernai doctor --js": ["--json"],
}


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_and_options(here: Here, tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(here("completion", shell).stdout)
    one = BASH.format if shell == "bash" else lambda words: FISH.format(line=shlex.quote(words.removesuffix("''")))
    asked = "\n".join(f"echo '# {shlex.quote(line)}'; {one(words=line).strip()}" for line in TYPED)
    done = subprocess.run([shell, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    completed = [part.splitlines()[1:] for part in done.stdout.split("# ")[1:]]
    assert [sorted(found.partition("\t")[0] for found in part) for part in completed] == [sorted(one) for one in TYPED.values()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_has_every_command_and_option_and_is_valid(here: Here, tmp_path: Path, shell: str) -> None:
    script = here("completion", shell).stdout
    for command in SUMMARIES:
        assert re.search(rf"\b{command}\b", script)
        for option in command_of(command)[1]._option_string_actions:
            assert option in script or f"-l {option[2:]} " in script or f"-s {option[1:]} " in script
    assert "SUPPRESS" not in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)
    if shell == "fish":
        described = {shlex.split(line)[-1] for line in script.splitlines()}
        assert {*SUMMARIES.values(), "use this model instead of the agent's own"} <= described
        assert (" -l model -r -f " in script, " -l json -r" in script) == (True, False)
