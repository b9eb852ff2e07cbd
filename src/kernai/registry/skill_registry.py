"""`SkillRegistry`: skills by name. `@skill` makes skills out of functions and puts them into the process-wide one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from kernai._util.close_matches import likely
from kernai._util.fork_safe_lock import ForkSafeLock
from kernai.registry.registry import Registry, RegistryState, process_wide
from kernai.registry.skill_definition import FunctionSkill, Params, Returned, Skill
from kernai.registry.skill_files import SkillFile, collect, find_files, forget, load_files

if TYPE_CHECKING:
    from kernai.registry.requirements import Credential, Setting
    from kernai.values.model import Model

SkillSelection = str | Iterable[str | Skill] | None
"""What a model may be offered: ``"all"``, None for nothing, or names and skills."""


class SkillRegistry(Registry[Skill]):
    """Skills by name, in the order of registration. Thread-safe, see `Registry`."""

    def __init__(self) -> None:
        super().__init__()
        # One load at a time, so that a slow one cannot restore what a later one has replaced. Other changes do not wait
        # for it. Re-entrant, since a skill file may load others.
        self._loading = ForkSafeLock(reentrant=True)
        self._guarded = -1, False

    def register(self, skill: Skill) -> Skill:
        """Adds a skill, or replaces the one of its name; returns it."""
        if not isinstance(skill, Skill):
            raise TypeError(f"register takes a Skill, got {type(skill).__name__}; make one with @skill or Skill(...)")
        self._add(skill)
        return skill

    def load_from(self, pattern: str | os.PathLike[str]) -> list[Skill]:
        """Runs every file that the glob pattern matches (``"skills/**/*.py"``) and registers the skills they define.

        A file is code and is run with the rights of this process. Its module has a private name, and `sys.path` stays
        as it is. All or nothing: if a file fails, a `KernaiError` says which file and line, and nothing is registered.
        A pattern that matches nothing is a `KernaiError` too. Returns the skills of these files.
        """
        text = os.path.abspath(os.fspath(pattern))  # noqa: PTH100 - Path would take "**" and "[" for names
        with self._loading:
            found = load_files(find_files(text))
            with self._lock:
                patterns = tuple(dict.fromkeys([*self._state.patterns, text]))
                old = [self._state.files[one.path] for one in found if one.path in self._state.files]
                self._replace(old, found, patterns)
        forget(old)
        return [skill for one in found for skill in one.skills]

    def reload(self) -> list[Skill]:
        """Runs the files of all patterns given to `load_from` again, new files too.

        Atomic: a skill that vanished from its file is removed, and if any file fails, the old skills all stay and a
        `KernaiError` says which file and line. Current runs keep the skills they have.
        """
        with self._loading:
            patterns = self._state.patterns
            paths = dict.fromkeys(path for pattern in patterns for path in find_files(pattern))
            found = load_files(list(paths))
            with self._lock:
                old = list(self._state.files.values())
                self._replace(old, found, patterns)
        forget(old)
        return [skill for one in found for skill in one.skills]

    def _replace(self, old: list[SkillFile], new: list[SkillFile], patterns: tuple[str, ...]) -> None:
        """Replaces the skills of old files by those of new ones. Under the lock."""
        known = dict(self._state.entries)
        fresh = {skill.name: skill for one in new for skill in one.skills}
        for one in old:
            for skill in one.skills:
                # a skill that was replaced by hand since no longer belongs to the file
                if one.owns(skill) and skill.name not in fresh and known.get(skill.name) is skill:
                    del known[skill.name]
        known.update(fresh)
        gone = {one.path for one in old}
        files = {path: one for path, one in self._state.files.items() if path not in gone}
        files.update((one.path, one) for one in new)
        self._set(RegistryState(known, patterns, files))

    def select(self, selection: SkillSelection, model: Model | None = None) -> list[Skill]:
        """The skills of a selection that a model can use: ``"all"``, None for none, or a list of names and skills.

        Names that are not registered are left out, as are skills whose `requires` the model lacks.
        """
        if isinstance(selection, str) and selection != "all":
            raise TypeError(f'scope must be "all", None or a list of names and skills; did you mean [{selection!r}]?')
        registered = self._state.entries
        given = registered.values() if selection == "all" else selection or ()
        found = (one if isinstance(one, Skill) else registered.get(one) for one in given)
        chosen = {one.name: one for one in found if one is not None}
        return [one for one in chosen.values() if model is None or model.supports(*one.requires)]

    def any_guarded(self, selection: SkillSelection) -> bool:
        """Whether a selected skill's calls are checked for values that only the user may bring in."""
        if selection != "all":
            return any(one.is_guarded for one in self.select(selection))
        known, version = self._guarded, self.version
        if known[0] != version:  # asked for each agent: not each time of a thousand skills
            known = self._guarded = version, any(one.is_guarded for one in self._state.entries.values())
        return known[1]

    def listing(self, scope: SkillSelection = "all", model: Model | None = None) -> str:
        """What a model reads about the skills it may call."""
        return BETWEEN.join(listed(self.select(scope, model)))


#: between the parts of a listing
BETWEEN = "\n\n"


def listed(skills: Sequence[Skill]) -> Iterator[str]:
    """The parts of a listing, made one by one."""
    yield "Available skills, each called with a command block:" if skills else "No skills are available."
    for one in skills:
        yield one.describe()


#: the process-wide registry, `kernai.skills`
REGISTRY = process_wide(SkillRegistry())


@overload
def skill(function: Callable[Params, Returned], /) -> FunctionSkill[Params, Returned]: ...


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
    The skill is registered in `kernai.skills`, or, in a file that a registry loads, in that registry; with
    ``register=False`` nowhere. It is still called like the function.
    """
    for option in options:
        if option not in _OPTIONS:
            raise TypeError(f"@skill has no option {option!r}{likely(option, _OPTIONS, 'it has')}")
    if function is None:
        return lambda given: _made(given, name, register, options)
    return _made(function, name, register, options)


_OPTIONS = ("name", *(one for one in Skill.__init__.__kwdefaults__ or () if one != "inputs"), "register")


def _made(function: Any, name: str | None, register: bool, options: dict[str, Any]) -> FunctionSkill[..., Any]:
    if not callable(function):
        raise TypeError(f"@skill is for functions, got {function!r}; a name is given as @skill(name=...)")
    named = getattr(function, "__name__", None) if name is None else name
    if named is None:
        raise TypeError(f"{function!r} has no name of its own; give one with skill(name=...)")
    made: FunctionSkill[..., Any] = FunctionSkill(named, execute=function, **options)
    if register and not collect(made):
        REGISTRY.register(made)
    return made
