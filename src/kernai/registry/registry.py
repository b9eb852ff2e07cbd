"""The base classes for skills and protocols: `Registry`, and `Access` of one agent; `reset` and `isolated`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kernai._util.api import ForkSafeLock, NotCopied, close_matches
from kernai.registry.configuration import config, defaults

if TYPE_CHECKING:
    from kernai.registry.protocol_registry import Protocol
    from kernai.registry.skill_definition import Skill
    from kernai.registry.skill_registry import SkillFile


Entry = TypeVar("Entry", bound="Skill | Protocol")


class RegistryState(NamedTuple):
    """The contents of a registry at one moment, and the files they came from. Never changed, only replaced."""

    entries: Mapping[str, Any] = MappingProxyType({})
    patterns: tuple[str, ...] = ()
    files: Mapping[str, SkillFile] = MappingProxyType({})


class Changes:
    """`latest` is replaced whenever a registry or an agent changes. While it stays the same, nothing has changed."""

    __slots__ = ("latest",)  # a slot is read faster than an attribute that the class has too
    latest: object


CHANGES = Changes()
CHANGES.latest = object()


class Registry(NotCopied, Generic[Entry]):
    """Entries by name, in the order of registration. Thread-safe.

    A later entry replaces an earlier one with the same name. Readers see the state before or after a change, never one
    in between. `version` grows with each change, so what is derived from the registry can be cached until it does.
    """

    def __init__(self) -> None:
        self._state = RegistryState()
        self._lock = ForkSafeLock()
        self.version = 0

    def all(self) -> list[Entry]:
        return list(self._state.entries.values())

    def find(self, name: str) -> Entry | None:
        return self._state.entries.get(name)

    def unregister(self, name: str) -> Entry | None:
        """Removes the entry of that name and returns it; None if there was none."""
        with self._lock:
            left = dict(self._state.entries)
            removed: Entry | None = left.pop(name, None)
            if removed is not None:
                self._set(self._state._replace(entries=left))
        return removed

    def reset(self) -> None:
        """Removes everything, and forgets which files were loaded."""
        self.restore(RegistryState())

    def snapshot(self) -> RegistryState:
        """The current state, to be passed to `restore`."""
        return self._state

    def restore(self, snapshot: RegistryState) -> None:
        with self._lock:
            self._set(snapshot)

    def _add(self, entry: Entry) -> None:
        with self._lock:
            self._set(self._state._replace(entries={**self._state.entries, entry.name: entry}))

    def _set(self, state: RegistryState) -> None:
        """Replaces the state. The caller holds the lock."""
        self._state = state
        self.version += 1
        CHANGES.latest = object()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._state.entries)})"


class Access(Generic[Entry]):
    """What one agent may use: its own entries, and registered ones by name. `selection` is the agent's option.

    `takes_all`: the selection stands for all registered entries.
    """

    __slots__ = ("_direct", "_names", "_registry", "selection")

    def __init__(self, selection: Iterable[str | Entry] | None, registry: Registry[Entry], takes_all: bool) -> None:
        given = () if takes_all else tuple(selection or ())
        self.selection = selection
        self._registry = registry
        self._direct = {one.name: one for one in given if not isinstance(one, str)}
        #: None: all names. A dict, which keeps their order
        self._names = None if takes_all else dict.fromkeys(one for one in given if isinstance(one, str))

    def find(self, name: str) -> Entry | None:
        """The agent's own entry of that name, else the registered one, even if the agent may not use it."""
        return self._direct.get(name) or self._registry.find(name)

    def allows(self, entry: Entry) -> bool:
        return self._names is None or entry.name in self._direct or entry.name in self._names

    def selected(self) -> list[Entry]:
        """The entries in the agent's selection, even those that it may not use: its own first, then registered ones."""
        return [*self._direct.values(), *(one for one in self._registry.all() if one.name not in self._direct)]

    def visible(self) -> list[Entry]:
        """Every entry that the agent may use."""
        return [one for one in self.selected() if self.allows(one)]

    def any(self) -> bool:
        return any(map(self.allows, self.selected()))

    def unknown(self) -> Iterator[tuple[str, str]]:
        """The names in the agent's list that are not registered, each with similar ones."""
        for name in self._names or ():
            if self._registry.find(name) is None:
                yield name, ", ".join(close_matches(name, (one.name for one in self._registry.all()), 3))


#: the registries that `reset` and `isolated` affect
PROCESS_WIDE: list[Registry[Any]] = []


def reset() -> None:
    """Restores all defaults of `kernai.config` and empties both registries."""
    vars(config).update(defaults())
    for one in PROCESS_WIDE:
        one.reset()


@contextmanager
def isolated() -> Iterator[None]:
    """Restores the configuration and all registries at the end of its ``with`` block."""
    values, known = dict(vars(config)), [one.snapshot() for one in PROCESS_WIDE]
    try:
        yield
    finally:
        vars(config).update(values)
        for one, snapshot in zip(PROCESS_WIDE, known, strict=True):
            one.restore(snapshot)
