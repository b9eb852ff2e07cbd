"""The agent of a command: defined in the user's file, or made from options; with its model and limits."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.options import AGENT_FORMS
from kernai.command_line.output import DEBUG_HINT, NO, CommandError, described, failing
from kernai.errors import KernaiError, error_text
from kernai.registry.configuration import config
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_registry import SkillFile, find_files, forget, load_files
from kernai.values.limits import Limits
from kernai.values.media import Media
from kernai.values.model import MEDIA_INPUTS, Model

USUAL_NAME = "agent"
INSTRUCTIONS = "You are a helpful assistant. You talk with a person in a terminal: answer in plain text, and briefly."
NAME_ONE = f"name one as {AGENT_FORMS}, or make one: --system TEXT, --skills FILE"
A_MODEL = "give one, such as --model anthropic/claude-sonnet-5 or --model ollama/llama3.1; `kernai doctor` shows keys"
WHICH_MODEL = "`kernai doctor` shows which keys are set; --model local/NAME --base-url URL is a server like OpenAI's"


@contextmanager
def prepared(options: Namespace, name: str) -> Iterator[tuple[Agent[Any], Limits]]:
    """The agent with the model and limits of the command line; connections close at the end of the block.

    `name` is that of an agent made from options. `CommandError` where no model would answer, or a limit cannot be kept.
    """
    with agent_of(options, name) as found, _with_model(found, options) as ready:
        agent = ready if options.max_steps is None else ready.replace(max_steps=options.max_steps)
        if options.max_cost is not None and agent.model.cost is None:
            raise CommandError(
                f"--max-cost needs the price of model {agent.model.id!r}",
                "give --model with --price IN,OUT (dollars per million tokens), or Model(..., cost=...) in its file",
            )
        yield agent, Limits(
            max_tokens=options.max_tokens, max_cost=options.max_cost, max_calls=options.max_calls,
            timeout=options.timeout,
        )


@contextmanager
def _with_model(agent: Agent[Any], options: Namespace) -> Iterator[Agent[Any]]:
    if options.model is None:
        for option in ("base_url", "model_capabilities", "price"):
            if getattr(options, option) is not None:
                raise CommandError(f"--{option.replace('_', '-')} is for a --model, and there is none", A_MODEL)
        if agent.provider is None and config.default_provider is None:
            raise CommandError("the agent has no provider", A_MODEL)
        yield agent
        return
    from kernai_providers import resolve  # an agent in a file may bring its own

    where = {} if options.base_url is None else {"base_url": options.base_url}
    try:
        provider, model = resolve(options.model, capabilities=options.model_capabilities, cost=options.price, **where)
    except (KernaiError, ValueError, TypeError) as error:
        raise CommandError(f"--model: {error_text(error)}", WHICH_MODEL) from error
    with provider:
        yield agent.replace(provider=provider, model=model)


def note_unseen(media: Sequence[Media], model: Model) -> None:
    """Notes which media the model may read only as a placeholder."""
    for needed, kind in MEDIA_INPUTS.items():
        if not model.supports(needed) and any(one.kind == kind for one in media):
            output.note(
                f"note: the model {model.id} is not known to take {kind} input (no {needed}), so it may read a "
                "placeholder; --model-capabilities says what a --model can do", "yellow",
            )


def is_made(options: Namespace) -> bool:
    """Whether the command line itself describes the agent."""
    return options.system is not None or bool(options.skills)


@contextmanager
def agent_of(options: Namespace, name: str) -> Iterator[Agent]:
    """The agent in a file, or the one that `--system` and `--skills` describe, whose skills last for the block."""
    if options.agent is not None:
        if is_made(options):
            option = "--skills" if options.skills else "--system"
            raise CommandError(f"{option} makes an agent, and AGENT names another: {options.agent}", "leave one out")
        with output.stdout_is_stderr():  # what the agent's file prints is not the answer
            found = _find_agent(options.agent)
        yield found
        return
    with skills_in(options.skills) as files:
        for fault in files.faults:
            raise CommandError(f"--skills: {fault}", DEBUG_HINT, NO) from fault.error
        if options.skills and not files.skills:
            raise CommandError(f"--skills: there is no skill in {', '.join(options.skills)}", "make one with @skill")
        yield Agent(
            instructions=INSTRUCTIONS if options.system is None else options.system,
            skills=[one.skill for one in files.skills.values()] or None, protocols=[], list_skills=True, name=name,
        )


# ------------------------------------------------------------------------------------------------ agents in files


def _find_agent(target: str) -> Agent[Any]:
    """The agent at `target`: its file or module is imported, so its code runs."""
    path, _, name = (target, "", "") if _is_file(target) else target.rpartition(":")
    if _is_file(path):
        module = _load_file(path)
        return _attribute(module, name, target) if name else _only(module, path)
    place, _, name = target.partition(":")
    if not name or not re.fullmatch(r"\w+(\.\w+)*", place):
        raise CommandError(f"no agent at {target!r}", f"name one as {AGENT_FORMS}")
    return _attribute(_import(place), name, target)


def _is_file(target: str) -> bool:
    return target.endswith(".py") or os.path.isfile(target)


def _load_file(path: str) -> ModuleType:
    """Runs a file, but not as ``__main__``; it can import what is beside it, as with `python FILE`."""
    whole = os.path.abspath(path)
    folder, base = os.path.split(whole)
    with failing(f"cannot read {path}", f"name the agent as {AGENT_FORMS}"), open(whole, "rb") as file:
        source = file.read()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = ModuleType("_kernai_agent_file_" + re.sub(r"\W", "_", base.removesuffix(".py")))
    module.__file__ = whole
    module.__package__ = ""  # without it, Python warns about an import with dots
    sys.modules[module.__name__] = module  # dataclasses look for their module there
    try:
        # compiled from the source: no __pycache__ beside a file that is only run
        exec(compile(source, whole, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the user's own program
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the file may raise anything
        has_dots = type(error) is ImportError and error.name is None
        hint = _package_hint(whole) if has_dots else DEBUG_HINT
        raise CommandError(str(_fault(error, path, whole)), hint, NO) from error
    return module


def _import(name: str) -> ModuleType:
    _import_from_here()
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # likewise
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            hint = f"modules are searched from the working directory; a file is written as {AGENT_FORMS}"
            raise CommandError(f"no module {name!r}", hint) from error
        raise CommandError(str(_fault(error, name)), DEBUG_HINT, NO) from error


def _import_from_here() -> None:
    """Puts the working directory on the path, as `python -m` does and an installed program does not."""
    here = os.getcwd()
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)


def _package_hint(path: str) -> str:
    """What to type for a file that imports with dots, if it belongs to a package."""
    folder, base = os.path.split(path)
    names = [base.removesuffix(".py")]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, base = os.path.split(folder)
        names.insert(0, base)
    hint = f"name the agent of a package's file by its module: in {folder}, {'.'.join(names)}:NAME"
    return DEBUG_HINT if len(names) == 1 else hint


def agents_in(target: str) -> dict[str, Agent[Any]]:
    """The agents at the top level of a file or module, by their names there."""
    with output.stdout_is_stderr():  # what the file prints is not the answer
        return _agents(_load_file(target) if _is_file(target) else _import(target), target)


def _agents(module: ModuleType, target: str) -> dict[str, Agent]:
    found = {name: one for name, one in vars(module).items() if isinstance(one, Agent)}
    if not found:
        raise CommandError(f"{target} holds no agent", f"make one at its top level: {USUAL_NAME} = kernai.Agent(...)")
    return found


def _attribute(module: ModuleType, name: str, target: str) -> Agent[Any]:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Agent):
        return found
    wrong = f"{name!r} must be an Agent, got {type(found).__name__}" if found is not None else f"no {name!r}"
    known = [name for name, one in vars(module).items() if isinstance(one, Agent)]
    hint = f"agents there: {', '.join(known)}" if known else "there is no Agent at its top level"
    raise CommandError(f"{target}: {wrong}", hint)


def _only(module: ModuleType, path: str) -> Agent[Any]:
    agents = _agents(module, path)
    name, first = next(iter(agents.items()))
    found = agents.get(USUAL_NAME, first)
    if USUAL_NAME not in agents and any(one is not first for one in agents.values()):
        raise CommandError(f"{path} holds several agents: {', '.join(agents)}", f"say which: {path}:{name}")
    return found


# ------------------------------------------------------------------------------------------------ files of skills


class Fault(NamedTuple):
    """Why a file cannot be loaded, and its last line that was involved."""

    file: str
    line: int | None
    reason: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}" if self.line is None else f"{self.file}:{self.line}: {self.reason}"


def _fault(error: BaseException, shown: str, path: str | None = None) -> Fault:
    """The fault of the file at `path`, which messages call `shown`; without a path, of the file that raised."""
    if isinstance(error, SyntaxError):
        return Fault(error.filename or shown, error.lineno, f"{type(error).__name__}: {error.msg}", error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames
        if (frame.filename == path if path else not frame.filename.startswith("<") and frame.filename != __file__)
    ]
    line = own[-1].lineno if own else None
    return Fault(own[-1].filename if own and not path else shown, line, described(error), error)


class FoundSkill(NamedTuple):
    """A skill, its file, and whether the file registers it."""

    skill: Skill
    file: str
    registered: bool


class FoundSkills:
    """What files hold: skills by name, and the faults."""

    def __init__(self) -> None:
        self.skills: dict[str, FoundSkill] = {}
        self.faults: list[Fault] = []
        self.loaded: list[SkillFile] = []

    def load(self, path: str) -> None:
        """Runs a file and adds its skills, or its fault."""
        try:
            with output.stdout_is_stderr():  # what the file prints is no part of the listing
                [loaded] = load_files([path])
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the file may raise anything
            cause = error.__cause__ if isinstance(error, KernaiError) else None
            self.faults.append(_fault(cause or error, path, path))
            return
        self.loaded.append(loaded)
        values = [one for one in vars(sys.modules[loaded.module]).values() if isinstance(one, Skill)]
        for skill in dict.fromkeys([*loaded.skills, *values]):
            earlier = self.skills.get(skill.name)
            if skill in loaded.skills or not any(skill is one.skill for one in self.skills.values()):
                if earlier is not None:
                    output.note(f"note: {skill.name!r} of {path} replaces the one in {earlier.file}", "yellow")
                self.skills[skill.name] = FoundSkill(skill, path, skill in loaded.skills)


@contextmanager
def skills_in(files: list[str]) -> Iterator[FoundSkills]:
    """What these files and patterns hold; their modules last for the block."""
    found = FoundSkills()
    _import_from_here()
    try:
        for path in dict.fromkeys(path for one in files for path in _matching(one)):
            found.load(path)
        yield found
    finally:
        forget(found.loaded)


def _matching(given: str) -> list[str]:
    if os.path.isfile(given):
        return [given]
    try:
        return find_files(given)
    except KernaiError as error:
        hint = "name a Python file, or a pattern in quotes, such as 'skills/*.py'"
        if os.path.isdir(given):
            hint = f"name the files in the folder: '{given.rstrip('/')}/*.py'"
        raise CommandError(f"no file {given!r}", hint) from error
