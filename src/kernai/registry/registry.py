"""`Registry`, the base class of the registries of skills and of protocols; `reset` and `isolated`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from kernai._util.api import ForkSafeLock, NotCopied
from kernai.registry.configuration import config, defaults

if TYPE_CHECKING:
    from kernai.registry.skill_registry import SkillFile


class Named(Protocol):
    """An object that can be registered."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class RegistryState(NamedTuple):
    """The contents of a registry at one moment, and the files they came from. Never changed, only replaced."""

    entries: Mapping[str, Any] = MappingProxyType({})
    patterns: tuple[str, ...] = ()
    files: Mapping[str, SkillFile] = MappingProxyType({})


class Registry(NotCopied, Generic[Entry]):
    """Entries by name, in the order of registration. Thread-safe.

    A later entry replaces an earlier one with the same name. Readers see the state before or after a change, never one
    in between. `version` grows with each change, so values derived from the registry can be cached until then.
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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._state.entries)})"


_PROCESS_WIDE: list[Registry[Any]] = []
_AnyRegistry = TypeVar("_AnyRegistry", bound=Registry[Any])


def process_wide(registry: _AnyRegistry) -> _AnyRegistry:
    """Makes a registry one of those that `reset` and `isolated` affect."""
    _PROCESS_WIDE.append(registry)
    return registry


def reset() -> None:
    """Restores all defaults of `kernai.config` and empties both registries."""
    config.restore(defaults())
    for one in _PROCESS_WIDE:
        one.reset()


@contextmanager
def isolated() -> Iterator[None]:
    """Restores the configuration and all registries at the end of its ``with`` block."""
    values, known = config.snapshot(), [one.snapshot() for one in _PROCESS_WIDE]
    try:
        yield
    finally:
        config.restore(values)
        for one, snapshot in zip(_PROCESS_WIDE, known, strict=True):
            one.restore(snapshot)
