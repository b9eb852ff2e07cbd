"""What an agent may call: its skills and protocols, found and checked in one place.

The same answer serves the listing, the system prompt and the call itself, so that what is hidden is also refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from kernai.model import Model
from kernai.protocol_registry import REGISTRY as protocols
from kernai.protocol_registry import Protocol
from kernai.skill_definition import Skill
from kernai.skill_registry import REGISTRY as skills

SkillScope = Literal["all"] | tuple[str | Skill, ...] | None
ProtocolScope = tuple[str | Protocol, ...] | None


class SkillAccess:
    """The skills of one agent under one configuration; `scope` is `Agent.skills`."""

    __slots__ = ("_allowed", "_direct", "_scope")

    def __init__(self, scope: SkillScope, allowed: Sequence[str] | None) -> None:
        self._scope = scope
        self._allowed = None if allowed is None else frozenset(allowed)
        named = () if scope is None or scope == "all" else scope
        self._direct = {one.name: one for one in named if isinstance(one, Skill)}

    def find(self, name: str) -> Skill | None:
        """A skill given to the agent directly, else one in the registry, whether it may be called or not."""
        return self._direct.get(name) or skills.find(name)

    def allows(self, skill: Skill, model: Model) -> bool:
        """Whether agent, configuration and the model's capabilities let it be called."""
        if self._allowed is not None and skill.name not in self._allowed:
            return False
        if skill.requires and not model.supports(*skill.requires):
            return False
        if self._scope is None:
            return False
        return self._scope == "all" or skill.name in self._direct or skill.name in self._scope

    def visible(self, model: Model) -> list[Skill]:
        """Every skill the agent may call, in the order of its list or of registration."""
        if self._scope is None:
            return []
        if self._scope == "all":
            found: Iterable[Skill | None] = skills.all()
        else:
            found = (one if isinstance(one, Skill) else self.find(one) for one in self._scope)
        return [skill for skill in found if skill is not None and self.allows(skill, model)]


class ProtocolAccess:
    """The protocols of one agent; `scope` is `Agent.protocols`, None for all that are registered."""

    __slots__ = ("_direct", "_names")

    def __init__(self, scope: ProtocolScope) -> None:
        self._direct = {one.name: one for one in scope or () if isinstance(one, Protocol)}
        self._names = None if scope is None else frozenset(one for one in scope if isinstance(one, str))

    def find(self, name: str) -> Protocol | None:
        """A protocol given to the agent directly, else one in the registry, whether it may be called or not."""
        return self._direct.get(name) or protocols.find(name)

    def allows(self, protocol: Protocol) -> bool:
        return self._names is None or protocol.name in self._direct or protocol.name in self._names

    def visible(self) -> list[Protocol]:
        """Every protocol the agent may speak: its own ones first, then registered ones."""
        registered = [one for one in protocols.all() if one.name not in self._direct and self.allows(one)]
        return [*self._direct.values(), *registered]
