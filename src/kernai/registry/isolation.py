"""Putting the process-wide state back: configuration and both registries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernai.registry.configuration import config, defaults
from kernai.registry.protocol_registry import REGISTRY as protocols
from kernai.registry.skill_registry import REGISTRY as skills


def reset() -> None:
    """Restores all defaults of `kernai.config` and empties both registries."""
    config.restore(defaults())
    skills.reset()
    protocols.reset()


@contextmanager
def isolated() -> Iterator[None]:
    """A ``with`` block after which configuration and registries are as before, whatever was done to them inside."""
    values, known_skills, known_protocols = config.snapshot(), skills.snapshot(), protocols.snapshot()
    try:
        yield
    finally:
        config.restore(values)
        skills.restore(known_skills)
        protocols.restore(known_protocols)
