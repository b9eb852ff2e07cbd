"""Skills from files: each file is run as a module with a private name, and the skills it defines are collected."""

from __future__ import annotations

import os
import re
import sys
import traceback
from contextvars import ContextVar
from itertools import count
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from kernai.errors import KernaiError, error_text

if TYPE_CHECKING:
    from kernai.registry.skill_definition import Skill


class Collection:
    """Where `@skill` puts what it makes while a file is being loaded."""

    def __init__(self) -> None:
        self.skills: list[Skill] = []
        self.open = True


# A context variable, so that files loaded in several threads at once do not mix. A task that a file starts may keep its
# value for ever, so a collection is closed when the file has been run.
_collection: ContextVar[Collection | None] = ContextVar("kernai_skill_collection", default=None)


def collect(skill: Skill) -> bool:
    """Whether a file is being loaded here and has taken the skill."""
    collection = _collection.get()
    if collection is None or not collection.open:
        return False
    collection.skills.append(skill)
    return True


_numbers = count(1)


class SkillFile(NamedTuple):
    """A loaded file: its module's name in `sys.modules` and the skills that it defined."""

    path: str
    module: str
    skills: tuple[Skill, ...]

    def owns(self, skill: Skill) -> bool:
        """Whether the skill was written in this file, and not in a module that it imported.

        Only such a skill is removed when it is gone from the file: an imported module is not run a second time.
        """
        return skill.__module__ == self.module


def find_files(pattern: str) -> list[str]:
    """The files that a glob pattern matches, sorted; `KernaiError` when there are none."""
    from glob import glob  # needed only to load files

    found = sorted(path for path in glob(pattern, recursive=True) if os.path.isfile(path))  # noqa: PTH113, PTH207 - text in, text out
    if not found:
        raise KernaiError(f"no skill files match {pattern!r}")
    return found


def load_files(paths: list[str]) -> list[SkillFile]:
    """Runs the files in order. If one fails, none is kept, and a `KernaiError` says which file and line."""
    loaded: list[SkillFile] = []
    try:
        for path in paths:
            loaded.append(_load(path))  # noqa: PERF401 - the loaded ones are needed if a later one fails
    except BaseException:
        forget(loaded)
        raise
    return loaded


def forget(files: list[SkillFile]) -> None:
    """Removes the files' modules from `sys.modules`; whatever still refers to them stays alive."""
    for one in files:
        sys.modules.pop(one.module, None)


def _load(path: str) -> SkillFile:
    stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])  # noqa: PTH119, PTH122 - text in, text out
    name = f"_kernai_skill_file_{next(_numbers)}_{stem}"  # never used twice: an old module may still be running
    module = ModuleType(name)
    module.__file__ = path
    collection = Collection()
    token = _collection.set(collection)
    sys.modules[name] = module  # dataclasses look for their module there
    try:
        # compiled from the source each time: the cache of compiled files does not notice two edits within a second
        with open(path, "rb") as file:  # noqa: PTH123 - text in, text out
            code = compile(file.read(), path, "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - a skill file is code, named by the program's author
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, (Exception, SystemExit)):
            raise KernaiError(f"{_place(path, error)}: {_said(error)}") from error
        raise
    finally:
        collection.open = False
        _collection.reset(token)
    return SkillFile(path, name, tuple(collection.skills))


def _place(path: str, error: BaseException) -> str:
    """``file:line``: the innermost line of this file in the traceback."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else path


def _said(error: BaseException) -> str:
    name, text = type(error).__name__, error.msg if isinstance(error, SyntaxError) else error_text(error)
    return text if text == name or text.startswith(f"{name}: ") else f"{name}: {text}"
