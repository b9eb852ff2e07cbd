"""`SkillRegistry`: skills by name. `@skill` makes a function a skill and puts it into the process-wide registry.

`SkillAccess` decides which skills an agent may call. The listing, the system message and the call all use it, so a
hidden skill is also refused. A registry can load files: each is run as a module with a private name, and the skills
that it defines are collected.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import count
from math import inf
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from kernai._util.api import ForkSafeLock, check_type, likely
from kernai.errors import KernaiError, described
from kernai.interrupts import calls_out
from kernai.registry.registry import PROCESS_WIDE, Access, Registry, RegistryState
from kernai.registry.skill_definition import FunctionSkill, Params, Returned, Skill
from kernai.values.model import Model

if TYPE_CHECKING:
    from kernai.registry.declarations import Credential, Setting

SkillSelection = str | Iterable[str | Skill] | None
"""What a model may be offered: ``"all"``, None for nothing, or names and skills."""


class SkillRegistry(Registry[Skill]):
    """Skills by name, in the order of registration. Thread-safe, see `Registry`."""

    def __init__(self) -> None:
        super().__init__()
        # Only one load at a time, so that a slow one cannot restore skills that a later one has replaced. Other changes
        # do not wait for a load. Re-entrant, since a skill file may load others.
        self._loading = ForkSafeLock(reentrant=True)

    def register(self, skill: Skill) -> Skill:
        """Adds a skill, or replaces the one with its name; returns the skill."""
        check_type(skill, Skill, "register takes a Skill", "; make one with @skill or Skill(...)")
        self._add(skill)
        return skill

    def load_from(self, pattern: str | os.PathLike[str]) -> list[Skill]:
        """Runs every file that the glob pattern matches (``"skills/**/*.py"``) and registers the skills they define.

        A file is code and is run with the rights of this process. Its module has a private name, and `sys.path` is not
        changed. All or nothing: if a file fails, a `KernaiError` names the file and line, and nothing is registered.
        Also raises `KernaiError` if no file matches, or two define the same skill. Returns the skills of the files.
        """
        text = os.path.abspath(os.fspath(pattern))  # noqa: PTH100 - Path would take "**" and "[" for names
        with self._loading:
            return self._load(find_files(text), text)

    def reload(self) -> list[Skill]:
        """Runs the files of all patterns given to `load_from` again, including new files.

        Skills that have vanished from their files are removed. If a file fails, a `KernaiError` names the file and
        line, and no skill is changed. Runs use the new skills from their next call on.
        """
        with self._loading:
            return self._load(list(dict.fromkeys(path for one in self._state.patterns for path in find_files(one))))

    def _load(self, paths: list[str], pattern: str | None = None) -> list[Skill]:
        """Runs the files and registers their skills.

        Removes the skills that these files defined before; without `pattern`, those that any loaded file defined.
        """
        new: dict[str, SkillFile] = {}
        by: dict[str, str] = {}
        for path in paths:
            try:
                new[path] = run_file(path)
                for one in new[path].skills if pattern else ():  # a later pattern may replace skills
                    is_own = one.__module__ == new[path].module  # it may import others, even from one of the files
                    first = by.setdefault(one.name, path) if is_own else path
                    if first != path:
                        raise KernaiError(f"it defines skill {one.name!r}, as {first} does")
            except BaseException as error:
                forget(new.values())
                if not isinstance(error, (Exception, SystemExit)):
                    raise
                raise KernaiError(str(fault_of(error, path, path))) from error
        skills = [skill for one in new.values() for skill in one.skills]
        fresh = {skill.name: skill for skill in skills}
        with self._lock:
            entries, patterns, files = self._state
            old = {path: one for path, one in files.items() if pattern is None or path in new}
            # not the skills of modules that a file imports, which are not run a second time
            gone = {id(skill) for one in old.values() for skill in one.skills if skill.__module__ == one.module}
            left = {name: one for name, one in entries.items() if name in fresh or id(one) not in gone}
            kept = {path: one for path, one in files.items() if path not in old}
            patterns = patterns if pattern is None else tuple(dict.fromkeys([*patterns, pattern]))
            self._set(RegistryState(left | fresh, patterns, kept | new))
        forget(old.values())
        return skills

    def select(self, selection: SkillSelection, model: Model | None = None) -> list[Skill]:
        """The skills of a selection that a model can use: ``"all"``, None for none, or a list of names and skills.

        Omits names that are not registered, and skills that require capabilities which the model lacks.
        """
        if isinstance(selection, str) and selection != "all":
            raise TypeError(f'scope must be "all", None or a list of names and skills; did you mean [{selection!r}]?')
        check_type(model, Model | None, "model must be a kernai.Model")
        registered = self._state.entries
        given = registered.values() if selection == "all" else selection or ()
        found = (one if isinstance(one, Skill) else registered.get(one) for one in given)
        chosen = {one.name: one for one in found if one is not None}
        return [one for one in chosen.values() if model is None or model.supports(*one.requires)]

    def listing(self, scope: SkillSelection = "all", model: Model | None = None) -> str:
        """What a model reads about the skills it may call."""
        return listing_of(self.select(scope, model))


def listing_of(skills: Sequence[Skill], most: float = inf) -> str:
    """What a model reads about these skills; empty if that has more than `most` characters."""
    parts = ["Available skills, each called with a command block:" if skills else "No skills are available."]
    length = len(parts[0])
    for one in skills:
        parts.append(one.describe())
        length += len(parts[-1]) + 2
        if length > most:  # there may be thousands, which take long to describe
            return ""
    return "\n\n".join(parts)


class SkillAccess(Access[Skill]):
    """The skills of one agent for one model under one configuration, valid until the registry changes."""

    __slots__ = ("_allowed", "_model")

    def __init__(
        self, selection: SkillSelection, registry: SkillRegistry, allowed: Sequence[str] | None, model: Model
    ) -> None:
        super().__init__(selection, registry, selection == "all")
        self._model = model
        self._allowed = None if allowed is None else frozenset(allowed)

    def allows(self, skill: Skill) -> bool:
        """Whether the agent, the configuration and the model's capabilities allow a call."""
        if self._allowed is not None and skill.name not in self._allowed:
            return False
        return (not skill.requires or self._model.supports(*skill.requires)) and super().allows(skill)

    def selected(self) -> list[Skill]:
        """The skills in the agent's selection, even those that it may not call, in the order of its list."""
        registry: SkillRegistry = self._registry  # type: ignore[assignment]  # the constructor took one
        return registry.select(self.selection)


#: the process-wide registry, `kernai.skills`
REGISTRY = SkillRegistry()
PROCESS_WIDE.append(REGISTRY)


@overload
def skill(function: Callable[Params, Returned], /, **options: Any) -> FunctionSkill[Params, Returned]: ...


@overload
def skill(
    *,
    name: str | None = None,
    description: str | None = None,
    requires: str | Iterable[str] = (),
    produces: str | Iterable[str] = (),
    credentials: Mapping[str, Credential] | None = None,
    settings: Mapping[str, Setting] | None = None,
    approval: bool = False,
    idempotent: bool = False,
    acts: bool = False,
    directory: bool | tuple[str, str] = False,
    creates: str | bool = False,
    register: bool = True,
) -> Callable[[Callable[Params, Returned]], FunctionSkill[Params, Returned]]: ...


def skill(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, register: bool = True, **options: Any
) -> Any:
    """Makes a function a skill, with or without options: ``@skill``, ``@skill(requires="vision")``.

    Name, description (first docstring paragraph) and inputs come from the function; the options are those of `Skill`.
    The skill is registered in `kernai.skills`; in a file that a registry loads, in that registry; with
    ``register=False``, in none. It can still be called like the function.
    """
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"@skill has no option {option!r}{likely(option, _OPTIONS, 'it has')}")

    def made(given: Any) -> FunctionSkill[..., Any]:
        if not callable(given):
            raise TypeError(f"@skill is for functions, got {given!r}; a name is given as @skill(name=...)")
        named: Any = getattr(given, "__name__", None) if name is None else name
        new: FunctionSkill[..., Any] = FunctionSkill(named, execute=given, **options)
        file = _file.get()
        if register and file is not None:
            file.skills.append(new)
        elif register:
            REGISTRY.register(new)
        return new

    return made if function is None else made(function)


_OPTIONS = ("name", *(one for one in Skill.__init__.__kwdefaults__ or () if one != "inputs"), "register")

# ---------------------------------------------------------------------------------------------------- skills from files


class SkillFile:
    """A file of skills: its module's name in `sys.modules`, and the skills that `@skill` makes while the file runs."""

    def __init__(self, path: str) -> None:
        stem = re.sub(r"\W", "_", os.path.splitext(os.path.basename(path))[0])  # noqa: PTH119, PTH122 - text in, text out
        #: never used twice: an old module may still be running
        self.module = f"_kernai_skill_file_{next(_numbers)}_{stem}"
        self.skills: list[Skill] = []


_numbers = count(1)
# a context variable, so that threads can load files at the same time
_file: ContextVar[SkillFile | None] = ContextVar("kernai_skill_file", default=None)


def find_files(pattern: str) -> list[str]:
    """The files that a glob pattern matches, sorted. Raises `KernaiError` if there are none."""
    from glob import glob  # needed only to load files

    found = sorted(path for path in glob(pattern, recursive=True) if os.path.isfile(path))  # noqa: PTH113, PTH207 - text in, text out
    if not found:
        hint = f"; name the files in the folder: {pattern}/*.py" if os.path.isdir(pattern) else ""  # noqa: PTH112 - as above
        raise KernaiError(f"no skill files match {pattern!r}{hint}")
    return found


def forget(files: Iterable[SkillFile]) -> None:
    """Removes the files' modules from `sys.modules`; whatever still refers to them stays alive."""
    for one in files:
        sys.modules.pop(one.module, None)


class Fault(NamedTuple):
    """Why a file cannot be loaded. `line` is where: the file's last line in the traceback."""

    file: str
    line: int | None
    reason: str
    error: BaseException

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}" if self.line is None else f"{self.file}:{self.line}: {self.reason}"


def fault_of(error: BaseException, shown: str, path: str | None = None) -> Fault:
    """Returns the fault of the file at `path`, called `shown` in messages; without a path, of the file that raised."""
    if isinstance(error, SyntaxError):
        return Fault(error.filename or shown, error.lineno, f"{type(error).__name__}: {error.msg}", error)
    frames = traceback.extract_tb(error.__traceback__)
    # frozen modules, and kernai's own
    others = ("<", *(sys.modules["kernai"].__path__[0] + end + os.sep for end in ("", "_providers")))
    own = [one for one in frames if (one.filename == path if path else not one.filename.startswith(others))]
    line = own[-1].lineno if own else None
    return Fault(own[-1].filename if own and not path else shown, line, described(error), error)


@calls_out
def execute_file(path: str, name: str) -> None:
    """Runs a file as the module `name`."""
    module = ModuleType(name)
    module.__file__ = path
    module.__package__ = ""  # if it is None, Python warns about relative imports
    sys.modules[name] = module  # dataclasses look for their module there
    # compiled from the source each time: the cache of compiled files does not notice two edits within a second
    with open(path, "rb") as source:  # noqa: PTH123 - text in, text out
        code = compile(source.read(), path, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the file is code, named by the program's author or user


def run_file(path: str) -> SkillFile:
    """Runs a file and returns it with its skills. If it fails, raises the file's own error."""
    file = SkillFile(path)
    token = _file.set(file)
    try:
        execute_file(path, file.module)
    except BaseException:
        forget([file])
        raise
    finally:
        _file.reset(token)
    return file
