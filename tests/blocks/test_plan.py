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


#: plans as models write them, by the reason why they are no plans
INVALID: dict[str, list[Any]] = {
    "blank": [None, "", " \t\r\n\v\f"],
    "invalid_json": [
        "\u00a0", '{"tasks": [', '{"tasks": []} trailing', '{"tasks": NaN}', '{"tasks": [], "weight": 1e999}', "[" * 200_000,
        "9" * 5_000,
    ],
    "not_a_hash": ["[]", "3", 3, [ONE], b"{}"],
    "no_tasks": ["{}", '{"tasks": null}', '{"tasks": {"a": 1}}', '{"Tasks": [1]}'],
    "empty_tasks": ['{"tasks": []}'],
    "too_many_tasks": [{"tasks": [ONE] * (MAX_TASKS + 1)}],
    "all_tasks_invalid": [
        '{"tasks": [1, null, "a", [], {}]}', {"tasks": [{"id": " ", "input": "x"}, {"id": "a", "input": "\t"}]},
        {"tasks": [{"id": 1, "input": "x"}, {"id": "a", "input": ["x"]}]},
    ],
    "duplicate_ids": [{"tasks": [ONE, {"id": "a", "input": "again"}]}],
    "cyclic": [{"tasks": [{**ONE, "depends_on": ["b"]}, {"id": "b", "input": "x", "depends_on": ["a"]}]}],
}


@pytest.mark.parametrize("expected", INVALID)
def test_an_invalid_plan_says_why(expected: str) -> None:
    assert [reason(raw) for raw in INVALID[expected]] == [expected] * len(INVALID[expected])


def test_a_plan_is_read_from_text_or_from_a_mapping() -> None:
    raw = {
        "goal": "g",
        "strategy": "parallel",
        "tasks": [ONE, {"id": "b", "input": " x ", "parallel": True, "depends_on": ["a"]}],
    }
    expected = Plan((Task("a", "do a"), Task("b", " x ", True, ("a",))), "g", "parallel")
    assert sound(raw) == sound(json.dumps(raw)) == expected
    assert sound(expected.to_dict()) == expected


NEEDING = [
    {**ONE, "depends_on": ["a", "ghost", None, 3, ["b"], "b"]},
    *({"id": id, "input": "x", "depends_on": needed} for id, needed in {
        "b": 5, "c": {"a": 1}, "d": ["a", "a"], "e": "a", "f": "ghost", "g": "g", "h": ""}.items()),
]


@pytest.mark.parametrize("tasks, field, values", [
    ([None, {"id": "z", "input": "x"}, {"id": "", "input": "x"}, 5, ONE, {"id": "y"}], "id", ["z", "a"]),
    # unknown tasks, the task itself and what is no id are pruned
    (NEEDING, "depends_on", [("b",), (), (), ("a", "a"), ("a",), (), (), ()]),
    *(([{**ONE, "parallel": flag}], "parallel", [flag is True]) for flag in (True, False, 1, "true", None)),
])
def test_invalid_tasks_and_dependencies_are_dropped_and_the_others_stay_in_order(tasks: list[Any], field: str, values: list[Any]) -> None:
    assert [getattr(task, field) for task in sound({"tasks": tasks}).tasks] == values


@pytest.mark.parametrize("more, field, expected", [
    *(({"strategy": one}, "strategy", "mixed") for one in (None, "", "Parallel", "fast", 5, ["parallel"])),
    *(({"goal": goal}, "goal", json.dumps(goal, ensure_ascii=False)) for goal in (5, ["a", 1], {"a": "é"})),
    ({"goal": None}, "goal", ""), ({"goal": "ship it"}, "goal", "ship it"),
])
def test_a_goal_becomes_text_and_an_unknown_strategy_mixed(more: dict[str, Any], field: str, expected: str) -> None:
    assert getattr(sound({"tasks": [ONE], **more}), field) == expected


def test_a_thousand_tasks_are_allowed_whatever_their_dependencies() -> None:
    chain = [{"id": str(at), "input": "x", "depends_on": [str(at - 1)]} for at in range(MAX_TASKS)]
    assert len(sound({"tasks": chain}).tasks) == MAX_TASKS
    ring = [{**one, "depends_on": [str((int(str(one["id"])) - 1) % MAX_TASKS)]} for one in chain]
    assert reason({"tasks": ring}) == "cyclic"


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
        assert found.reason is None or found.reason in INVALID
        if found.plan is not None:
            known = [task.id for task in found.plan.tasks]
            assert len(set(known)) == len(known)
            assert all(task.id not in task.depends_on for task in found.plan.tasks)
            assert all(set(task.depends_on) <= set(known) for task in found.plan.tasks)
            assert sound(json.dumps(found.plan.to_dict())) == found.plan


@pytest.mark.parametrize("given, ids", [("bc", ("bc",)), (["b", "c"], ("b", "c")), (("b",), ("b",)), ([], ())])
def test_a_task_depends_on_one_id_or_a_list_of_them(given: Any, ids: tuple[str, ...]) -> None:
    task, same = Task("a", "y", depends_on=given), Task("a", "y", depends_on=ids)
    assert (task, task.depends_on, hash(task)) == (same, ids, hash(same))
    assert hash(Plan((task,))) == hash(Plan([same]))  # type: ignore[arg-type]  # any iterable will do
    with pytest.raises(TypeError, match="tasks must be Task objects, got dict"):
        Plan((same.to_dict(),))  # type: ignore[arg-type]  # the point
    with pytest.raises(AttributeError):
        task.id = "b"  # type: ignore[misc]  # frozen
    with pytest.raises(TypeError, match="depends_on must be a list of ids, got 5"):
        Task("a", "y", depends_on=5)  # type: ignore[arg-type]  # the point
