"""Loads files of skills and finds what is wrong with them; `kernai skills` lists skills as a model would see them."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kernai.command_line import output
from kernai.command_line.output import DEBUG_HINT, NO, OK, CommandError, Terminated
from kernai.command_line.program import Command, argument
from kernai.errors import KernaiError
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_registry import Fault, SkillFile, SkillRegistry, fault_of, find_files, forget, run_file
from kernai.values.model import CAPABILITIES, Model


class FoundSkill(NamedTuple):
    """A skill, its file, and whether the file registers it."""

    skill: Skill
    file: str
    registered: bool


@contextmanager
def skills_in(files: list[str]) -> Iterator[tuple[dict[str, FoundSkill], list[Fault]]]:
    """Executes these files, and those that match patterns. Yields their skills by name, and the faults of files that
    cannot be loaded. The files' modules are forgotten at the end of the block.
    """
    skills: dict[str, FoundSkill] = {}
    faults: list[Fault] = []
    loaded: list[SkillFile] = []
    if files:
        import_from(os.getcwd())
    try:
        for path in dict.fromkeys(path for one in files for path in _matching(one)):
            try:
                with output.stdout_is_stderr():  # what the file prints does not belong in the listing
                    file = run_file(path)
            except (KeyboardInterrupt, Terminated):
                raise
            except BaseException as error:  # noqa: BLE001 - the file may raise anything
                faults.append(fault_of(error, path, path))
                continue
            loaded.append(file)
            values = [one for one in vars(sys.modules[file.module]).values() if isinstance(one, Skill)]
            for skill in dict.fromkeys([*file.skills, *values]):
                earlier = skills.get(skill.name)
                if skill in file.skills or not any(skill is one.skill for one in skills.values()):
                    if earlier is not None:
                        output.note(f"note: {skill.name!r} of {path} replaces the one in {earlier.file}", "yellow")
                    skills[skill.name] = FoundSkill(skill, path, skill in file.skills)
        yield skills, faults
    finally:
        forget(loaded)


def _matching(given: str) -> list[str]:
    if os.path.isfile(given):
        return [given]
    try:
        return find_files(given)
    except KernaiError as error:
        hint = "name a Python file, or those in a folder by a pattern in quotes, such as 'skills/*.py'"
        raise CommandError(f"no file {given!r}", hint) from error


def import_from(folder: str) -> None:
    """Lets code import the modules in this folder, as `python -m` and `python FILE` do."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


# -------------------------------------------------------------------------------------------------------- the command


def capabilities(given: str) -> tuple[str, ...]:
    """An argparse type: capabilities of a model."""
    words = tuple(dict.fromkeys(word.strip() for word in given.split(",") if word.strip()))
    unknown = [word for word in words if word not in CAPABILITIES]
    if unknown or not words:
        wrong = f"no capability {unknown[0]!r}" if unknown else "no capability at all"
        raise ArgumentTypeError(f"{wrong}; there are {', '.join(CAPABILITIES)}")
    return words


def run(options: Namespace) -> int:
    model = options.model_capabilities and Model("the model", options.model_capabilities)
    with skills_in(options.files) as (found, faults):
        skills = [one.skill for one in found.values()]
        listed = [skill for skill in skills if model is None or model.supports(*skill.requires)]
        if options.json:
            output.write_json({
                "skills": [_data(*one, listed=one.skill in listed) for one in found.values()],
                "faults": [{"file": file, "line": line, "reason": reason} for file, line, reason, _ in faults],
            })
        else:
            if found or not faults:
                output.write(SkillRegistry().listing(listed))
            for skill in skills:
                if skill not in listed:
                    needed = ", ".join(skill.requires)
                    output.note(f"note: {skill.name!r} is not listed: it requires {needed}", "yellow")
    for fault in faults:
        hint = DEBUG_HINT if fault is faults[-1] else None
        output.report(CommandError(str(fault), hint), fault.error if options.debug else None)
    return NO if faults else OK


def _data(skill: Skill, file: str, registered: bool, *, listed: bool) -> dict[str, Any]:
    return {
        "name": skill.name,
        "file": file,
        "description": skill.description,
        "inputs": [
            {"name": name, "type": skill.types[name], "required": one.required, "description": one.description}
            for name, one in skill.inputs.items()
        ],
        "schema": skill.schema(),
        **{name: list(getattr(skill, name)) for name in ("requires", "produces", "credentials", "settings")},
        "async": skill.is_async,
        "registered": registered,
        "listed": listed,
        "usage": skill.usage(),
        "listing": skill.describe(),
    }


_ARGUMENTS = (
    argument("FILE", "a Python file, or a pattern; the code is executed", name="files", nargs="+"),
    argument("--model-capabilities LIST",
             "list the skills for a model with these, such as text,vision (default: every skill)", capabilities),
    argument("--json", "everything as JSON on stdout"),
)
COMMANDS = {"skills": Command(run, _ARGUMENTS, """\
Load files of skills, check them, and list the skills as a model would see them. The files are executed, as with
skills.load_from; Skill objects at their top level are listed too, even with register=False. A file with an error
is reported with the line and the reason, and the others are still listed. FILE may be a pattern like
'skills/**/*.py'.""", """\
kernai skills skills.py
kernai skills 'skills/**/*.py' --model-capabilities text,vision
kernai skills skills.py --json""")}
