"""Which skills and protocols an agent may call, decided in one place for listing, system message and call.

So what is hidden is also refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernai.errors import KernaiError
from kernai.registry.protocol_registry import Protocol, ProtocolRegistry
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_registry import BETWEEN, SkillRegistry, SkillSelection, listed
from kernai.values.model import Model

ProtocolSelection = Sequence[str | Protocol] | None
"""The protocols of an agent: None for all that are registered, or names and protocols."""


class SkillAccess:
    """The skills of one agent for one model under one configuration, valid until the registry changes."""

    __slots__ = ("_allowed", "_direct", "_known", "_model", "_names", "_registry", "selection")

    def __init__(
        self, selection: SkillSelection, registry: SkillRegistry, allowed: Sequence[str] | None, model: Model
    ) -> None:
        self.selection = selection
        self._registry = registry
        self._model = model
        self._allowed = None if allowed is None else frozenset(allowed)
        named = () if selection is None or isinstance(selection, str) else selection
        self._direct = {one.name: one for one in named if isinstance(one, Skill)}
        self._names = None if selection == "all" else frozenset(one for one in named if isinstance(one, str))
        self._known: dict[str, tuple[Skill, bool]] = {}

    def look_up(self, name: str) -> tuple[Skill | None, bool]:
        """The skill of that name, if any, and whether it may be called."""
        known = self._known.get(name)
        if known is not None:
            return known
        skill = self._direct.get(name) or self._registry.find(name)
        if skill is None:
            return None, False
        self._known[name] = found = (skill, self.allows(skill))
        return found

    def allows(self, skill: Skill) -> bool:
        """Whether agent, configuration and the model's capabilities allow a call."""
        if self._allowed is not None and skill.name not in self._allowed:
            return False
        if skill.requires and not self._model.supports(*skill.requires):
            return False
        return self._names is None or skill.name in self._direct or skill.name in self._names

    def selected(self) -> list[Skill]:
        """The skills that the agent names, whether it may call them or not."""
        return self._registry.select(self.selection)

    def visible(self) -> list[Skill]:
        """Every skill the agent may call, in the order of its list or of registration."""
        return [skill for skill in self.selected() if self.allows(skill)]

    def any(self) -> bool:
        """Whether the agent may call any skill."""
        return any(map(self.allows, self.selected()))

    def listing(self) -> str:
        """What a model reads about these skills."""
        return self._registry.listing(self.visible())

    def short_listing(self, most: int) -> str | None:
        """The listing, if it has at most so many characters; of thousands of skills not all are described."""
        parts: list[str] = []
        length = -len(BETWEEN)
        for part in listed(self.visible()):
            length += len(BETWEEN) + len(part)
            if length > most:
                return None
            parts.append(part)
        return BETWEEN.join(parts)


class ProtocolAccess:
    """The protocols of one agent; `selection` is `Agent.protocols`, None for all that are registered, except
    those with `by_name`.

    `in` says whether any protocol answers a block type, allowed or not.
    """

    __slots__ = ("_direct", "_names", "_registry")

    def __init__(self, selection: ProtocolSelection, registry: ProtocolRegistry) -> None:
        self._registry = registry
        self._direct = {one.name: one for one in selection or () if isinstance(one, Protocol)}
        self._names = None if selection is None else frozenset(one for one in selection if isinstance(one, str))

    def find(self, name: str) -> Protocol | None:
        """The agent's own protocol of that name, else the registered one, whether it may be called or not."""
        return self._direct.get(name) or self._registry.find(name)

    def held(self, name: str) -> Protocol:
        """The protocol of that name; `KernaiError` if it was unregistered meanwhile."""
        protocol = self.find(name)
        if protocol is None:
            raise KernaiError(f"Protocol {name!r} not found")
        return protocol

    def __contains__(self, name: object) -> bool:
        return name in self._direct or name in self._registry

    def allows(self, protocol: Protocol) -> bool:
        if protocol.name in self._direct:
            return True
        return not protocol.by_name if self._names is None else protocol.name in self._names

    def visible(self) -> list[Protocol]:
        """Every protocol the agent may speak: its own ones first, then registered ones."""
        registered = [one for one in self._registry.all() if one.name not in self._direct and self.allows(one)]
        return [*self._direct.values(), *registered]

    def any(self) -> bool:
        """Whether the agent may speak any protocol."""
        return bool(self._direct) or bool(self.visible())
