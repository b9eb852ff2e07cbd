"""Running the program within the test process, for many cases and for coverage; `support` starts real processes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest

from kernai.command_line import main
from tests.command_line.support import environment


class Here(Protocol):
    """Has the arguments of `support.kernai`; `cwd` must be `tmp_path`."""

    def __call__(
        self, *arguments: str, cwd: Path, input: str | bytes = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """Run `kernai` within the test process, with the outcome of a process, and then remove modules it imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def call(
        *arguments: str, cwd: Path, input: str | bytes = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        assert cwd == tmp_path
        for name, value in (environment() if env is None else env).items():
            if name.isupper() and not name.startswith(("PYTHON", "PATH", "HOME", "TMP")):
                monkeypatch.setenv(name, value)
        data = input if isinstance(input, bytes) else input.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        status = main(arguments)
        shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, status, shown.out, shown.err)

    yield call
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
