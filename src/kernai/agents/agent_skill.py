"""`AgentSkill`: an agent that another agent calls like a skill. Made by `Agent.as_skill`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernai.registry.skill_definition import Skill

if TYPE_CHECKING:
    from kernai.agents.agent import Agent


class AgentSkill(Skill):
    """A skill with one input, `input: str`. Called within a run it is a sub-run; elsewhere `execute` runs it."""

    def __init__(
        self, name: str, agent: Agent[Any], execute: Callable[..., Any], description: str, **flags: Any
    ) -> None:
        super().__init__(name, execute=execute, description=description, inputs={"input": str}, **flags)
        self.agent = agent
