"""`Context`: what a run knows of its workflow, and the host's state on its way into sub-runs."""

from __future__ import annotations

import inspect
from typing import Any, Self

import pytest

from kernai import Agent, Context, MediaStore, MockProvider, Plan, execute

PLAN = '{"tasks": [{"id": "a", "input": "count"}]}'


class AppContext(Context):
    """A host's context: one thing shared by all sub-runs, one that each has for itself."""

    def __init__(self, user: str) -> None:
        super().__init__()
        self.user = user
        self.connection = "root's own"
        self.made = [user]

    def child(self, task_id: str | None) -> Self:
        child = super().child(task_id)
        child.connection = f"of {task_id}"
        return child


def test_a_fresh_context_is_a_roots_with_a_media_store_of_its_own_unless_one_is_given() -> None:
    context, store = Context(), MediaStore()
    assert (context.depth, context.task_id, context.plan, context.task_results) == (0, None, None, {})
    assert (context.is_root, context.tasks) == (True, ())
    assert isinstance(context.media_store, MediaStore)
    assert Context().media_store is not context.media_store
    assert Context(media_store=store).media_store is store
    assert [*inspect.signature(Context).parameters] == ["depth", "task_id", "media_store"]


def test_a_child_lies_one_deeper_and_has_no_plan_of_its_own() -> None:
    parent = Context(depth=2, task_id="outer")
    parent.plan = Plan.parse(PLAN)
    parent.task_results["a"] = "done"
    child = parent.child("a")
    assert (child.depth, child.task_id, child.plan, child.tasks, child.task_results) == (3, "a", None, (), {})
    assert not child.is_root
    assert child.media_store is parent.media_store
    child.task_results["b"] = "x"
    assert parent.task_results == {"a": "done"}
    assert [task.id for task in parent.tasks] == ["a"]


@pytest.mark.parametrize("name", ["depth", "is_root", "media_store", "plan", "task_id", "task_results", "tasks", "trusted"])
def test_a_subclass_cannot_have_an_attribute_of_its_own_that_runs_set(name: str) -> None:
    """A customer's `plan` would be replaced by the workflow, and a list named `trusted` would allow values."""
    for fields in ({name: "gold"}, {"__annotations__": {name: "str"}}):
        with pytest.raises(TypeError, match=f"Shop.{name}: runs set an attribute of this name, so take another one"):
            type("Shop", (Context,), fields)


@pytest.mark.parametrize("name, value", [("plan", "gold"), ("trusted", ["mail"])])
def test_a_run_refuses_a_context_whose_own_attributes_are_somebody_elses(name: str, value: object) -> None:
    context = AppContext("ada")
    setattr(context, name, value)
    with pytest.raises(TypeError, match=rf"context: runs set .*AppContext.{name}.*, so keep your own under other names"):
        execute(Agent(instructions=""), "go", context=context, provider=MockProvider("hi"))


def test_a_child_of_a_subclass_keeps_its_state_without_running_init() -> None:
    parent = AppContext("ada")
    child = parent.child("a")
    assert (type(child), child.user, child.made is parent.made) == (AppContext, "ada", True)
    assert (parent.connection, child.connection) == ("root's own", "of a")


@pytest.mark.parametrize("name", ["child", "restore", "save"])
def test_a_method_that_nobody_would_await_is_refused_at_its_class(name: str) -> None:
    async def later(self: Any, *given: Any) -> None: ...

    with pytest.raises(TypeError, match=rf"Late\.{name} is an async function"):
        type("Late", (Context,), {name: later})
