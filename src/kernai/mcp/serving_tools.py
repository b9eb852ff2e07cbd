"""The tools that are served: skills, found again for each request, so that a reloaded registry shows at once.

A skill's `Media` is the id of a media in its run's store. An MCP client has no such store, so it sends the payload
itself, in MCP's own form for an image or a sound: ``{"data": BASE64, "mimeType": "image/png"}``.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from mcp import types

from kernai.agents.agent import Agent
from kernai.inputs.annotations import Namespace, TypeBuilder
from kernai.inputs.schema import WORDS
from kernai.inputs.table import InputTable
from kernai.inputs.types import InputType, Validation
from kernai.registry.configuration import config
from kernai.registry.skill_definition import Skill
from kernai.registry.skill_registry import REGISTRY, SkillAccess, SkillRegistry
from kernai.values.media import Media

AgentAs = Literal["tool", "skills"]
Source = Skill | Iterable[Skill] | SkillRegistry | Agent[Any]

# Revision 2025-11-25, server/tools, "Tool Names".
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class MediaObject(InputType):
    """A `Media` that is sent with the call: its payload as base64, and its MIME type."""

    natural = frozenset({dict})

    def __init__(self) -> None:
        self.schema = {
            "type": "object",
            "properties": {
                "data": {"type": "string", "contentEncoding": "base64", "examples": ["iVBORw0KGgo="],
                         "description": "the payload as base64"},
                "mimeType": {"type": "string", "pattern": "^[^/\\s]+/[^/\\s]+$", "examples": ["image/png"]},
            },
            "required": ["data", "mimeType"],
            WORDS: 'media object such as {"data": "iVBORw0KGgo=", "mimeType": "image/png"} with the payload as base64',
        }

    def convert(self, value: object, validation: Validation) -> Any:
        if isinstance(value, Media):
            return value
        data, mime = (value.get("data"), value.get("mimeType")) if isinstance(value, Mapping) else (None, None)
        if isinstance(data, str) and isinstance(mime, str):
            try:
                return Media.from_bytes(b64decode("".join(data.split()), validate=True), mime_type=mime)
            except ValueError:  # of the base64, or of the MIME type
                pass
        validation.refuse(self.label, value)
        return None


MEDIA_OBJECT: Final = MediaObject()


def served_table(skill: Skill) -> InputTable:
    """The table that checks a client's calls: the skill's own, or a copy that takes media as payloads."""
    if not skill.table.has_media:
        return skill.table
    return InputTable(skill.name, skill.inputs, TypeBuilder(Namespace(skill.function), MEDIA_OBJECT))


class ServedSkill(NamedTuple):
    """A skill, the table that checks its calls, and the tool that a client sees."""

    skill: Skill
    table: InputTable
    tool: types.Tool


class Toolbox:
    """The tools of one server.

    A skill that `config.allowed_skills` excludes is neither listed nor found. Names are checked when the server is
    made; a skill with an unsuitable name that is registered later is left out.
    """

    def __init__(self, source: Source, agent_as: AgentAs = "tool", description: str | None = None) -> None:
        self._skills = _finder(source, agent_as, description)
        self._known: dict[str, ServedSkill] = {}
        for skill in self._skills():
            if not _NAME.fullmatch(skill.name):
                raise ValueError(
                    f"the skill's name {skill.name!r} cannot be the name of an MCP tool: take 1 to 128 of the "
                    f"characters A-Z a-z 0-9 _ - . (@skill(name=...))"
                )
            self._served(skill)

    def all(self) -> list[types.Tool]:
        return [self._served(skill).tool for skill in self._skills() if _NAME.fullmatch(skill.name)]

    def find(self, name: str) -> ServedSkill | None:
        if not _NAME.fullmatch(name):
            return None
        return next((self._served(one) for one in self._skills() if one.name == name), None)

    def _served(self, skill: Skill) -> ServedSkill:
        """Made once for each skill; a registry may replace a skill by another with the same name."""
        known = self._known.get(skill.name)
        if known is None or known.skill is not skill:
            table = served_table(skill)
            tool = types.Tool(name=skill.name, description=skill.description or None, input_schema=table.schema())
            known = self._known[skill.name] = ServedSkill(skill, table, tool)
        return known


def _finder(source: Source, agent_as: AgentAs, description: str | None) -> Callable[[], list[Skill]]:
    """What gives the skills that are served now."""
    if agent_as not in ("tool", "skills"):
        raise ValueError(f"agent_as must be 'tool' or 'skills', got {agent_as!r}")
    if description is not None and not (isinstance(source, Agent) and agent_as == "tool"):
        raise ValueError("description is for an Agent that is served as a tool; a skill has its own")
    if isinstance(source, Agent) and agent_as == "tool":
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", source.name or "").strip("_")[:128] or "agent"
        # never the instructions: clients must not see them
        about = f"Ask the agent {source.name or ''}".rstrip() + ". It works on the request and answers in text."
        tool = [source.as_skill(name, about if description is None else description)]
        return lambda: tool
    if isinstance(source, Agent):
        agent = source
        if agent.skills is None:
            raise ValueError("the Agent has no skills to serve: give it skills=..., or serve it with agent_as='tool'")
        return lambda: SkillAccess(agent.skills, REGISTRY, config.allowed_skills, agent.model).visible()
    if isinstance(source, SkillRegistry):
        registry = source
        return lambda: _allowed(registry.all())
    if isinstance(source, str) or not isinstance(source, (Skill, Iterable)):
        raise TypeError(f"serve takes a Skill, a list of Skills, a SkillRegistry or an Agent, got {source!r}")
    skills = [source] if isinstance(source, Skill) else list(source)
    _check(skills)
    return lambda: _allowed(skills)


def _check(skills: list[Skill]) -> None:
    if not skills:
        raise ValueError("there is no skill to serve: the list is empty")
    names: set[str] = set()
    for one in skills:
        if isinstance(one, Agent):
            raise TypeError("a list may hold Skills; make one of the Agent: agent.as_skill(name, description)")
        if not isinstance(one, Skill):
            raise TypeError(f"a list may hold Skills, not {type(one).__name__}: decorate it with @skill")
        if one.name in names:
            raise ValueError(f"two skills have the name {one.name!r}, and a client calls a tool by its name")
        names.add(one.name)


def _allowed(skills: list[Skill]) -> list[Skill]:
    allowed = config.allowed_skills
    return skills if allowed is None else [one for one in skills if one.name in allowed]
