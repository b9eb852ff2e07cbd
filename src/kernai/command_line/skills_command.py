"""`kernai skills`: what files of skills hold, as a model would read it, and which file is at fault."""

from __future__ import annotations

import os
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from typing import Any

from kernai.command_line import exit_codes, output
from kernai.command_line.agents import failed, working_directory_importable
from kernai.command_line.arguments import capabilities
from kernai.command_line.errors import DEBUG_HINT, CommandError
from kernai.errors import KernaiError
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_files import SkillFile, find_files, forget, load_files
from kernai.registry.skill_registry import SkillRegistry
from kernai.values.model import Model

DESCRIPTION = """\
Load files of skills, check them, and list what they hold as a model would read it. A file is run, as kernai itself
loads it (skills.load_from); Skill objects at its top level count too, also with register=False. A faulty file is named
with its line and the reason, and the others are listed all the same. FILE may be a pattern such as 'skills/**/*.py'."""
EXAMPLES = """\
kernai skills skills.py
kernai skills 'skills/**/*.py' --model-capabilities text,vision
kernai skills skills.py --json"""


PATTERN_HINT = "name a Python file, or a pattern in quotes, such as 'skills/*.py'"


@dataclass
class Fault:
    """A file that cannot be loaded, and why."""

    file: str
    line: int | None
    reason: str
    error: BaseException

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"file": self.file, "line": self.line, "reason": self.reason}


@dataclass
class Found:
    """What the files gave: skills by name with their file, and the faults."""

    skills: dict[str, Skill] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    registered: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    loaded: list[SkillFile] = field(default_factory=list)

    def add(self, path: str, skill: Skill, *, registered: bool) -> None:
        """Takes a skill up, in the place of an older one of its name."""
        older = self.origin.get(skill.name)
        if older is not None and self.skills[skill.name] is not skill:
            output.note(f"note: {skill.name!r} of {path} takes the place of the one in {older}", "yellow")
        self.skills[skill.name] = skill
        self.origin[skill.name] = path
        if registered:
            self.registered.add(skill.name)


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("files", metavar="FILE", nargs="+", help="a Python file, or a pattern; its code is run")
    parser.add_argument(
        "--model-capabilities", type=capabilities, metavar="LIST",
        help="list for a model that can do this, such as text,vision; by default every skill is listed",
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")


def run(options: Namespace) -> int:
    """See `Command`."""
    found = found_in(options.files)
    try:
        model = options.model_capabilities and Model("the model", options.model_capabilities)
        listed = [one for one in found.skills.values() if model is None or model.supports(*one.requires)]
        if options.json:
            output.write_json(_data(found, listed))
        else:
            _show(found, listed)
    finally:
        forget(found.loaded)
    for fault in found.faults:
        place = fault.file if fault.line is None else f"{fault.file}:{fault.line}"
        hint = DEBUG_HINT if fault is found.faults[-1] else None
        output.report(f"{place}: {fault.reason}", hint, fault.error if options.debug else None)
    return exit_codes.NO if found.faults else exit_codes.OK


def found_in(files: list[str]) -> Found:
    """What these files and patterns hold. Whoever asks must `forget` what was loaded in the end."""
    found = Found()
    working_directory_importable()
    try:
        for path in _paths(files):
            _load(path, found)
    except BaseException:
        forget(found.loaded)
        raise
    return found


def _paths(given: list[str]) -> list[str]:
    """The files; a pattern stands for those it matches."""
    paths: dict[str, None] = {}
    for one in given:
        if os.path.isfile(one):  # noqa: PTH113 - text in, text out
            paths[one] = None
            continue
        try:
            paths.update(dict.fromkeys(find_files(one)))
        except KernaiError as error:
            folder = os.path.isdir(one)  # noqa: PTH112 - text in, text out
            hint = f"of a folder name the files: '{one.rstrip('/')}/*.py'" if folder else PATTERN_HINT
            raise CommandError(f"no file {one!r}", hint) from error
    return list(paths)


def _load(path: str, found: Found) -> None:
    try:
        with output.stdout_is_stderr():  # what the file prints is no part of the listing
            [loaded] = load_files([path])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the file may raise anything
        found.faults.append(_fault(path, error))
        return
    found.loaded.append(loaded)
    for skill in loaded.skills:
        found.add(path, skill, registered=True)
    for value in list(vars(sys.modules[loaded.module]).values()):
        if isinstance(value, Skill) and not any(value is one for one in found.skills.values()):
            found.add(path, value, registered=False)


def _fault(path: str, error: BaseException) -> Fault:
    """``PATH:LINE: REASON`` in its parts; `load_files` lets pass what is no `Exception`."""
    told = str(error) if isinstance(error, KernaiError) else failed(error, path, path).message
    parts = re.match(r"(?::(\d+))?: ", told[len(path):])
    if not told.startswith(path) or parts is None:
        return Fault(path, None, told, error)
    line = parts[1]
    return Fault(path, int(line) if line else None, told[len(path) + parts.end():], error)


def _show(found: Found, listed: list[Skill]) -> None:
    registry = SkillRegistry()
    output.write(registry.listing(listed))
    for skill in found.skills.values():
        if skill not in listed:
            output.note(f"note: {skill.name!r} is not listed: it requires {', '.join(skill.requires)}", "yellow")


def _data(found: Found, listed: list[Skill]) -> dict[str, Any]:
    return {
        "skills": [
            {
                "name": skill.name,
                "file": found.origin[skill.name],
                "description": skill.description,
                "inputs": [
                    {"name": name, "type": skill.types[name], "required": one.required, "description": one.description}
                    for name, one in skill.inputs.items()
                ],
                "schema": skill.schema(),
                "requires": list(skill.requires),
                "produces": list(skill.produces),
                "credentials": list(skill.credentials),
                "settings": list(skill.settings),
                "async": skill.is_async,
                "registered": skill.name in found.registered,
                "listed": skill in listed,
                "usage": skill.usage(),
                "listing": skill.describe(),
            }
            for skill in found.skills.values()
        ],
        "faults": [fault.to_dict() for fault in found.faults],
    }
