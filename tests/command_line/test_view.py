"""`kernai view`: where the page is written, files that are left alone, and following a run."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from kernai import KernaiError
from kernai.viewer import write_page
from kernai.viewer.page import MARK
from tests.command_line.conftest import Here
from tests.viewer.recordings import buying, small

View = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in small().entries))
    return path


@pytest.fixture
def view(here: Here, tmp_path: Path) -> View:
    return lambda *arguments: here("view", *map(str, arguments))


def test_every_format_of_a_recording_can_be_viewed(tmp_path: Path, view: View) -> None:
    entries = buying()
    for name, text in (("list.json", json.dumps(entries)), ("log.json", json.dumps({"scenario": "x", "events": entries}))):
        (tmp_path / name).write_text(text)
        assert view(tmp_path / name, "--title", "Buying").returncode == 0
        written = (tmp_path / name).with_suffix(".html")
        page = written.read_text()
        written.unlink()
        sys.stdout.reconfigure(encoding="latin-1")  # type: ignore[union-attr]  # a page is UTF-8 all the same
        assert view(tmp_path / name, "--title", "Buying", "-o", "-").stdout == page
        assert not written.exists()
        assert "<title>Buying</title>" in page
        assert "Order from north." in page


def test_a_file_that_is_not_a_page_is_left_alone_even_if_it_is_named(run: Path, view: View) -> None:
    page, program = run.with_suffix(".html"), run.parent / "agent.py"
    for file, arguments in ((page, ()), (program, ("-o", program))):
        file.write_text("my notes")
        refused = view(run, *arguments)
        assert refused.returncode == 2
        assert refused.stderr.splitlines() == [
            f"kernai: error: {file} already exists and is not a page of this viewer", "hint: name another file with -o"]
        assert file.read_text() == "my notes"


def test_the_page_is_written_beside_the_recording_for_its_owner_only_and_may_be_overwritten(run: Path, view: View) -> None:
    page = run.with_suffix(".html")
    page.touch(mode=0o644)
    for _ in range(2):
        done = view(run)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{page}\n", "")
        assert MARK in page.read_bytes()
        assert b"<title>run.jsonl</title>" in page.read_bytes()
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert sorted(file.name for file in run.parent.iterdir()) == ["run.html", "run.jsonl"]


@pytest.mark.parametrize("number, ending", [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_follow_exits_cleanly_on_ctrl_c_or_sigterm_and_reports_a_port_in_use(
    run: Path, view: View, monkeypatch: pytest.MonkeyPatch, number: int, ending: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = view(run, "--follow", "--port", port)
        assert refused.returncode == 2
        assert f"--port: cannot listen on port {port}: " in refused.stderr

    opened: list[str] = []

    def browse(address: str) -> None:
        opened.append(address)
        if address.startswith("http"):
            threading.Thread(target=visit, args=(address,)).start()

    def visit(address: str) -> None:
        try:
            with urllib.request.urlopen(address, timeout=20) as page:
                assert b"<title>run.jsonl</title>" in page.read()
        finally:
            os.kill(os.getpid(), number)

    monkeypatch.setattr("webbrowser.open", browse)  # it returns None, so no browser was opened
    done = view(run, "--follow", "--open", "--port", port)
    assert done.returncode == ending
    assert done.stdout.split("/")[3] not in done.stderr
    assert done.stdout.startswith(f"http://127.0.0.1:{port}/")
    assert opened != [done.stdout.strip()], "other users can see what a browser is started with"
    assert done.stderr.startswith("Whoever has this address can read the recording. Ctrl-C ends.\nNo browser could be opened.\n")
    assert view(run, "--open").returncode == 0
    assert opened[1:] == [run.with_suffix(".html").as_uri()]


def test_a_page_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    with pytest.raises(UnicodeEncodeError):
        write_page(target, "\ud800")
    assert list(tmp_path.iterdir()) == []
    target.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("not a page")
    with pytest.raises(KernaiError, match="is not a page of this viewer"):
        write_page(target, "x")
    (tmp_path / "elsewhere").write_bytes(MARK)
    write_page(target, "x")
    assert (target.is_symlink(), target.read_text(), (tmp_path / "elsewhere").read_bytes()) == (False, "x", MARK)
