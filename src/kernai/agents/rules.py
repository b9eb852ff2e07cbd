"""`Rules`: what an agent's decisions depend on and may have another default one day; `run_start` records them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kernai.values.limits import MAX_TASKS

if TYPE_CHECKING:
    from kernai.agents.agent import Agent, OnDialects, OnProse, OnQuotedCalls, OnTruncated

#: grows when `neutralize` neutralises something else, which decides what counts as a quoted call
#: Since 2 only tags that act are: `block`, `command`, `final`, `plan`
NEUTRALIZE = 2
#: grows when something else counts as an answer. Since 2 these do not: plans or drafts alone, from an agent that can
#: call nothing; an empty response with which the model has not ended its turn
#: Since 3 an answer that contains its own closing tag does not. Since 4 the result of a typed task is its value
ANSWERS = 4
CHECKED_CLOSE = 3
TYPED_TASKS = 4


#: grows when something else counts as a quoted call. Since 2 a call is recognised by its letters and digits alone, and
#: several that were asked for are confirmed by one response
QUOTES = 2


class Rules(NamedTuple):
    """The options of an agent by which its responses are judged. On record a run is judged by those it began with."""

    on_prose: OnProse
    on_truncated: OnTruncated
    quoted_calls: OnQuotedCalls
    dialects: OnDialects
    output_retries: int
    #: which prose is the last one that a run may say
    max_steps: int
    max_tasks: int
    neutralize: int = NEUTRALIZE
    answers: int = ANSWERS
    quotes: int = QUOTES

    @classmethod
    def of(cls, agent: Agent[Any]) -> Rules:
        return cls(
            agent.on_prose, agent.on_truncated, agent.quoted_calls, agent.dialects, agent.output_retries,
            agent.max_steps, agent.max_tasks,
        )

    def recorded(self, given: Mapping[str, Any] | None) -> Rules:
        """These rules, overridden by recorded ones, which format 1 lacks. `ValueError` for one of a wrong type."""
        # of recordings made before there were such rules
        known: dict[str, Any] = {"answers": 1, "neutralize": 1, "quotes": 1, "max_tasks": MAX_TASKS}
        if self.on_prose == "correct_once":  # the default now, which did not exist then
            known["on_prose"] = "accept"
        known |= {name: given[name] for name in self._fields if given is not None and name in given}
        if any(type(value) is not type(getattr(self, name)) for name, value in known.items()):
            raise ValueError("its 'rules' hold a value of another type")
        return self._replace(**known)
