"""Signatures in a module without postponed annotations: evaluated types, and names as text within types."""

import sys
import typing
from dataclasses import dataclass
from typing import Any, List, NotRequired, Optional, Required, TypedDict  # noqa: UP035 - users write both

import pytest

from kernai import Context, MockProvider, Skill, SkillContext, SkillInputError, run, skill


@dataclass
class Ticket:
    title: str
    after: Optional["Ticket"] = None


class Half(TypedDict, total=False):
    a: Required[int]
    b: int


class Whole(Half):
    c: NotRequired[int]
    d: "int"


def test_evaluated_annotations_are_read() -> None:
    @skill
    def plan(tickets: list[Ticket], ctx: SkillContext[Context], note: str | None = None) -> Any:
        return tickets, note

    assert plan.call({"tickets": [{"title": "a", "after": {"title": "b"}}]}) == ([Ticket("a", Ticket("b"))], None)


def test_names_inside_evaluated_annotations_resolve_to_local_types() -> None:
    def make(kind: type) -> Skill:
        @dataclass
        class Local:
            n: kind  # type: ignore[valid-type]

        @skill(register=False)
        def take(a: list["Local"], b: List["Local"], c: "Local | None" = None) -> Any:  # noqa: UP006
            return a, b, c

        return take

    # typing caches List["Local"] with its reference, so two types of this name must not be confused
    for kind, value in ((int, 1), (str, "x"), (int, 2)):
        (a,), (b,), c = make(kind).call({"a": [{"n": value}], "b": [{"n": value}]})
        assert (a.n, b.n, c) == (value, value, None)


def test_a_context_annotated_as_text_is_the_context() -> None:
    @skill
    def by_text(ctx: "SkillContext[Nowhere]", n: int = 1) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return ctx.call_id, n

    @skill
    def inside_optional(ctx: typing.Optional["SkillContext[Any]"] = None) -> Any:
        return ctx

    assert by_text.call({}) == ("", 1)
    assert isinstance(inside_optional.call({}), SkillContext)


@pytest.mark.parametrize("given, missing", [
    ({"a": 1, "d": 1}, []), ({}, ["x.a", "x.d"]), ({"a": 1, "b": 2, "c": 3, "d": 4}, []), ({"d": 1}, ["x.a"]),
])
def test_required_and_not_required_keys_of_typed_dicts_are_respected(given: dict[str, int], missing: list[str]) -> None:
    made = Skill("probe", execute=lambda x: x, inputs={"x": Whole})
    if missing:
        with pytest.raises(SkillInputError) as caught:
            made.call({"x": given})
        assert [path for path, _ in caught.value.faults] == missing
    else:
        assert made.call({"x": given}) == given


NAMES_THAT_ONLY_TYPE_CHECKERS_KNOW = """
from kernai import Agent, Context, SkillContext, skill
from kernai.middleware import Hooks

class Shop(Context):
    database: Database

class Clerk(Agent):
    session: Session

class Guard(Hooks):
    def before_model(self, call: Call) -> Call | None:
        return None

@skill(register=False)
def count(n: int, ctx: SkillContext[Later]) -> Answer:
    return f"{n} in {type(ctx.run_context).__name__}"

def instructions(context: Shop) -> Text:
    return type(context).__name__

def check(value: Value, context: Later) -> Text | None:
    return None
"""


@pytest.mark.parametrize("first_line", [
    "from __future__ import annotations",
    pytest.param("", marks=pytest.mark.skipif(sys.version_info < (3, 14), reason="evaluates annotations at once")),
])
def test_annotations_that_say_nothing_about_inputs_need_not_be_evaluable(first_line: str) -> None:
    made: dict[str, Any] = {}
    exec(f"{first_line}\n{NAMES_THAT_ONLY_TYPE_CHECKERS_KNOW}", made)
    mock = MockProvider('<command name="count">{"n": 1}</command>', "<final>one</final>")
    clerk = made["Clerk"](instructions=made["instructions"], output_check=made["check"], output=str, provider=mock,
                          skills=[made["count"]], middleware=[made["Guard"]()])
    clerk.session = "open"
    assert run(clerk, "How many?", context=made["Shop"]()) == "one"
    assert "Shop" in mock.calls[0].messages[0].text
    assert "1 in Shop" in mock.calls[1].messages[-1].text

    with pytest.raises(TypeError, match=r"'lost': parameter 'n': the annotation 'Nowhere \| None' cannot be resolved"):
        exec(f"{first_line}\n@skill(register=False)\ndef lost(n: Nowhere | None) -> str: ...", made)
