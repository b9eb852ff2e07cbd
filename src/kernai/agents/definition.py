"""What a run's `run_start` records about its agent: the `Rules` by which its responses are judged, and its definition.

A definition is plain data: digests of long texts and schemas, and the options and flags that a reader can compare. It
is the same in every process and on every version of Python, and contains no values of closures and no credentials. Each
agent is in it once and refers to others by index, so that agents may call each other. A replay compares definitions; a
resume does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernai._util.api import inside_partials
from kernai.jsonio.json_data import digest, jsonable
from kernai.registry.skill_definition import AgentSkill, Skill
from kernai.values.limits import MAX_TASKS

if TYPE_CHECKING:
    from kernai.agents.agent import Agent, OnDialects, OnProse, OnQuotedCalls, OnTruncated
    from kernai.agents.setup import Setup

#: version of the rules for what counts as an answer. Version 2 no longer accepts plans or drafts alone from an agent
#: that can call nothing, or an empty response with which the model has not ended its turn; version 3, an answer that
#: contains its own closing tag. Since 4, the result of a typed task is its value. Since 5, unknown fields of typed
#: answers are noted, and misspelled ones corrected. Since 6, the messages have the outcomes of calls that end the run
ANSWERS = 6
CHECKED_CLOSE = 3
TYPED_TASKS = 4
CHECKED_FIELDS = 5
LAST_OUTCOMES = 6
#: version of the rules for what counts as a quoted call. Since 2, a call is also recognised by its letters and digits
#: alone, and one response may confirm several. Since 3, calls in a history's messages from protocol handlers count.
#: Since 4, an answer in another format can be confirmed, and names of media in handlers' messages count
QUOTES = 4
#: options that have a part of their own, or belong to a run rather than to the agent
_APART = frozenset({
    "instructions", "provider", "model", "skills", "protocols", "generation", "middleware", "approve", "output", "name",
    "know_how",
})
_STRICTNESS = ("refuse", "confirm", "run")
#: a skill's flags that protect, and those with which it protects less
_GUARDS, _LIBERTIES = ("approval", "acts", "trusted"), ("idempotent", "directory", "creates")


def _is_reduced(was: Any, now: Any) -> bool:
    return not set(was) <= set(now) if isinstance(was, Sequence) and isinstance(now, Sequence) else not now


#: whether the new value of an option or a flag protects less than the old one
_LOOSER: Mapping[str, Callable[[Any, Any], bool]] = {
    "max_steps": lambda was, now: now > was,
    "max_tasks": lambda was, now: now > was,
    "approve": lambda was, now: was and not now,
    "quoted_calls": lambda was, now: _STRICTNESS.index(now) > _STRICTNESS.index(was),
    **dict.fromkeys(_GUARDS, _is_reduced),
    **dict.fromkeys(_LIBERTIES, lambda was, now: bool(now) and was is not True),
}


class Rules(NamedTuple):
    """The options by which an agent's responses are judged.

    They are recorded because defaults may change: a replay judges by the rules with which the run began.
    """

    on_prose: OnProse
    on_truncated: OnTruncated
    quoted_calls: OnQuotedCalls
    dialects: OnDialects
    output_retries: int
    #: decides which step is the last one, in which prose is no longer corrected
    max_steps: int
    max_tasks: int
    answers: int = ANSWERS
    quotes: int = QUOTES

    @classmethod
    def of(cls, agent: Agent[Any]) -> Rules:
        return cls(*(getattr(agent, option) for option in cls._fields if option not in cls._field_defaults))

    def recorded(self, given: Mapping[str, Any] | None) -> Rules:
        """Returns these rules, overridden by recorded ones, which format 1 lacks.

        Raises `ValueError` for a recorded value of a wrong type.
        """
        # the values for recordings that were made before these rules existed
        known: dict[str, Any] = {"answers": 1, "quotes": 1, "max_tasks": MAX_TASKS}
        if self.on_prose == "correct_once":  # the default now, which did not exist then
            known["on_prose"] = "accept"
        known |= {name: given[name] for name in self._fields if given is not None and name in given}
        if any(type(value) is not type(getattr(self, name)) for name, value in known.items()):
            raise ValueError("its 'rules' hold a value of another type")
        return self._replace(**known)


def definition_of(
    agent: Agent[Any], setup_of: Callable[[Agent[Any]], Setup], tasks: Mapping[str, Agent[Any]]
) -> dict[str, Any]:
    """Returns the definition of an agent, of those that it can call, and of those that the caller gave to `tasks`."""
    agents, places = [agent], {id(agent): 0}

    def place(one: Agent[Any]) -> int:
        if id(one) not in places:
            places[id(one)] = len(agents)
            agents.append(one)
        return places[id(one)]

    parts = []
    for one in agents:  # `place` appends to this list
        alone, called = setup_of(one).definition(one)
        part = alone["agents"][0]
        skills = {name: {**part["skills"][name], "agent": place(other)} for name, other in called.items()}
        parts.append({**part, "skills": {**part["skills"], **skills}} if skills else part)
        if one is agent and tasks:
            parts[0] = {**parts[0], "tasks": {task: place(other) for task, other in sorted(tasks.items())}}
    return {"agents": parts}


def part_of(agent: Agent[Any], setup: Setup) -> tuple[dict[str, Any], dict[str, Agent[Any]]]:
    """Returns the agent's definition without the agents that it can call, and these by the skill's name."""
    options = agent.options()
    instructions, skills = agent.instructions, setup.skills.visible()
    part = {
        "name": agent.name,
        "instructions": "a function" if callable(instructions) else digest(jsonable(instructions)),
        "options": {
            **{name: _plain(value) for name, value in options.items() if name not in _APART},
            "approve": agent.approve is not None,
            "generation": digest(agent.generation.to_dict()),
            "know_how": agent.know_how and digest(agent.know_how.section("")),
        },
        "output": None if agent.answer_type is None else digest(agent.answer_type.schema()),
        "middleware": None if agent.middleware is None else [_name_of(one) for one in agent.middleware],
        "skills": {skill.name: _skill_part(skill) for skill in skills},
        "protocols": {one.name: digest(one.documentation) for one in setup.protocols.visible()},
    }
    return {"agents": [part]}, {skill.name: skill.agent for skill in skills if isinstance(skill, AgentSkill)}


def _skill_part(skill: Skill) -> dict[str, Any]:
    names = *_GUARDS, *_LIBERTIES, "requires"
    flags = {name: getattr(skill.table if name == "trusted" else skill, name) for name in names}
    return {"digest": skill.digest(), **{name: _plain(value) for name, value in flags.items() if value}}


def _plain(value: Any) -> Any:
    """Returns a value as JSON data; for a value that is not data, its name."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else _name_of(value)


def _name_of(value: Any) -> str:
    """Returns the name of a function or of an instance's class; for a nested function, that of the outermost one."""
    value = inside_partials(value)
    name: str = getattr(value, "__qualname__", type(value).__qualname__)
    return name.partition(".<locals>")[0]


class Comparison:
    """Compares two definitions. `loosened` says, by key, what protects less now; `changes` says what else differs."""

    def __init__(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        self.loosened: dict[str, str] = {}
        self.changes: list[str] = []
        self._was, self._now = was["agents"], now["agents"]
        self._seen: set[tuple[int, int]] = set()
        self._compare_agents(0, 0, "")

    def _compare_agents(self, before: int, after: int, path: str) -> None:
        """Compares two agents. `path` is how the root calls them: empty for itself, ``helper/``, ``helper/clerk/``."""
        if (before, after) in self._seen:
            return
        self._seen.add((before, after))
        was, now = self._was[before], self._now[after]
        who = f"{path}: ".replace("/:", ":") if path else ""
        for part in ("name", "instructions", "output", "middleware"):
            self._compare(part, who, part, was[part], now[part])
        for option in sorted(was["options"].keys() & now["options"].keys()):
            self._compare(f"{path}{option}", who, option, was["options"][option], now["options"][option])
        self._compare_allowed(path, who, "protocol", was["protocols"], now["protocols"])
        self._compare_allowed(path, who, "skill", was["skills"], now["skills"])
        for name in sorted(was["skills"].keys() & now["skills"].keys()):
            self._compare_skills(path, who, name, was["skills"][name], now["skills"][name])
        for task, one in was.get("tasks", {}).items():
            if task in now.get("tasks", {}):
                self._compare_agents(one, now["tasks"][task], f"{path}{task}/")

    def _compare_allowed(self, path: str, who: str, kind: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        for name in sorted(now.keys() - was.keys()):
            self.loosened[f"{path}{name}.allowed"] = f"{who}{kind} {name} is allowed, was not"
        self.changes += [f"{who}{kind} {name} is gone" for name in sorted(was.keys() - now.keys())]
        if kind == "protocol":
            changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
            self.changes += [f"{who}protocol {name}: its documentation changed" for name in changed]

    def _compare_skills(self, path: str, who: str, name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        about = f"{who}skill {name}: "
        if was["digest"] != now["digest"]:
            self.changes.append(f"{about}its description or its inputs changed")
        if "agent" in was and "agent" in now:
            self._compare_agents(was["agent"], now["agent"], f"{path}{name}/")
        elif ("agent" in was) != ("agent" in now):
            self.changes.append(f"{about}it was {'an agent' if 'agent' in was else 'no agent'}")
        for flag in sorted((was.keys() | now.keys()) - {"digest", "agent"}):
            self._compare(f"{path}{name}.{flag}", about, flag, was.get(flag, False), now.get(flag, False))

    def _compare(self, key: str, about: str, name: str, was: Any, now: Any) -> None:
        if was == now:
            return
        words = f"{about}{_changed(name, was, now)}"
        if name in _LOOSER and _LOOSER[name](was, now):
            self.loosened[key] = words
        else:
            self.changes.append(words)


def _changed(name: str, was: Any, now: Any) -> str:
    if name in ("instructions", "output", "generation", "know_how"):
        return {"output": "the type of the answer changed"}.get(name, f"{name} changed")
    return f"{name} was {_shown(was)}, is {_shown(now)}"


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else repr(value)
