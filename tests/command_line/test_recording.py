"""`--record`: what goes wrong on the way is told, and costs neither the run nor another file."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernai import Event, MediaStore
from kernai.command_line.errors import CommandError
from kernai.command_line.recording import Recording
from tests.command_line.conftest import Here
from tests.command_line.support import error_lines, write


@contextmanager
def little_room() -> Iterator[None]:
    """In this block no file may grow beyond a few bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["run.json", "run.jsonl"])
def test_a_full_disk_is_told_at_the_end(tmp_path: Path, name: str) -> None:
    recording = Recording(str(tmp_path / name), MediaStore())
    with little_room():
        recording.recorder.record(Event("final", "x" * 100))
        recording.close()
    recording.close()
    with pytest.raises(CommandError, match=rf"the recording .*{name} is not whole: File too large"):
        recording.check()
    assert not list(tmp_path.glob("*.part"))


def test_a_folder_that_vanishes_is_told_at_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with Recording(str(folder / "run.json"), MediaStore()) as recording:
        recording.recorder.record(Event("final", "x"))
        shutil.rmtree(folder)
    with pytest.raises(CommandError, match="No such file"):
        recording.check()


def test_a_path_that_no_file_can_have_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match=r"cannot write .*: Not a directory"):
        Recording(str(tmp_path / "file" / "run.json"), MediaStore())


def test_an_empty_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("")
    with Recording(str(tmp_path / "run.json"), MediaStore()):
        pass
    assert (tmp_path / "run.json").read_text() == "[]\n"


def test_a_run_that_fails_tells_of_its_faulty_recording_too(here: Here, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    write(tmp_path, "agent.py", "import kernai, shutil\ndef answer(*_):\n    shutil.rmtree('gone')\n    raise kernai.ProviderError('down')\n"
          "agent = kernai.Agent(instructions='x', provider=kernai.MockProvider().on_call(answer))\n")
    done = here("run", "agent.py", "x", "-q", "--record", "gone/run.json", cwd=tmp_path)
    assert done.returncode == 3
    assert error_lines(done.stderr)[0].startswith("kernai: error: down; and the recording gone/run.json is not whole: ")
