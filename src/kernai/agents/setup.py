"""`Setup`: what is the same in every step of an agent's runs, computed once.

It depends on the agent's options, the model, the registries, what the configuration allows, whether plans are run and
whether the answer is typed. The agent keeps the latest one; a run checks at each step that it is still valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from kernai._util.api import Once
from kernai.agents.definition import Rules, part_of
from kernai.agents.instruction_builder import system_text
from kernai.blocks.block import neutralize
from kernai.interrupts import calls_out
from kernai.registry.protocol_registry import ProtocolAccess
from kernai.registry.registry import CHANGES
from kernai.registry.skill_definition import AgentSkill, Skill
from kernai.registry.skill_registry import SkillAccess, listing_of
from kernai.values.message import Message, Outside, instruction_parts

if TYPE_CHECKING:
    from kernai.agents.agent import Agent
    from kernai.agents.know_how import KnowHow
    from kernai.agents.native_tools import Tools
    from kernai.inputs.answer_type import AnswerType
    from kernai.registry.protocol_registry import ProtocolRegistry
    from kernai.registry.provider import Provider
    from kernai.registry.skill_registry import SkillRegistry
    from kernai.values.context import Context
    from kernai.values.model import GenerationOptions, Model

    #: what a setup depends on besides the agent's options: among others, the allowed skills, and whether plans are run
    Key = tuple[Model, SkillRegistry, ProtocolRegistry, Sequence[str] | None, bool, AnswerType | None]

#: in characters, about 2,000 tokens. The model has to ask for a longer listing, unless the agent says otherwise
SHORT_LISTING = 8_000


class Revision:
    """How often an agent's options have changed. A separate object, because a setup must not refer to its agent."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0


class System(NamedTuple):
    """The system message of a step, and the `instructions` in it. `host_text` is the part that the host wrote."""

    instructions: str | tuple[str | Outside, ...]
    host_text: str
    message: Message
    #: whether it may hold calls that the model must not make just because it reads them
    may_quote: bool


NO_SYSTEM = System("", "", Message("system", ""), may_quote=False)


class Setup:
    """What is the same in every step. `skills` and `protocols` are what the agent may call; the rest is derived."""

    __slots__ = (  # what every step reads; attributes in `__dict__` would be slower
        "__dict__", "_plain", "_sources", "_versions", "checked", "constrains", "is_native", "rules", "skills",
        "system",
    )

    def __init__(self, agent: Agent[Any], key: Key) -> None:
        self.key = key
        self.model, skills, protocols, allowed, self.workflows, self.answer_type = key
        #: `CHANGES.latest` when this was last known to be valid
        self.checked = CHANGES.latest
        # not the agent itself, which refers to this: a cycle would have to wait for the garbage collector
        self._sources = agent.revision, skills, protocols
        self._versions = [one.version for one in self._sources]
        self._lists_skills = agent.list_skills
        self.know_how: KnowHow | None = agent.know_how
        self.constrains, self.is_native = agent.constrain, agent.calls == "native"
        #: whether `Agent.approve` is asked before each call
        self.asks = agent.approve is not None
        # one attribute, so that concurrent runs cannot combine the instructions of one with the message of another
        self._system: System | None = None
        #: the same in every step, unless the instructions are a function
        self.system: System | None = None
        self.rules = Rules.of(agent)
        self.recorded_rules = self.rules._asdict()
        self._definition: tuple[dict[str, Any], dict[str, Agent[Any]]] | None = None
        self._tools: tuple[System, Tools] | None = None
        self._plain: dict[str | None, Skill | None] = {}
        self.skills = SkillAccess(agent.skills, skills, allowed, self.model)
        self.protocols = ProtocolAccess(agent.protocols, protocols)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # a deep or pickled copy of an agent computes its own: registries are not copied

    def is_current(self) -> bool:
        """Whether this is still valid: neither the agent nor a registry has changed since it was created."""
        latest = CHANGES.latest  # read first, so that a change during the comparison is noticed next time
        if self.checked is not latest and self._versions == [one.version for one in self._sources]:
            self.checked = latest
        return self.checked is latest

    def plain(self, name: str | None) -> Skill | None:
        """Returns the skill of this name if nothing but the parameters of its calls has to be checked, else None.

        Also returns None if the agent or a registry has changed.
        """
        if self.checked is not CHANGES.latest and not self.is_current():
            return None
        try:
            return self._plain[name]
        except KeyError:
            skill = None if name is None else self.skills.find(name)
            if skill is not None and not (
                self.skills.allows(skill) and skill.is_plain and not isinstance(skill, AgentSkill)
            ):
                skill = None
            self._plain[name] = skill
            return skill

    @Once
    def can_call(self) -> bool:
        """Whether the agent may have anything to call, so that its system message explains blocks."""
        return self.skills.selection is not None or self.know_how is not None or self.protocols.any()

    @Once
    def has_calls(self) -> bool:
        """Whether the agent's own options give it anything to call. If not, prose is the answer for any `on_prose`."""
        named = self.protocols.selection is not None
        return self.skills.any() or self.know_how is not None or (named and self.protocols.any())

    @Once
    def is_guarded(self) -> bool:
        """Whether any skill has `Trusted` inputs or `acts`."""
        return any(one.is_guarded for one in self.skills.selected())

    @Once
    def agents(self) -> list[Agent[Any]]:
        return [one.agent for one in self.skills.selected() if isinstance(one, AgentSkill)]

    @Once
    def foreign(self) -> list[tuple[str, str]]:
        """The descriptions of skills that others wrote, each after a text that names its source."""
        return [(f"the description of {one.name}", one.describe()) for one in self.skills.visible() if one.is_foreign]

    @Once
    def unknown(self) -> list[tuple[str, str, str]]:
        """The names in the agent's lists that are not registered: kind, name, and similar names."""
        both = ("skill", self.skills), ("protocol", self.protocols)
        return [(kind, *one) for kind, access in both for one in access.unknown()]

    @calls_out
    def read_system(self, read: tuple[Any, int], context: Context) -> System:
        """Returns the system message of a step. `read` is `Agent.instructions_read`.

        Callable instructions are called. Raises `TypeError` if they do not return text.
        """
        instructions, arguments = read
        is_fixed = not callable(instructions)
        if not is_fixed:
            given = instructions(*(context,)[:arguments])
            instructions = instruction_parts(given, "must be text or a list of texts: the callable is to give one")
        built = self._system
        if built is None or instructions != built.instructions:
            parts = (instructions,) if isinstance(instructions, str) else instructions
            host_text = "\n\n".join(one for one in parts if isinstance(one, str))
            has_outside = any(isinstance(one, Outside) for one in parts)
            text = system_text(self, _shown(instructions))
            message = Message("system", text, outside=(0,) if has_outside else ())
            built = System(instructions, host_text, message, may_quote=has_outside or "&lt;" in text)
            self._system = built
        if is_fixed:
            self.system = built
        return built

    @Once
    def listing(self) -> str:
        """The skills' listing, if it is in the system message; otherwise empty."""
        if self.skills.selection is None or self._lists_skills is False:
            return ""
        return listing_of(self.skills.visible(), inf if self._lists_skills else SHORT_LISTING)

    def definition(self, agent: Agent[Any]) -> tuple[dict[str, Any], dict[str, Agent[Any]]]:
        """Returns `definition.part_of` the agent, which must be the one of this setup."""
        if self._definition is None:
            self._definition = part_of(agent, self)
        return self._definition

    @Once
    def grammar(self) -> str:
        """A grammar in GBNF of what the model may write."""
        from kernai.grammars.response_grammar import response_grammar  # few agents are held to one

        callable_skills, spoken = self.skills.visible(), self.protocols.visible()
        asks = ["/skills"] if callable_skills and not self.listing else []
        asks += ["/protocols"] if spoken else []
        asks += [] if self.know_how is None else [f"/read {name}" for name in self.know_how.folders]
        return response_grammar(callable_skills, spoken, asks, self.answer_type)

    def tools(self, system: System, read: tuple[Any, int], context: Context) -> Tools:
        """Returns the tools for a native call; the message of `system` is for calls as blocks."""
        known = self._tools
        if known is None or known[0] != system:
            from kernai.agents.native_tools import Tools, native_tools  # few agents call natively

            typed, message = self.answer_type, system.message
            output = None if typed is None or typed.is_text else typed.schema()
            # a recorded message does not say which part of it the instructions are
            given = system.instructions or (self._system or self.read_system(read, context)).instructions
            native = Message("system", system_text(self, _shown(given), native=True), outside=message.outside)
            made = Tools(tuple(native_tools(self)), message, native, output, self.constrains)
            known = self._tools = system, made
        return known[1]

    def constrained(self, generation: GenerationOptions, provider: Provider | None) -> GenerationOptions:
        """Returns the options of a model call, with the grammar in the provider's field if it has one."""
        if provider is None or provider.grammar_field is None:
            return generation
        value: Any = self.grammar
        for name in reversed(provider.grammar_field.split(".")):
            value = {name: value}
        return generation.merge({"extra": value})

    def constrained_instead(
        self, generation: GenerationOptions, provider: Provider | None, other: Provider
    ) -> GenerationOptions:
        """Returns the options with the grammar in the other provider's field, unless a middleware has changed it."""
        found, bare = _parted(generation.extra, (provider or other).grammar_field or "")
        if found != (None if provider is None else self.grammar):  # a run without a provider has sent none
            return generation
        return self.constrained(replace(generation, extra=bare), other)


def _parted(extra: Mapping[str, Any], field: str) -> tuple[Any, dict[str, Any]]:
    """Returns the value of a field, ``a.b`` for one inside an object, and a copy of the options without it."""
    outer, _, inner = field.partition(".")
    value, rest = extra.get(outer), {key: one for key, one in extra.items() if key != outer}
    if inner and isinstance(value, Mapping):
        value, left = _parted(value, inner)
        rest |= {outer: left} if left else {}
    return value, rest


def _shown(instructions: str | tuple[str | Outside, ...]) -> str:
    """Returns instructions as the model reads them: in text from outside, tags are neutralised."""
    if isinstance(instructions, str):
        return instructions
    return "\n\n".join(neutralize(one.text) if isinstance(one, Outside) else one for one in instructions)
