"""`KnowHow`: folders of instructions in the Agent Skills format, for `Agent(know_how=...)`.

A folder has a file `SKILL.md`, whose front matter gives a `name` and a `description`, and may have other files. The
descriptions are in the system message; a model reads the rest with `/read`. Nothing is run.
https://agentskills.io/specification
"""

# ruff: noqa: PTH100, PTH113, PTH118, PTH123, PTH206, PTH208 - importing pathlib takes 9 ms

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kernai._util.api import check_type
from kernai.blocks.block import neutralize

FILE = "SKILL.md"
#: how many characters of a file the model reads, and how many files are listed
MOST_CHARACTERS, MOST_FILES = 100_000, 200
_FRONT_MATTER = re.compile(r"---[^\S\n]*\n(.*?)^---[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
#: a name and its text, which continues in lines that are indented or blank
_FIELD = re.compile(r"^([A-Za-z][\w-]*):[ \t]*(.*(?:\n(?:[ \t].*)?)*)", re.MULTILINE)
#: a text in quotes, perhaps with a comment after it, and comments in a text without quotes
_QUOTED = re.compile(r"""(['"])(.*)\1(?:\s+#[^'"]*)?""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|[ \t])#.*", re.MULTILINE)
_NAME = re.compile(r"[^\s/\\<>\"']{1,64}")


@dataclass(frozen=True, slots=True)
class Folder:
    """One folder of instructions."""

    name: str
    description: str
    path: str

    def read(self, file: str) -> str:
        """Returns a file's text, without the front matter of `SKILL.md`.

        Raises `ValueError`, with a text for the model to read, if there is no such file or it cannot be read.
        """
        file = file or FILE
        if (path := self._path(file)) is None:
            raise ValueError(f"{self.name} has no file {file!r}. {self._files()}")
        try:
            with open(path, encoding="utf-8-sig") as opened:
                text = opened.read(MOST_CHARACTERS + 1)
        except UnicodeDecodeError:
            raise ValueError(f"{file} is not text") from None
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
        cut = f"\n[cut after {MOST_CHARACTERS:,} characters]" if len(text) > MOST_CHARACTERS else ""
        text = text[:MOST_CHARACTERS]
        if file == FILE:
            text = f"{_split_front_matter(text)[1].strip()}\n\n{self._files()}"
        return text + cut

    def _path(self, file: str) -> str | None:
        """The path of a file that may be read; None if it is hidden, outside of the folder, or not a file."""
        root = os.path.realpath(self.path)
        path = os.path.realpath(os.path.join(root, file))
        is_hidden = any(name.startswith(".") for name in os.path.normpath(file).split(os.sep))
        return None if is_hidden or os.path.commonpath([root, path]) != root or not os.path.isfile(path) else path

    def _files(self) -> str:
        found: list[str] = []
        for folder, folders, files in os.walk(self.path):
            folders[:] = [one for one in folders if not one.startswith(".")]
            inside = (os.path.relpath(os.path.join(folder, one), self.path).replace(os.sep, "/") for one in files)
            found += (one for one in inside if one != FILE and self._path(one) is not None)
        more = f" and {len(found) - MOST_FILES} more" if len(found) > MOST_FILES else ""
        return f"Files: {', '.join(sorted(found)[:MOST_FILES])}{more}." if found else "There are no other files."


class KnowHow:
    """The folders of an agent, by name. Their front matter is read once, when the agent is created."""

    def __init__(self, folders: Iterable[Folder]) -> None:
        self.folders: dict[str, Folder] = {}
        for folder in folders:
            if folder.name in self.folders:
                raise ValueError(f"know_how has two folders named {folder.name!r}")
            self.folders[folder.name] = folder

    @classmethod
    def of(cls, given: Any) -> KnowHow | None:
        """Reads the folders of a path or a list of paths; a `KnowHow` is returned unchanged.

        Raises `ValueError` for a folder without a valid `SKILL.md`.
        """
        if isinstance(given, cls):
            return given
        check_type(given, os.PathLike | Iterable | None, "know_how must be a path or a list of paths")
        paths = [given] if isinstance(given, (str, os.PathLike)) else given
        return cls(folder for path in paths for folder in _folders_in(os.fspath(path))) if paths else None

    def section(self, how: str) -> str:
        """Returns the section of the system message about the folders. `how` says how to read one."""
        lines = [f"- {folder.name}: {folder.description}" for folder in self.folders.values()]
        first = f"Before you do work of one of these kinds, read its instructions: {how}"
        return "\n".join(["## Know-how", "", first, *lines])

    def read(self, argument: str) -> str:
        """Returns the output of `/read NAME [FILE]`."""
        name, _, file = argument.strip().partition(" ")
        if name not in self.folders:
            return neutralize(f"There is no know-how {name!r}. There is: {', '.join(self.folders)}.")
        try:
            return neutralize(self.folders[name].read(file.strip()))
        except ValueError as error:
            return neutralize(str(error))


def _folders_in(path: str) -> Iterator[Folder]:
    """Yields the folder itself if it has a `SKILL.md`, else the folders in it that have one."""
    folders = [path]
    if not os.path.isfile(os.path.join(path, FILE)):
        try:
            inside = [os.path.join(path, one) for one in sorted(os.listdir(path))]
        except OSError as error:
            raise ValueError(f"know_how: cannot read {path!r}: {error.strerror}") from None
        folders = [one for one in inside if os.path.isfile(os.path.join(one, FILE))]
        if not folders:
            raise ValueError(f"know_how: neither {path!r} nor a folder in it has a {FILE}")
    yield from map(_folder, folders)


def _folder(path: str) -> Folder:
    file = os.path.join(path, FILE)
    try:
        with open(file, encoding="utf-8-sig") as opened:
            head = _split_front_matter(opened.read(MOST_CHARACTERS))[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"know_how: cannot read {file!r}: {error}") from None
    fields = _fields(head)
    for name in ("name", "description"):
        if not fields.get(name, "").strip():
            raise ValueError(f"know_how: {file!r} has no {name} between two lines of --- at its beginning")
    if not _NAME.fullmatch(fields["name"]):
        wrong = "is longer than 64 characters, or has white space, a slash, a quote or an angle bracket"
        raise ValueError(f"know_how: the name {fields['name']!r} in {file!r} {wrong}")
    return Folder(fields["name"], " ".join(neutralize(fields["description"]).split()), os.path.abspath(path))


def _split_front_matter(text: str) -> tuple[str, str]:
    """Splits a `SKILL.md` into its front matter and the text after it."""
    found = _FRONT_MATTER.match(text)
    return (found[1], text[found.end() :]) if found else ("", text)


def _fields(head: str) -> dict[str, str]:
    """Returns the top-level texts of YAML front matter: plain, quoted, or over several lines. Lists are ignored."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(head):
        is_block, is_quoted = value.startswith(("|", ">")), value.lstrip().startswith(("'", '"'))
        first, *more = map(str.strip, (value if is_block or is_quoted else _COMMENT.sub("", value)).split("\n"))
        text = " ".join(filter(None, more if is_block else [first, *more]))
        fields[name] = text if is_block else _unquoted(text)
    return fields


def _unquoted(text: str) -> str:
    if (quoted := _QUOTED.fullmatch(text)) is None:
        return text
    return quoted[2].replace("''", "'") if quoted[1] == "'" else re.sub(r'\\(["\\])', r"\1", quoted[2])
