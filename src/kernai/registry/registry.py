"""`Registry`: things by name, the base of the registries of skills and of protocols; `reset` and `isolated`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from kernai._util.api import NotCopied
from kernai._util.fork_safe_lock import ForkSafeLock
from kernai.registry.configuration import config, defaults

if TYPE_CHECKING:
    from kernai.registry.skill_registry import SkillFile


class Named(Protocol):
    """What can be registered."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class RegistryState(NamedTuple):
    """All that a registry holds at one moment, and the files it came from; never changed, only replaced."""

    entries: Mapping[str, Any] = MappingProxyType({})
    patterns: tuple[str, ...] = ()
    files: Mapping[str, SkillFile] = MappingProxyType({})


class Registry(NotCopied, Generic[Entry]):
    """Things by name, in the order of registration. Thread-safe.

    A later one of the same name takes the place of the earlier one. Readers see one state or the next, never one in
    between. `version` grows with each change, so what was derived from the registry can be cached until then.
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
        """Removes the one of that name and returns it; None if there was none."""
        with self._lock:
            left = dict(self._state.entries)
            removed: Entry | None = left.pop(name, None)
            if removed is not None:
                self._set(self._state._replace(entries=left))
        return removed

    def reset(self) -> None:
        """Forgets everything, also which files were loaded."""
        self.restore(RegistryState())

    def snapshot(self) -> RegistryState:
        """What is registered now, for `restore`."""
        return self._state

    def restore(self, snapshot: RegistryState) -> None:
        with self._lock:
            self._set(snapshot)

    def _add(self, entry: Entry) -> None:
        with self._lock:
            self._set(self._state._replace(entries={**self._state.entries, entry.name: entry}))

    def _set(self, state: RegistryState) -> None:
        """Under the lock."""
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
    """A ``with`` block after which configuration and registries are as before, whatever was done to them inside."""
    values, known = config.snapshot(), [one.snapshot() for one in _PROCESS_WIDE]
    try:
        yield
    finally:
        config.restore(values)
        for one, snapshot in zip(_PROCESS_WIDE, known, strict=True):
            one.restore(snapshot)
