"""`kernai skills`: what files of skills hold, as a model would read it, and which file is at fault."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from kernai.command_line import output
from kernai.command_line.agents import FoundSkills, skills_in
from kernai.command_line.options import Command, add_capabilities_argument
from kernai.command_line.output import DEBUG_HINT, NO, OK, CommandError
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_registry import SkillRegistry
from kernai.values.model import Model

DESCRIPTION = """\
Load files of skills, check them, and list the skills as a model would see them. The files are executed, as with
skills.load_from; Skill objects at their top level are listed too, even with register=False. A file with an error is
reported with the line and the reason, and the others are still listed. FILE may be a pattern like 'skills/**/*.py'."""
EXAMPLES = """\
kernai skills skills.py
kernai skills 'skills/**/*.py' --model-capabilities text,vision
kernai skills skills.py --json"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="a Python file, or a pattern; the code is executed")
    add_capabilities_argument(
        parser, "list the skills for a model with these, such as text,vision (default: every skill)"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")


def run(options: Namespace) -> int:
    with skills_in(options.files) as found:
        model = options.model_capabilities and Model("the model", options.model_capabilities)
        skills = [one.skill for one in found.skills.values()]
        listed = [skill for skill in skills if model is None or model.supports(*skill.requires)]
        if options.json:
            output.write_json(_data(found, listed))
        else:
            output.write(SkillRegistry().listing(listed))
            for skill in skills:
                if skill not in listed:
                    needed = ", ".join(skill.requires)
                    output.note(f"note: {skill.name!r} is not listed: it requires {needed}", "yellow")
    for fault in found.faults:
        hint = DEBUG_HINT if fault is found.faults[-1] else None
        output.report(CommandError(str(fault), hint), fault.error if options.debug else None)
    return NO if found.faults else OK


def _data(found: FoundSkills, listed: list[Skill]) -> dict[str, Any]:
    return {
        "skills": [
            {
                "name": skill.name,
                "file": file,
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
                "registered": registered,
                "listed": skill in listed,
                "usage": skill.usage(),
                "listing": skill.describe(),
            }
            for skill, file, registered in found.skills.values()
        ],
        "faults": [{"file": fault.file, "line": fault.line, "reason": fault.reason} for fault in found.faults],
    }


COMMANDS = {"skills": Command(add_arguments, run, DESCRIPTION, EXAMPLES)}
