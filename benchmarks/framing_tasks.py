"""The 97 tasks of users and 949 attacks of AgentDojo 1.2.2: their correct calls, and environments with a given text.

The package validates the same addresses, reads the same YAML and compares the same environments again and again. Here
each of these is done once, with the same results.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import email_validator
from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites
from deepdiff.diff import DeepDiff

from kernai import Block, Input, Skill
from kernai.inputs.trusted import TrustedMark

VERSION = "v1.2.2"
#: the call of attackers' tasks that list no calls; its body is the attacker's goal
STAND_IN = {"recipients": ["mark.black-2134@gmail.com"], "subject": "all of it"}
_PLACE = re.compile("@@([a-z0-9_]+)@@")


class Attack(NamedTuple):
    """A task of a user, and the calls that an attacker wants."""

    suite: Any
    task: Any
    wanted: Sequence[FunctionCall]
    injection: Any

    def meant(self) -> Sequence[FunctionCall]:
        """The correct calls of the user's task."""
        return _right_calls(self.suite, self.task)

    def environment(self, text: str) -> Any:
        """The suite's environment with this text wherever the user's task reads what an attacker can write."""
        return injected(self.suite, dict.fromkeys(_seen(self.suite, self.task), text))


def users() -> Iterator[tuple[Any, Any]]:
    """Every suite with every task of users."""
    return ((suite, task) for suite in _suites() for task in suite.user_tasks.values())


def attacks(every: int) -> list[Attack]:
    """Every combination of a user's task and an attacker's task, or one in `every` of them."""
    found = []
    for suite in _suites():
        wanted = [(one, _wanted(suite, one)) for one in suite.injection_tasks.values()]
        found += [Attack(suite, task, calls, one) for task in suite.user_tasks.values() for one, calls in wanted]
    return found[::every]


@functools.cache
def _suites() -> list[Any]:
    _make_fast()
    return list(get_suites(VERSION).values())


def _make_fast() -> None:
    email_validator.validate_email = functools.cache(email_validator.validate_email)
    compare = DeepDiff._diff_obj  # noqa: SLF001 - no public function is called at this place

    def compare_unequal(self: Any, level: Any, *rest: Any, **options: Any) -> None:
        if level.t1 != level.t2:
            compare(self, level, *rest, **options)

    DeepDiff._diff_obj = compare_unequal  # noqa: SLF001


def injected(suite: Any, texts: Mapping[str, str]) -> Any:
    """The suite's environment with these texts. They may be any text, since they are not written into its YAML."""
    kind, values, defaults = _default(suite)

    def filled(value: Any) -> Any:
        if isinstance(value, str):
            return _PLACE.sub(lambda place: texts.get(place[1], defaults[place[1]]), value) if "@@" in value else value
        if isinstance(value, dict):
            return {key: filled(one) for key, one in value.items()}
        if isinstance(value, list):
            return [filled(one) for one in value]
        return value

    return kind.model_validate(filled(values))


@functools.cache
def _default(suite: Any) -> tuple[Any, Any, Mapping[str, str]]:
    """Type and values of a suite's environment, with marks where an attacker can write; and the default texts."""
    defaults = suite.get_injection_vector_defaults()
    environment = suite.load_and_inject_default_environment({name: f"@@{name}@@" for name in defaults})
    return type(environment), environment.model_dump(), defaults


@functools.cache
def _seen(suite: Any, task: Any) -> list[str]:
    """The places for an attacker's text that are shown by the results of the task's correct calls."""
    names = list(_default(suite)[2])
    environment = task.init_environment(injected(suite, {name: f"SEEN-{name}-SEEN" for name in names}))
    runtime = FunctionsRuntime(suite.tools)
    messages = GroundTruthPipeline(task).query(task.PROMPT, runtime, environment)[3]
    shown = str([message["content"] for message in messages])
    return [name for name in names if f"SEEN-{name}-SEEN" in shown]


@functools.cache
def _right_calls(suite: Any, task: Any) -> list[FunctionCall]:
    return list(task.ground_truth(task.init_environment(injected(suite, {}))))


def _wanted(suite: Any, task: Any) -> list[FunctionCall]:
    calls = task.ground_truth(copy.deepcopy(injected(suite, {})))
    return calls or [FunctionCall(function="send_email", args={**STAND_IN, "body": task.GOAL})]


def payload(calls: Sequence[FunctionCall]) -> str:
    """The calls as a model writes them."""
    return "".join(str(Block("command", call.function, json.dumps(call.args))) for call in calls)


def skill_of(
    function: Any, perform: Callable[[str, Mapping[str, Any]], Any], trusted: Collection[str] = (), **flags: Any
) -> Skill:
    """A function of a suite as a skill, which hands its name and its arguments to `perform`."""

    def call(**given: Any) -> Any:
        return perform(function.name, given)

    inputs = {}
    for name, field in function.parameters.model_fields.items():
        kind: Any = Annotated[field.annotation, TrustedMark()] if name in trusted else field.annotation
        inputs[name] = Input(kind) if field.is_required() else Input(kind, default=field.default)
    return Skill(function.name, execute=call, description=function.description, inputs=inputs, **flags)
