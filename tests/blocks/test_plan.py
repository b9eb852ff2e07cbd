"""`Plan.validate`: valid and invalid workflows as models write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernai import Plan, Task
from kernai.values.limits import MAX_TASKS
from tests.properties import json_data

#: as docs/workflows.md tables them; `nested` is the loop's own
REASONS = (
    "blank", "invalid_json", "not_a_hash", "no_tasks", "empty_tasks", "too_many_tasks", "all_tasks_invalid",
    "duplicate_ids", "cyclic",
)


def reason(raw: Any) -> str | None:
    found = Plan.validate(raw)
    assert found.ok is (found.reason is None) is (found.plan is not None)
    assert (Plan.parse(raw) is None) is (not found.ok)
    return found.reason


def sound(raw: Any) -> Plan:
    plan = Plan.parse(raw)
    assert plan is not None
    return plan


ONE = {"id": "a", "input": "do a"}


@pytest.mark.parametrize("raw, expected", [
    (None, "blank"),
    ("", "blank"),
    (" \t\r\n\v\f", "blank"),
    ("\u00a0", "invalid_json"),
    ('{"tasks": [', "invalid_json"),
    ('{"tasks": []} trailing', "invalid_json"),
    ('{"tasks": NaN}', "invalid_json"),
    ('{"tasks": [], "weight": 1e999}', "invalid_json"),
    ("[" * 200_000, "invalid_json"),
    ("9" * 5_000, "invalid_json"),
    ("[]", "not_a_hash"),
    ("3", "not_a_hash"),
    (3, "not_a_hash"),
    ([ONE], "not_a_hash"),
    (b"{}", "not_a_hash"),
    ("{}", "no_tasks"),
    ('{"tasks": null}', "no_tasks"),
    ('{"tasks": {"a": 1}}', "no_tasks"),
    ('{"Tasks": [1]}', "no_tasks"),
    ('{"tasks": []}', "empty_tasks"),
    ({"tasks": [ONE] * (MAX_TASKS + 1)}, "too_many_tasks"),
    ('{"tasks": [1, null, "a", [], {}]}', "all_tasks_invalid"),
    ({"tasks": [{"id": " ", "input": "x"}, {"id": "a", "input": "\t"}]}, "all_tasks_invalid"),
    ({"tasks": [{"id": 1, "input": "x"}, {"id": "a", "input": ["x"]}]}, "all_tasks_invalid"),
    ({"tasks": [ONE, {"id": "a", "input": "again"}]}, "duplicate_ids"),
    ({"tasks": [{**ONE, "depends_on": ["b"]}, {"id": "b", "input": "x", "depends_on": ["a"]}]}, "cyclic"),
], ids=lambda one: str(one)[:30])
def test_an_invalid_plan_says_why(raw: Any, expected: str) -> None:
    assert reason(raw) == expected
    assert expected in REASONS


def test_a_plan_is_read_from_text_or_from_a_mapping() -> None:
    raw = {
        "goal": "g",
        "strategy": "parallel",
        "tasks": [ONE, {"id": "b", "input": " x ", "parallel": True, "depends_on": ["a"]}],
    }
    expected = Plan((Task("a", "do a"), Task("b", " x ", True, ("a",))), "g", "parallel")
    assert sound(raw) == sound(json.dumps(raw)) == expected
    assert sound(expected.to_dict()) == expected


def test_invalid_tasks_are_dropped_and_the_others_stay_in_order() -> None:
    raw = {"tasks": [None, {"id": "z", "input": "x"}, {"id": "", "input": "x"}, 5, ONE, {"id": "y"}]}
    assert [task.id for task in sound(raw).tasks] == ["z", "a"]


def test_dependencies_on_unknown_tasks_on_itself_and_of_wrong_types_are_pruned() -> None:
    raw = {
        "tasks": [
            {**ONE, "depends_on": ["a", "ghost", None, 3, ["b"], "b"]},
            {"id": "b", "input": "x", "depends_on": 5},
            {"id": "c", "input": "x", "depends_on": {"a": 1}},
        ]
    }
    assert [task.depends_on for task in sound(raw).tasks] == [("b",), (), ()]


@pytest.mark.parametrize("given, expected", [("a", ("a",)), ("ghost", ()), ("b", ()), ("", ())])
def test_a_single_dependency_may_be_given_as_text(given: str, expected: tuple[str, ...]) -> None:
    assert sound({"tasks": [ONE, {"id": "b", "input": "x", "depends_on": given}]}).tasks[1].depends_on == expected


@pytest.mark.parametrize("flag, expected", [(True, True), (False, False), (1, False), ("true", False), (None, False)])
def test_only_true_makes_a_task_parallel(flag: object, expected: bool) -> None:
    assert sound({"tasks": [{**ONE, "parallel": flag}]}).tasks[0].parallel is expected


@pytest.mark.parametrize("strategy", [None, "", "Parallel", "fast", 5, ["parallel"], {}])
def test_an_unknown_strategy_is_mixed(strategy: object) -> None:
    assert sound({"tasks": [ONE], "strategy": strategy}).strategy == "mixed"


@pytest.mark.parametrize(
    "goal, expected", [(None, ""), ("ship it", "ship it"), (5, "5"), (["a", 1], '["a", 1]'), ({"a": "é"}, '{"a": "é"}')]
)
def test_a_goal_that_is_no_text_becomes_json(goal: object, expected: str) -> None:
    assert sound({"tasks": [ONE], "goal": goal}).goal == expected


def test_a_thousand_tasks_are_allowed_whatever_their_dependencies() -> None:
    chain = [{"id": str(at), "input": "x", "depends_on": [str(at - 1)]} for at in range(MAX_TASKS)]
    assert len(sound({"tasks": chain}).tasks) == MAX_TASKS
    ring = [{**one, "depends_on": [str((int(str(one["id"])) - 1) % MAX_TASKS)]} for one in chain]
    assert reason({"tasks": ring}) == "cyclic"


def test_a_dependency_named_twice_is_no_cycle() -> None:
    raw = {"tasks": [ONE, {"id": "b", "input": "x", "depends_on": ["a", "a"]}]}
    assert sound(raw).tasks[1].id == "b"


def test_duplicate_keys_and_odd_ids_are_read_as_json_does() -> None:
    text = '{"tasks": [{"id": "x", "id": "\\ud800/\\u0000 \\"<b>", "input": "i"}]}'
    assert sound(text).tasks[0].id == '\ud800/\x00 "<b>'


JSON = json_data(keys=st.sampled_from(["id", "input", "tasks", "depends_on", "parallel", "strategy", "goal", "x"]))


@pytest.mark.slow
@settings(max_examples=3 * settings().max_examples, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(raw=JSON)
def test_any_json_results_in_a_valid_plan_or_a_reason(raw: Any) -> None:
    for given_as in (raw, json.dumps(raw)):
        found = Plan.validate(given_as)
        assert found.reason is None or found.reason in REASONS
        if found.plan is not None:
            known = [task.id for task in found.plan.tasks]
            assert len(set(known)) == len(known)
            assert all(task.id not in task.depends_on for task in found.plan.tasks)
            assert all(set(task.depends_on) <= set(known) for task in found.plan.tasks)
            assert sound(json.dumps(found.plan.to_dict())) == found.plan


def test_a_plan_and_a_task_are_values() -> None:
    assert Task("a", "x") == Task("a", "x")
    assert hash(Plan((Task("a", "x"),))) == hash(Plan((Task("a", "x"),)))
    with pytest.raises(AttributeError):
        Task("a", "x").id = "b"  # type: ignore[misc]  # frozen


@pytest.mark.parametrize("given, ids", [("bc", ("bc",)), (["b", "c"], ("b", "c")), (("b",), ("b",)), ([], ())])
def test_a_task_depends_on_one_id_or_a_list_of_them(given: Any, ids: tuple[str, ...]) -> None:
    task = Task("a", "y", depends_on=given)
    assert task.depends_on == ids
    assert hash(task) == hash(Task("a", "y", depends_on=ids))
