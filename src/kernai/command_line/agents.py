"""The user's agents and skills, which are in files or, for an agent, described by options; and `kernai skills`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

from kernai import Agent, KernaiError, Limits, Media, Model, Skill, config
from kernai.command_line import output
from kernai.command_line.output import DEBUG_HINT, NO, OK, CommandError, Terminated, failing
from kernai.command_line.program import Command, argument, group, number, valid_text
from kernai.command_line.recording import is_store
from kernai.registry import skill_registry
from kernai.values.model import CAPABILITIES, MEDIA_INPUTS

AGENT_FORMS = "FILE.py, FILE.py:NAME or MODULE:NAME"
USUAL_NAME = "agent"
INSTRUCTIONS = "You are a helpful assistant. You talk with a person in a terminal: answer in plain text, and briefly."
NAME_ONE = f"the agent comes first, as {AGENT_FORMS}; or make one: --system TEXT, --skills FILE"
A_MODEL = "give one, such as --model anthropic/claude-sonnet-5 or --model ollama/llama3.1; `kernai doctor` shows keys"
WHICH_MODEL = "`kernai doctor` shows which keys are set; --model local/NAME --base-url URL is a server like OpenAI's"


# ------------------------------------------------------------------------------------------------------ arguments


def _price(text: str) -> tuple[float, ...]:
    parts = text.split(",")
    if len(parts) != 2:  # noqa: PLR2004 - a pair
        raise ArgumentTypeError(f"must be two prices such as 3,15, got {text!r}")
    return tuple(map(number(float, 0), parts))


def capabilities(given: str) -> tuple[str, ...]:
    """An argparse type: capabilities of a model."""
    words = tuple(dict.fromkeys(word.strip() for word in given.split(",")))
    for word in words:
        if word not in CAPABILITIES:
            raise ArgumentTypeError(f"no capability {word!r}; there are {', '.join(CAPABILITIES)}")
    return words


def media_at(given: str) -> Media:
    """An argparse type: media at a URL, or in a file. It is read now: the agent's code may change the folder."""
    if given.lower().startswith(("https://", "http://", "data:")):
        return Media.from_url(given)
    with failing("", "give a file, or a URL that begins with https://", (KernaiError, ValueError)):
        found = Media.from_file(given)
        return replace(found, payload=found.read_bytes())


#: AGENT, and the options that define an ad-hoc agent instead
AGENT = (
    argument("AGENT", f"{AGENT_FORMS}; the code is executed", nargs="?"),
    argument("--system TEXT", "instructions for an ad-hoc agent, instead of AGENT", valid_text),
    argument("--skills FILE...",
             "a Python file of skills for an ad-hoc agent, or a pattern; the code is executed; repeatable"),
)
ABILITIES = argument("--model-capabilities LIST",
                     "capabilities of the --model, such as text,vision, if kernai does not know them", capabilities)
MAX_STEPS = argument("--max-steps N", "model calls for one input (default: the agent's limit)", number(int, 1))
#: the model and its details, the agent's steps, and the fields of `Limits`
MODEL = (
    argument("--model VENDOR/NAME", "use this model instead of the agent's own"),
    argument("--base-url URL", "address of the --model's server, if it is not the vendor's own"),
    ABILITIES,
    argument("--price IN,OUT", "prices of the --model in dollars per million tokens, for --max-cost", _price),
    group(
        MAX_STEPS,
        argument("--max-tokens N", "prompt and completion tokens together", number(int, 0)),
        argument("--max-cost DOLLARS", "total cost; needs the model's price", number(float, 0)),
        argument("--max-calls N", "model, skill and protocol calls together", number(int, 0)),
        argument("--timeout SECONDS", "total duration of the run", number(float, 0)),
        title="limits", note="all of them include sub-runs, except --max-steps",
    ),
)
_AGENT_OPTIONS = ("system", "skills", "model", "base_url", "model_capabilities", "price")


def same_agent(options: Namespace, names: Sequence[str] = _AGENT_OPTIONS) -> tuple[str, ...]:
    """The words of a command line that describe this agent. Of its options, only those in `names` are included."""
    words = [] if options.agent is None else [options.agent]
    for name in names:
        given = getattr(options, name)
        for value in given if isinstance(given, list) else [] if given is None else [given]:
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return tuple(words)


# ------------------------------------------------------------------------------------------------------ the agent


@contextmanager
def prepared(options: Namespace) -> Iterator[tuple[Agent[Any], Limits]]:
    """Yields the agent with the model and limits of the command line. Connections close at the end of the block.

    Raises `CommandError` if there is no model, or if ``--max-cost`` cannot be enforced because the model's price is
    unknown.
    """
    with agent_of(options) as found, ExitStack() as opened:
        agent = found
        if options.model is not None:
            from kernai_providers import resolve  # not needed if the agent's file sets its own provider

            given = {"capabilities": options.model_capabilities, "cost": options.price}
            if options.base_url is not None:  # models in this process take none
                given["base_url"] = options.base_url
            with failing("--model", WHICH_MODEL, (KernaiError, ValueError, TypeError)):
                provider, model = resolve(options.model, **given)
            agent = found.replace(provider=opened.enter_context(provider), model=model)
        else:
            for option in ("base_url", "model_capabilities", "price"):
                if getattr(options, option) is not None:
                    raise CommandError(f"--{option.replace('_', '-')} is for a --model, and there is none", A_MODEL)
            if agent.provider is None and config.default_provider is None:
                raise CommandError("the agent has no provider", A_MODEL)
        if options.max_cost is not None and agent.model.cost is None:
            raise CommandError(
                f"--max-cost needs the price of model {agent.model.id!r}",
                "give --model with --price IN,OUT (dollars per million tokens), or Model(..., cost=...) in its file",
            )
        for kind, unknown, close in () if options.quiet else agent.setup_now(workflows=False).unknown:
            output.note(f"note: no {kind} {unknown!r} is registered{close and f'; similar: {close}'}", "yellow")
        limits = {name: getattr(options, name) for name in ("max_tokens", "max_cost", "max_calls", "timeout")}
        # None is not the same as not given: without max_calls, each input may make 500
        yield agent, Limits(**{name: value for name, value in limits.items() if value is not None})


def note_unseen(media: Sequence[Media], model: Model, *, quiet: bool = False) -> None:
    """Prints a note about media that the model may get only as a placeholder."""
    for needed, kind in MEDIA_INPUTS.items():
        if not model.supports(needed) and any(one.kind == kind for one in media):
            output.note(
                f"note: the model {model.id} is not known to take {kind} input (no {needed}), so it may read a "
                "placeholder; --model-capabilities says what a --model can do", "yellow", quiet=quiet,
            )


def is_made(options: Namespace) -> bool:
    """Whether the command line itself defines the agent."""
    return options.system is not None or bool(options.skills)


@contextmanager
def agent_of(options: Namespace) -> Iterator[Agent]:
    """Yields the agent in a file, or the one that `--system` and `--skills` define, with the steps of the command line.

    Modules of `--skills` are forgotten at the end of the block.
    """
    if options.agent is not None and is_made(options):
        option = "--skills" if options.skills else "--system"
        raise CommandError(f"{option} makes an agent, and AGENT names another: {options.agent}", "leave one out")
    with skills_in(options.skills) as (skills, faults):
        for fault in faults:
            raise CommandError(f"--skills: {fault}", DEBUG_HINT, NO) from fault.error
        if options.skills and not skills:
            raise CommandError(f"--skills: there is no skill in {', '.join(options.skills)}", "make one with @skill")
        agent = Agent(
            instructions=INSTRUCTIONS if options.system is None else options.system,
            skills=[one.skill for one in skills.values()] or None, protocols=[], list_skills=True,
            name="run",  # of `kernai chat` too: for a replay, another name would be another agent
        ) if options.agent is None else _find_agent(options.agent)
        yield agent if options.max_steps is None else agent.replace(max_steps=options.max_steps)


# ------------------------------------------------------------------------------------------------ agents in files


_MODULE = re.compile(r"\w+(\.\w+)*")


def place_of(target: str | None) -> tuple[str, str]:
    """The file or module of an agent, and its variable or "". Raises `CommandError` if no agent can be there."""
    if target is None:
        raise CommandError("there is no agent", NAME_ONE)
    place, _, name = (target, "", "") if _is_file(target) else target.rpartition(":")
    is_place = _is_file(place) or (_MODULE.fullmatch(name) and _MODULE.fullmatch(place))
    if not is_place or is_store(target) or target.endswith((".json", ".jsonl")):
        raise CommandError(f"no agent at {target!r}", NAME_ONE)
    return place, name


def _find_agent(target: str) -> Agent[Any]:
    """Finds the agent at `target`. This executes the code of the file or module."""
    place, name = place_of(target)
    module = _load(place)
    if name:
        named: object = module
        for part in name.split("."):
            named = getattr(named, part, None)
        if isinstance(named, Agent):
            return named
        wrong = f"{name!r} must be an Agent, got {type(named).__name__}" if named is not None else f"no {name!r}"
        raise CommandError(f"{target}: {wrong}", f"agents there: {', '.join(_agents(module, place))}")
    found = _agents(module, place)
    first, *others = found
    if USUAL_NAME not in found and any(found[one] is not found[first] for one in others):
        raise CommandError(f"{place} holds several agents: {', '.join(found)}", f"say which: {place}:{first}")
    return found.get(USUAL_NAME, found[first])


def agents_in(target: str) -> dict[str, Agent[Any]]:
    """The agents at the top level of a file or module, by variable name."""
    if not _is_file(target) and not _MODULE.fullmatch(target):
        raise CommandError(f"no file or module {target!r}", "name one as FILE.py or MODULE; all agents in it are used")
    return _agents(_load(target), target)


def _agents(module: ModuleType, target: str) -> dict[str, Agent[Any]]:
    found = {name: one for name, one in vars(module).items() if isinstance(one, Agent)}
    if not found:
        raise CommandError(f"{target} holds no agent", f"make one at its top level: {USUAL_NAME} = kernai.Agent(...)")
    return found


def _is_file(target: str) -> bool:
    return target.endswith(".py") or os.path.isfile(target)


def import_from(folder: str) -> None:
    """Lets code import the modules in this folder, as `python -m` and `python FILE` do."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _load(place: str) -> ModuleType:
    """Executes a file, or imports a module. Raises `CommandError` for whatever the code raises."""
    is_file, path = _is_file(place), os.path.abspath(place)
    import_from(os.path.dirname(path))  # a file's folder, as with `python FILE`; for a module, the working directory
    try:
        with output.stdout_is_stderr():  # stdout is for the answer, not for what the file prints
            if not is_file:
                return importlib.import_module(place)
            name = "_kernai_agent_file_" + re.sub(r"\W", "_", os.path.basename(path).removesuffix(".py"))
            skill_registry.execute_file(path, name)  # not run as ``__main__``
            return sys.modules[name]
    except BaseException as error:  # the code may raise anything
        if is_file and isinstance(error, OSError) and error.filename == path:
            raise CommandError(f"cannot read {place}: {error.strerror}", "give the path of a Python file") from error
        if not is_file and isinstance(error, ModuleNotFoundError) and f"{place}.".startswith(f"{error.name}."):
            hint = f"modules are searched from the working directory; a file is written as {AGENT_FORMS}"
            raise CommandError(f"no module {place!r}", hint) from error
        folders, hint = os.path.dirname(path).split(os.sep), DEBUG_HINT
        # a relative import, or one from a package that contains the file
        if is_file and isinstance(error, ImportError) and (error.name or folders[-1]).partition(".")[0] in folders:
            hint = "name its module, as in shop.agents:stock, from the folder that contains the package"
        raise CommandError(str(skill_registry.fault_of(error, place, path if is_file else None)), hint, NO) from error


# ------------------------------------------------------------------------------------------------ skills in files


class FoundSkill(NamedTuple):
    """A skill, its file, and whether the file registers it."""

    skill: Skill
    file: str
    registered: bool


@contextmanager
def skills_in(files: list[str]) -> Iterator[tuple[dict[str, FoundSkill], list[skill_registry.Fault]]]:
    """Executes these files, and those that match patterns. Yields their skills by name, and the faults of files that
    cannot be loaded. The files' modules are forgotten at the end of the block.
    """
    skills: dict[str, FoundSkill] = {}
    faults: list[skill_registry.Fault] = []
    loaded: list[skill_registry.SkillFile] = []
    if files:
        import_from(os.getcwd())
    try:
        for path in dict.fromkeys(path for one in files for path in _matching(one)):
            try:
                with output.stdout_is_stderr():  # what the file prints does not belong in the listing
                    file = skill_registry.run_file(path)
            except (KeyboardInterrupt, Terminated):
                raise
            except BaseException as error:  # noqa: BLE001 - the file may raise anything
                faults.append(skill_registry.fault_of(error, path, path))
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
        skill_registry.forget(loaded)


def _matching(given: str) -> list[str]:
    with failing("", "name a Python file, or a pattern in quotes, such as 'skills/*.py'", KernaiError):
        return [given] if os.path.isfile(given) else skill_registry.find_files(given)


def _skills(options: Namespace) -> int:
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
                output.write(skill_registry.SkillRegistry().listing(listed))
            for skill in [one for one in skills if one not in listed]:
                output.note(f"note: {skill.name!r} is not listed: it requires {', '.join(skill.requires)}", "yellow")
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


COMMANDS = {"skills": Command(_skills, (
    argument("FILE", "a Python file, or a pattern; the code is executed", name="files", nargs="+"),
    argument("--model-capabilities LIST",
             "list the skills for a model with these, such as text,vision (default: every skill)", capabilities),
    argument("--json", "everything as JSON on stdout"),
), """\
Load files of skills, check them, and list the skills as a model would see them. The files are executed, as with
skills.load_from; Skill objects at their top level are listed too, even with register=False. A file with an error
is reported with the line and the reason, and the others are still listed. FILE may be a pattern like
'skills/**/*.py'.""", """\
kernai skills skills.py
kernai skills 'skills/**/*.py' --model-capabilities text,vision
kernai skills skills.py --json""")}
