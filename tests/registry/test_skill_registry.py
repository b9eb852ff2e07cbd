"""The registry: skills by name, which ones a model is offered, and threads."""

from __future__ import annotations

from typing import Any

import pytest

from kernai import Skill, SkillRegistry
from kernai.testing.contracts import at_once


def make(name: str, **options: Any) -> Skill:
    return Skill(name, execute=lambda: name, **options)


@pytest.fixture
def registry() -> SkillRegistry:
    made = SkillRegistry()
    for name in ("one", "two", "three"):
        made.register(make(name))
    return made


def names(registry: SkillRegistry) -> list[str]:
    return [one.name for one in registry.all()]


def test_skills_are_found_by_name_listed_in_order_replaced_and_removed(registry: SkillRegistry) -> None:
    registry.all().clear()  # a copy
    assert names(registry) == ["one", "two", "three"]
    two = registry.find("two")
    assert two is not None
    assert (two.name, registry.find("four")) == ("two", None)
    again = make("one")
    assert registry.register(again) is again
    assert registry.find("one") is again
    assert names(registry) == ["one", "two", "three"]
    assert (registry.unregister("two"), registry.unregister("two")) == (two, None)
    assert names(registry) == ["one", "three"]


def test_anything_but_a_skill_or_a_list_of_names_is_a_type_error_with_the_fix(registry: SkillRegistry) -> None:
    with pytest.raises(TypeError, match=r"register takes a Skill, got function; make one with @skill or Skill"):
        registry.register(make)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"mean \['one'\]"):
        registry.listing("one")
    with pytest.raises(TypeError, match=r"model must be a kernai\.Model, got str"):
        registry.listing("all", "x")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- what a model is offered

def test_the_listing_shows_every_skill_once_and_says_when_there_is_none(registry: SkillRegistry) -> None:
    assert [one.name for one in registry.select(["two", "one", "two", "unknown"])] == ["two", "one"]
    registry.register(make("four", description="Does four."))
    text = registry.listing()
    assert text.startswith("Available skills")
    assert text.count('Usage: <block type="command"') == 4
    assert "### four\nDoes four.\nInputs: none" in text
    assert SkillRegistry().listing() == "No skills are available."
    assert registry.listing(None) == "No skills are available."


# -------------------------------------------------------------------------------------------------------- threads


def test_nothing_is_lost_when_many_threads_register_and_unregister() -> None:
    registry = SkillRegistry()

    def work(number: int) -> None:
        for index in range(50):
            registry.register(make(f"{number}.{index}"))
            assert registry.find(f"{number}.{index}") is not None
            assert len(registry.all()) > 0
            if index % 2:
                registry.unregister(f"{number}.{index}")

    assert at_once(work, 8) == []
    assert len(registry.all()) == 8 * 25
    assert registry.version == 8 * 75
