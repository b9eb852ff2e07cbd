"""The agent of a command: from a file or from options, with its model and limits."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.errors import DEBUG_HINT, NO, CommandError, described
from kernai.errors import KernaiError, error_text
from kernai.registry.configuration import config
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_files import SkillFile, find_files, forget, load_files
from kernai.values.limits import Limits


def limited(agent: Agent[Any], options: Namespace) -> tuple[Agent[Any], Limits]:
    """The agent with its ceiling of steps, and the limits; `CommandError` where a limit cannot be kept."""
    limits = Limits(
        max_tokens=options.max_tokens, max_cost=options.max_cost, max_calls=options.max_calls, timeout=options.timeout
    )
    if options.max_steps is not None:
        agent = agent.replace(max_steps=options.max_steps)
    if limits.max_cost is not None and agent.model.cost is None:
        raise CommandError(
            f"--max-cost needs the price of model {agent.model.id!r}",
            "give --model with --price IN,OUT (dollars per million tokens), or Model(..., cost=...) in its file",
        )
    return agent, limits


HOW = "give a model, such as --model anthropic/claude-sonnet-5 or --model ollama/llama3.1; `kernai doctor` shows keys"
WHICH = "`kernai doctor` shows the keys that are set; any other server like OpenAI's is local/NAME with --base-url"


def model_words(options: Namespace) -> tuple[str, ...]:
    """The words of a command line that name the same model again."""
    words: list[str] = []
    for name in ("model", "base_url", "model_capabilities", "price"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", value if isinstance(value, str) else ",".join(map(str, value))]
    return tuple(words)


@contextmanager
def with_model(agent: Agent[Any], options: Namespace) -> Iterator[Agent[Any]]:
    """The agent with the model of the command line, whose connections are closed at the end of the block.

    `CommandError` where nobody would answer it.
    """
    if options.model is None:
        for option in ("base_url", "model_capabilities", "price"):
            if getattr(options, option) is not None:
                raise CommandError(f"--{option.replace('_', '-')} is for a --model, and there is none", HOW)
        if agent.provider is None and config.default_provider is None:
            raise CommandError("the agent has no provider", HOW)
        yield agent
        return
    from kernai_providers import resolve

    where = {} if options.base_url is None else {"base_url": options.base_url}
    try:
        provider, model = resolve(
            options.model, capabilities=options.model_capabilities, cost=options.price, **where
        )
    except (KernaiError, ValueError, TypeError) as error:
        raise CommandError(f"--model: {error_text(error)}", WHICH) from error
    with provider:
        yield agent.replace(provider=provider, model=model)


USUAL_NAME = "agent"
FORMS = "FILE.py, FILE.py:NAME or MODULE:NAME"


def find_agent(target: str) -> Agent[Any]:
    """The agent at `target`. The file or module is imported, so its code is run; `CommandError` says what is wrong."""
    with output.stdout_is_stderr():  # what the agent's file prints is no answer
        return _found(target)


def _found(target: str) -> Agent[Any]:
    path, name = _split_file(target)
    if path is not None:
        module = _load_file(path)
        return _named(module, name, target) if name else _only(module, path)
    place, colon, name = target.partition(":")
    if not colon or not name or not re.fullmatch(r"\w+(\.\w+)*", place):
        raise CommandError(f"no agent at {target!r}", f"name one as {FORMS}")
    return _named(_import(place), name, target)


def _split_file(target: str) -> tuple[str | None, str]:
    """Path and name of ``FILE.py`` or ``FILE.py:NAME``; no path where it is no file's name."""
    if target.endswith(".py") or os.path.isfile(target):  # noqa: PTH113 - text in, text out
        return target, ""
    path, colon, name = target.rpartition(":")
    return (path, name) if colon and path.endswith(".py") else (None, "")


def working_directory_importable() -> None:
    """Puts the working directory on the path, as `python -m` does and an installed program does not."""
    here = os.getcwd()  # noqa: PTH109 - text for sys.path
    if not {"", here} & set(sys.path):
        sys.path.insert(0, here)


def _load_file(path: str) -> ModuleType:
    """Runs a file, not as ``__main__``; what stands beside it can be imported, as with `python FILE`."""
    whole = os.path.abspath(path)  # noqa: PTH100 - text for sys.path
    folder, base = os.path.split(whole)
    try:
        with open(whole, "rb") as file:  # noqa: PTH123 - text in, text out
            source = file.read()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror or error}", f"name the agent as {FORMS}") from error
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = ModuleType("_kernai_agent_file_" + re.sub(r"\W", "_", base.removesuffix(".py")))
    module.__file__ = whole
    module.__package__ = ""  # it belongs to none, and to say so spares Python a warning
    sys.modules[module.__name__] = module  # dataclasses look for their module there
    try:
        # compiled from the source: no __pycache__ beside a file that is only run
        exec(compile(source, whole, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the user's own program
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the file may raise anything
        raise failed(error, path, whole) from error
    return module


def _import(name: str) -> ModuleType:
    working_directory_importable()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise failed(error, name) from error
        raise CommandError(
            f"no module {name!r}", f"modules are looked for from the working directory on; a file is named as {FORMS}"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # likewise
        raise failed(error, name) from error


def failed(error: BaseException, shown: str, path: str | None = None) -> CommandError:
    """What a file or module that raises is told as, with the last line of it that took part."""
    line: int | None = None
    if isinstance(error, SyntaxError):
        shown, line = error.filename or shown, error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if frame.filename == path] or [
            frame for frame in frames if not frame.filename.startswith("<") and frame.filename != __file__
        ]
        if path is None and ours:
            shown = ours[-1].filename
        line = ours[-1].lineno if ours else None
    told = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else described(error)
    hint = None
    if path is not None and type(error) is ImportError and error.name is None:
        hint = _hint_of_package(path)
    return CommandError(f"{shown}:{line}: {told}" if line else f"{shown}: {told}", hint or DEBUG_HINT, NO)


def _hint_of_package(path: str) -> str | None:
    """Of a file that belongs to a package, and so may import from it with dots: how it is named as a module."""
    folder, base = os.path.split(path)
    names = [base.removesuffix(".py")]
    while os.path.isfile(os.path.join(folder, "__init__.py")):  # noqa: PTH113, PTH118 - text in, text out
        folder, base = os.path.split(folder)
        names.insert(0, base)
    if len(names) == 1:
        return None
    return f"a file of a package is named by its module: in {folder}, {'.'.join(names)}:NAME"


def _named(module: ModuleType, name: str, target: str) -> Agent[Any]:
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Agent):
        return found
    known = _agents(module)
    there = f"agents there: {', '.join(known)}" if known else "there is no Agent at its top level"
    told = f"{name!r} is no Agent but {type(found).__name__}" if found is not None else f"no {name!r}"
    raise CommandError(f"{target}: {told}", there)


def _only(module: ModuleType, path: str) -> Agent[Any]:
    agents = _agents(module)
    if USUAL_NAME in agents:
        return agents[USUAL_NAME]
    if not agents:
        raise CommandError(f"{path} holds no agent", f"make one at its top level: {USUAL_NAME} = kernai.Agent(...)")
    if len({id(one) for one in agents.values()}) > 1:
        first = next(iter(agents))
        raise CommandError(f"{path} holds several agents: {', '.join(agents)}", f"say which: {path}:{first}")
    return next(iter(agents.values()))


def _agents(module: ModuleType) -> dict[str, Agent]:
    return {name: one for name, one in vars(module).items() if isinstance(one, Agent)}


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


NAME_ONE = f"name one as {FORMS}, or make one: --system TEXT, --skills FILE"
INSTRUCTIONS = "You are a helpful assistant. You talk with a person in a terminal: answer in plain text, and briefly."


def is_made(options: Namespace) -> bool:
    """Whether the command line describes an agent of its own."""
    return options.system is not None or bool(options.skills)


def agent_words(options: Namespace) -> tuple[str, ...]:
    """The words of a command line that name the same agent again."""
    words = [] if options.agent is None else [options.agent]
    words += [] if options.system is None else ["--system", options.system]
    for file in options.skills:
        words += ["--skills", file]
    return tuple(words)


@contextmanager
def agent_of(options: Namespace, name: str) -> Iterator[Agent]:
    """The agent in a file, or the one that `--system` and `--skills` describe; what they load stays for the block."""
    if options.agent is not None:
        if is_made(options):
            option = "--skills" if options.skills else "--system"
            told = f"{option} makes an agent, and AGENT names another: {options.agent}"
            raise CommandError(told, "leave one of them out")
        yield find_agent(options.agent)
        return
    found = found_in(options.skills)
    try:
        for fault in found.faults:
            place = fault.file if fault.line is None else f"{fault.file}:{fault.line}"
            raise CommandError(f"--skills: {place}: {fault.reason}", DEBUG_HINT, NO) from fault.error
        if options.skills and not found.skills:
            raise CommandError(f"--skills: there is no skill in {', '.join(options.skills)}", "make one with @skill")
        yield Agent(
            instructions=INSTRUCTIONS if options.system is None else options.system,
            skills=list(found.skills.values()) or None, protocols=[], list_skills=True, name=name,
        )
    finally:
        forget(found.loaded)
