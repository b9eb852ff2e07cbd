"""Which files beside a recording become pictures of its page."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kernai.viewer import thumbnails
from kernai.viewer.thumbnails import Thumbnails, picture_type

ID = "media_00000000000a"
GIF = b"GIF89a" + bytes(20)


def found(folder: Path | str | None, *names: str) -> dict[str, dict[str, str]]:
    return Thumbnails(folder).find(set(names or (ID,)))


@pytest.mark.parametrize(
    "data, kind",
    [
        (b"\x89PNG\r\n\x1a\nxx", "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF87a", "image/gif"),
        (b"GIF89a", "image/gif"), (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), (b"RIFF\0\0\0\0WAVE", None),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None), (b"<html>", None), (b"", None), (b"BM", None), (b"%PDF-1.7", None),
    ],
)
def test_a_picture_is_what_begins_as_one(data: bytes, kind: str | None) -> None:
    assert picture_type(data) == kind


def test_the_ending_of_a_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.bin").write_bytes(GIF)
    assert found(tmp_path)[ID]["uri"].startswith("data:image/gif;base64,")
    (tmp_path / f"{ID}.bin").write_bytes(b"<svg/>")
    assert found(tmp_path)[ID] == {"left_out": "its data is not PNG, JPEG, GIF or WebP"}


@pytest.mark.parametrize("name", [f"{ID}", f"{ID}.a.b", f"x{ID}.png", "media_00000000000A.png", f"{ID}.png\n", f"{ID}.{'x' * 9}"])
def test_files_of_other_names_are_not_looked_at(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(GIF)
    assert found(tmp_path) == {}


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    secret = tmp_path / "secret.gif"
    secret.write_bytes(GIF)
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / f"{ID}.gif").symlink_to(secret)
    assert "cannot be opened" in found(folder)[ID]["left_out"]
    (folder / f"{ID}.gif").unlink()
    os.mkfifo(folder / f"{ID}.gif")
    (folder / "media_00000000000b.gif").mkdir()
    not_one = {"left_out": "its file is not a regular file"}
    assert found(folder, ID, "media_00000000000b") == {ID: not_one, "media_00000000000b": not_one}
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert found(linked) == {}


@pytest.mark.parametrize("folder", [None, "no/such/folder", __file__])
def test_without_a_folder_there_are_no_pictures(folder: str | None) -> None:
    assert found(folder) == {}


def test_each_picture_and_all_of_them_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thumbnails, "MAX_BYTES", 100)
    monkeypatch.setattr(thumbnails, "MAX_TOTAL", 150)
    names = [f"media_00000000000{end}" for end in "abc"]
    for name, size in zip(names, (90, 101, 80), strict=True):
        (tmp_path / f"{name}.gif").write_bytes(GIF.ljust(size))
    pictures = found(tmp_path, *names)
    assert set(pictures[names[0]]) == {"uri"}
    assert pictures[names[1]] == {"left_out": "it has 101 bytes, and a picture here may have 100"}
    assert pictures[names[2]] == {"left_out": "the pictures of this page have reached 150 bytes"}


def test_a_file_that_was_just_written_may_be_half(tmp_path: Path) -> None:
    file = tmp_path / f"{ID}.gif"
    file.write_bytes(GIF)
    assert Thumbnails(tmp_path, settle=3600).find({ID}) == {}
    before = time.time() - 7200
    os.utime(file, (before, before))
    assert set(Thumbnails(tmp_path, settle=3600).find({ID})) == {ID}
