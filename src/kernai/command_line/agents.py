"""Finding the agent that a command line names: ``FILE.py``, ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from types import ModuleType
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.errors import DEBUG_HINT, CommandError, described
from kernai.command_line.exit_codes import NO

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
