"""Running the program within the test process, for many cases and for coverage; `support` starts real processes."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from kernai.command_line import main
from tests.command_line.support import environment


class Screen(io.StringIO):
    """A stdout like a terminal's, which keeps what was written to it piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.written.append(text)
        return super().write(text)


class Keys:
    """A stdin like a terminal's that gives lines and raises signals in between."""

    def __init__(self, *typed: str | signal.Signals, tty: bool = True) -> None:
        self.typed: Iterator[str | signal.Signals] = iter(typed)
        self._tty = tty

    def isatty(self) -> bool:
        return self._tty

    def readline(self) -> str:
        typed = next(self.typed, "")
        if isinstance(typed, signal.Signals):
            signal.raise_signal(typed)
            return ""
        return typed


#: runs in `tmp_path`, with the arguments of `support.kernai`; `keys` are typed at a terminal
Here = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """Run `kernai` within the test process, with the outcome of a process, and then remove modules it imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def call(
        *arguments: str, input: str | bytes = "", env: Mapping[str, str] | None = None,
        keys: Keys | None = None, screen: Screen | None = None,
    ) -> subprocess.CompletedProcess[str]:
        for name, value in (environment() if env is None else env).items():
            if name.isupper() and not name.startswith(("PYTHON", "PATH", "HOME", "TMP")):
                monkeypatch.setenv(name, value)
        monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own
        data = io.BytesIO(input if isinstance(input, bytes) else input.encode())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data, encoding="utf-8") if keys is None else keys)
        with contextlib.redirect_stdout(screen or sys.stdout):
            status = main(arguments)
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, screen.getvalue() if screen else shown.out, shown.err)

    yield call
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
