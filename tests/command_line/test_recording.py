"""`--record`: failures are reported, and affect neither the run nor other files."""

from __future__ import annotations

import resource
import stat
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kernai import Event, Media, MediaStore
from kernai.command_line.output import CommandError
from kernai.command_line.recording import MAX_BYTES, Recording, Source
from kernai.jsonio.json_data import dumps
from kernai.recording_file import read_recording
from tests.command_line.support import write


@contextmanager
def little_room() -> Iterator[None]:
    """Limit the size of files to a few bytes in this block, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", ["run.json", "run.jsonl"])
def test_a_full_disk_is_reported_at_the_end(tmp_path: Path, name: str) -> None:
    error = rf"the recording .*{name} is incomplete: File too large"
    with little_room(), pytest.raises(CommandError, match=error), Recording(str(tmp_path / name), MediaStore()) as recorder:
        recorder.record(Event("final", "x" * 100))
    assert not list(tmp_path.glob("*.part"))


# ------------------------------------------------------------------------------------------- files that exist already

ENDINGS = pytest.mark.parametrize("ending", ["json", "jsonl"])
ENTRY = dumps(Event("final", "earlier").to_dict())
EARLIER = ENTRY + "\n"


def record_to(path: Path, store: MediaStore | None = None) -> None:
    with Recording(str(path), MediaStore() if store is None else store) as recorder:
        recorder.record(Event("final", "now"))


def answers_in(path: Path) -> list[object]:
    return [entry["data"] for entry in read_recording(path)]


@ENDINGS
@pytest.mark.parametrize("earlier", [
    "", "[]\n", f"[{ENTRY}]\n", EARLIER, EARLIER + ENTRY[:-9], ENTRY[:30], ENTRY[:14], "{", f"{ENTRY[:-9]}\n{EARLIER}",
])
def test_an_earlier_recording_is_replaced(tmp_path: Path, ending: str, earlier: str) -> None:
    path = tmp_path / f"run.{ending}"
    path.write_text(earlier)
    record_to(path)
    assert answers_in(path) == ["now"]


@ENDINGS
@pytest.mark.parametrize("earlier", [None, EARLIER])
def test_only_one_program_at_a_time_records_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, earlier: str | None
) -> None:
    path = tmp_path / f"run.{ending}"
    if earlier is not None:
        path.write_text(earlier)
    with Recording(str(path), MediaStore()) as recorder:
        for at in ("before its first event", "later"):
            with pytest.raises(CommandError, match=r"--record: another process is recording to .*run"):
                record_to(path)
            recorder.record(Event("final", at))
    assert answers_in(path) == ["before its first event", "later"]
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    record_to(path)
    assert answers_in(path) == ["now"]


@ENDINGS
@pytest.mark.parametrize(
    "foreign", [
        '{"event":"paid","eur":12}\n{"event":"paid","eur":30}\n', '{"event":"paid","eur":12}', '{"event":"paid","eu',
        '[{"event":"paid","eur":12}]', '{"calendar":"mine","events":[]}', f'{{"name":"a scenario","events":[{ENTRY}]}}',
        f'{EARLIER}{{"event":"paid","eur":12}}\n', f'[{ENTRY}, "more"]', '{"events', "[" * 100_000, "12", "mine",
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_recording_is_refused_and_left_unchanged(tmp_path: Path, ending: str, foreign: str) -> None:
    path = tmp_path / f"run.{ending}"
    path.write_text(foreign)
    with pytest.raises(CommandError, match=r"--record: .* exists and is not a recording"):
        Recording(str(path), MediaStore())
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(path.name, foreign)]


@pytest.mark.parametrize(
    "make, reason",
    [(Path.touch, ": File exists"), (lambda path: path.symlink_to("."), " is a link, and kernai does not write media")],
    ids=["file", "link"],
)
def test_media_are_not_written_to_a_file_or_link_with_the_name_of_their_folder(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    store = MediaStore()
    path = tmp_path / "run.jsonl"
    error = rf"the recording .* is incomplete: .*run\.jsonl\.media{reason}"
    with pytest.raises(CommandError, match=error), Recording(str(path), store) as recorder:
        make(tmp_path / "run.jsonl.media")
        store.put(Media.from_bytes(b"picture", mime_type="image/png"))
        recorder.record(Event("final", "x"))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["run.jsonl", "run.jsonl.media"]


@ENDINGS
@pytest.mark.parametrize("lay", ["symlink_to", "hardlink_to", "rename"])
def test_a_recording_is_a_new_private_file_even_in_place_of_a_link(tmp_path: Path, ending: str, lay: str) -> None:
    path, elsewhere = tmp_path / f"run.{ending}", tmp_path / "elsewhere"
    elsewhere.write_text(EARLIER)
    elsewhere.chmod(0o644)
    beside = write(tmp_path, f"run.{ending}.part", "my notes")
    if lay == "rename":  # the earlier recording itself
        elsewhere.rename(path)
    else:
        getattr(path, lay)(elsewhere)
    with path.open() as earlier:  # a reader of the old file keeps reading the old file
        record_to(path)
        assert earlier.read() == EARLIER
    assert (path.is_symlink(), stat.S_IMODE(path.stat().st_mode), answers_in(path)) == (False, 0o600, ["now"])
    assert lay == "rename" or elsewhere.read_text() == EARLIER
    assert beside.read_text() == "my notes"
    assert {file.name for file in tmp_path.iterdir()} - {"elsewhere"} == {path.name, beside.name}


@pytest.mark.parametrize("lay", ["symlink_to", "hardlink_to"])
def test_media_are_written_to_separate_files_as_they_were_when_the_store_read_them(tmp_path: Path, lay: str) -> None:
    store = MediaStore()
    media = store.put(replace(Media.from_file(tmp_path / "gone.png"), payload=b"picture"))
    folder, elsewhere = tmp_path / "run.json.media", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_text("my notes")
    elsewhere.chmod(0o644)
    path = folder / f"{media.id}.png"
    getattr(path, lay)(elsewhere)
    record_to(tmp_path / "run.json", store)
    assert (path.read_bytes(), elsewhere.read_text()) == (b"picture", "my notes")
    assert (path.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == (False, 0o600)


@pytest.mark.parametrize("quiet", [False, True])
def test_media_that_are_huge_or_cannot_be_read_are_left_out_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    film = tmp_path / "film.mp4"
    with film.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    store = MediaStore([Media.from_file(film), Media.from_file(tmp_path / "gone.png")])
    recording = Recording(str(tmp_path / "r.json"), store, quiet=quiet)
    with pytest.raises(CommandError, match="is incomplete: cannot read media file"), recording as recorder:
        for text in ("one", "two"):
            recorder.record(Event("final", text))
    assert capsys.readouterr().err.count("over 67,108,864 bytes and left out") == (not quiet)
    assert not (tmp_path / "r.json.media").exists()


def test_reading_a_long_conversation_keeps_each_of_its_messages_once(tmp_path: Path) -> None:
    said = [{"event": "messages_sent", "data": [{"role": "user", "content": "x"}], "since": at} for at in range(2_000)]
    path = write(tmp_path, "run.jsonl", "\n".join(map(dumps, said)))
    tracemalloc.start()
    try:
        assert Source(str(path)).events()[1:] == said[1:]
        assert tracemalloc.get_traced_memory()[1] < 8_000_000  # lists of all messages alone would be 16 MB
    finally:
        tracemalloc.stop()
