"""How a run is shown: drawn on a terminal, as plain text elsewhere, and never controlled by a model's text."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import struct
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import kernai
from kit.plain_view import PlainView, count, dollars, line_of
from kit.rich_view import KEPT, LiveState, RichView
from tests.scenarios.scenario_process import ENVIRONMENT, TURNS, Demo, tape

if sys.platform == "win32":
    pytest.skip("Windows has no pseudo-terminals of this kind", allow_module_level=True)

import fcntl
import pty
import termios

import pyte


class Terminal:
    """A process on a real terminal of a given size, and what its screen shows."""

    def __init__(self, command: list[str], columns: int, rows: int, environment: dict[str, str]) -> None:
        self.raw = b""
        self._screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self._screen)
        self._pid, self._fd = pty.fork()
        if self._pid == 0:  # the child: nothing but exec
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.execvpe(command[0], command, ENVIRONMENT | {"TERM": "xterm-256color"} | environment)

    def read_until(self, seen: str) -> str:
        """Read until the screen has this pattern or the process ends, and return the screen."""
        while self._read() and not re.search(seen, self.screen):
            pass
        return self.screen

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def press_ctrl_c(self) -> None:
        os.write(self._fd, b"\x03")

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # Linux raises this when the process has ended
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    @property
    def screen(self) -> str:
        return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def everything(self) -> str:
        """The screen and the lines that have scrolled off it."""
        width = self._screen.columns
        gone = ["".join(line[at].data for at in range(width)).rstrip() for line in self._screen.history.top]
        return "\n".join([*gone, self.screen])

    @property
    def title(self) -> str:
        return str(self._screen.title)


def on_terminal(demo: Demo, *arguments: str, columns: int = 100, rows: int = 40, **environment: Any) -> Terminal:
    return Terminal(demo.command("--tape", demo.tape, *arguments), columns, rows, environment)


HOSTILE = "[bold red]It is 42[/bold red] [/] :smile: [link=http://x]y[/link] \x1b]0;owned\x07 \x1b[2J\x9b31m \u202e \r\x08"
SHOWN = "[bold red]It is 42[/bold red] [/] :smile: [link=http://x]y[/link] ]0;owned [2J31m"


def hostile(demo: Demo) -> Demo:
    demo.write_tape(tape(
        f'<block type="json">{HOSTILE}</block>', f'<block type="command" name="{HOSTILE[:9]}">{HOSTILE}</block>',
        f"<final>{HOSTILE}</final>",
    ))
    return demo


# ---------------------------------------------------------------------------------------------- a real terminal


@pytest.mark.process
def test_a_good_run_is_drawn_with_its_answer_figures_and_expectations(tmp_path: Path) -> None:
    terminal = on_terminal(Demo(tmp_path))
    assert terminal.end() == 0
    for text in ("╭─ demo", "provider: the tape", "call      double", "╭─ answer", "It is 42.", "tokens", "cost",
                 "unknown", "time", "│ ok │ gives the number", "ok: gives the number", "log: "):
        assert text in terminal.everything


@pytest.mark.process
@pytest.mark.parametrize("arguments, columns, rows", [([], 160, 40), (["--plain"], 160, 40), ([], 24, 10), ([], 8, 4)])
def test_hostile_text_is_shown_as_a_whole_but_has_no_effect(tmp_path: Path, arguments: list[str], columns: int, rows: int) -> None:
    terminal = on_terminal(hostile(Demo(tmp_path)), *arguments, columns=columns, rows=rows)
    assert terminal.end() == 0
    assert re.sub(r"\s", "", SHOWN) in re.sub(r"[\s│╭╮╰╯─]", "", terminal.everything)
    assert terminal.title == ""
    assert not re.search(rb"\x1b\]|\x1b\[2J|\xc2\x9b|\xe2\x80\xae|\x08", terminal.raw)


@pytest.mark.process
@pytest.mark.parametrize("options, arguments, environment", [
    ([], ["--plain"], {}), ([], [], {"TERM": "dumb"}), (["-S"], [], {}),  # -S hides rich
])
def test_a_terminal_gets_plain_text_on_request_or_if_it_cannot_be_drawn_on(
    tmp_path: Path, options: list[str], arguments: list[str], environment: dict[str, Any]
) -> None:
    demo = Demo(tmp_path)
    python, *command = demo.command("--tape", demo.tape, *arguments)
    terminal = Terminal([python, *options, *command], 100, 40, environment)
    assert terminal.end() == 0
    assert b"\x1b" not in terminal.raw
    assert "╭" not in terminal.everything
    assert "ok: gives the number" in terminal.everything


WAITING = """
@scenario.skill
def wait(name: str) -> str:
    "Wait until somebody says so."
    with open({pipe!r}) as pipe:
        return pipe.read()
"""


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Demo]:
    """A run of three tasks, the first of which waits until `release`."""
    os.mkfifo(tmp_path / "pipe")
    demo = Demo(tmp_path, WAITING.replace("{pipe!r}", repr(str(tmp_path / "pipe"))))
    plan = {"strategy": "parallel", "tasks": [
        {"id": "slow [red]", "input": "wait for it"}, {"id": "quick", "input": "be quick"},
        {"id": "after", "input": "go on", "depends_on": ["slow [red]"]},
    ]}
    call = '<block type="command" name="wait">now</block>'
    demo.write_tape(tape(f'<block type="plan">{json.dumps(plan)}</block>', TURNS[1], **{
        "wait for it": [call, "<final>waited</final>"], "be quick": ["<final>done</final>"], "go on": ["<final>x</final>"],
    }))
    yield demo
    release(demo)


def release(demo: Demo) -> None:
    with contextlib.suppress(OSError):
        os.close(os.open(demo.file.parent / "pipe", os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.process
def test_tasks_have_bars_while_they_run(waiting: Demo) -> None:
    terminal = on_terminal(waiting)
    shown = terminal.read_until(r"quick +━+ done")
    assert re.search(r"tasks +[━╸╺]+ 1 of 3", shown)
    assert re.search(r"slow \[red\] +━+ running, 1 step, \d+\.\d s", shown)
    assert re.search(r"after +━+ waiting", shown)
    assert re.search(r"\d+\.\d s \| step 0 \| tokens [\d,]+ in, [\d,]+ out \| cost unknown \| \d calls, 0 errors", shown)
    os.close(os.open(waiting.file.parent / "pipe", os.O_WRONLY))  # waits until the task has opened it
    assert terminal.end() == 0
    assert "━ running" not in terminal.everything  # the progress display was removed when the run ended
    assert "│ slow [red] │ waited │" in terminal.everything


@pytest.mark.process
def test_ctrl_c_leaves_the_terminal_as_it_was(waiting: Demo) -> None:
    terminal = on_terminal(waiting)
    terminal.read_until("━ running")
    terminal.press_ctrl_c()
    release(waiting)
    assert terminal.end() == 130
    assert terminal.raw.rindex(b"\x1b[?25h") > terminal.raw.rindex(b"\x1b[?25l")  # the cursor is visible again
    assert "FAILED: interrupted by Ctrl-C" in terminal.everything
    assert waiting.log["stop_reason"] == "cancelled"


# ----------------------------------------------------------------------------------------------------- its parts


def event(kind: str, data: Any, **more: Any) -> kernai.Event:
    return kernai.Event(kind, data, 0, **more)


RESPONSE = {"prompt_tokens": 7, "completion_tokens": None, "total_tokens": None}


def every_event(text: str) -> list[kernai.Event]:
    """One event of each kind that is shown, with `text` in every field that may hold a model's text."""
    named = {"skill": text, "params": {text: text}, "result": [text], "error": text, "protocol": text, "request": text}
    task = {"task_id": text, "input": text, "depends_on": [text], "result": text, "error": text}
    return [
        event("text_chunk", text), event("block_start", {"type": text, "name": text}), event("block_content", text),
        event("llm_response", RESPONSE), event("plan", text), event("plan_rejected", {"reason": "cyclic", "raw": text}),
        event("json", text), event("skill_execute", named), event("skill_result", named), event("skill_error", named),
        event("protocol_execute", named), event("protocol_result", named), event("protocol_error", named),
        event("progress", {"data": text}), event("builtin_result", {"command": text, "result": text}),
        event("builtin_error", {"command": text, "error": text}),
        event("workflow_start", {"strategy": "mixed", "tasks": [{"id": text}, {"id": "waiting"}]}),
        event("task_start", task), event("block_content", text, scope=text), event("task_complete", task),
        event("task_error", task), event("workflow_complete", {"results": {text: f"error: {text}"}}),
        event("workflow_error", {"error": text}), event("forged_block", {"type": text, "name": None, "content": text}),
        event("block_incomplete", {"type": text, "name": text, "content": text}),
        event("informational_only", {"kinds": [text]}), event("no_blocks_stall", {"prose_preview": text}),
        event("answer_rejected", {"error": text, "attempt": 1}), event("block_end", {"type": text, "name": text}),
        event("model_restarted", {"reason": text}), event("final", text),
    ]


def controls(text: str) -> set[str]:
    return {char for char in text if unicodedata.category(char) in ("Cc", "Cs") and char not in "\n\t"} | (
        set(text) & set("\u202a\u202e\u2066\u2069")
    )


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3)  # each draws dozens of screens
@given(st.text(st.characters(), max_size=40), st.integers(1, 120))
def test_any_text_in_any_event_is_shown_without_a_control_character(text: str, width: int) -> None:
    written = io.StringIO()
    view = RichView(Console(file=written, width=width, height=20, color_system=None, markup=False, emoji=False))
    with contextlib.redirect_stdout(written):
        plain = PlainView()
        for one in every_event(text):
            view(one)
            view.console.print(view._screen())
            plain(one)
    assert controls(written.getvalue()) == set()


def test_every_visible_event_has_a_line() -> None:
    silent = {"text_chunk", "block_start", "block_content", "block_end"}
    assert {one.type for one in every_event("x") if line_of(one) is None} == silent


def test_the_view_keeps_only_the_end_of_a_long_streamed_block() -> None:
    state = LiveState()
    for _ in range(100):
        state.take(event("block_content", "x" * 999 + "y"))
    assert len(state.streams[""].tail) == KEPT
    state.take(event("llm_response", RESPONSE))
    assert (state.streams, state.usage.prompt_tokens, state.usage.completion_tokens) == ({}, 7, None)


@pytest.mark.parametrize("cost, shown", [(None, "unknown"), (0.0, "$0.0000"), (0.00002, "under $0.0001"), (0.01234, "$0.0123")])
def test_an_unknown_cost_is_never_shown_as_zero(cost: float | None, shown: str) -> None:
    assert dollars(cost) == shown
    assert (count(None), count(1234)) == ("unknown", "1,234")
