"""Configuration: a single object that is changed in place and restored completely."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import kernai
from kernai import Agent, MappingResolver, MockProvider, Recorder, Skill
from tests.loop.loop_cases import command, echo

OPTIONS: dict[str, Any] = {
    "debug": True, "default_provider": MockProvider(), "allowed_skills": ("a",), "recorder": Recorder(),
    "logger": logging.getLogger("elsewhere"), "credential_resolver": MappingResolver({}),
    "setting_resolver": MappingResolver({}),
}  # fmt: skip


def state() -> dict[str, object]:
    return {name: getattr(kernai.config, name) for name in OPTIONS}


def test_setting_one_option_does_not_change_the_others() -> None:
    config = kernai.config
    for name, value in OPTIONS.items():
        before = state()
        assert kernai.configure(**{name: value}) is config
        assert state() == {**before, name: value}
    assert kernai.config is config


def test_a_list_of_allowed_skills_is_copied() -> None:
    allowed = ["a"]
    kernai.configure(allowed_skills=allowed)
    allowed.append("b")
    assert state()["allowed_skills"] == ("a",)
    kernai.configure(allowed_skills=(name for name in ("c", "d")))
    assert state()["allowed_skills"] == ("c", "d")
    kernai.configure(allowed_skills=None)
    assert state()["allowed_skills"] is None
    kernai.config.allowed_skills = ["e"]  # type: ignore[assignment]
    assert state()["allowed_skills"] == ("e",)


def test_none_restores_the_default_of_an_option() -> None:
    kernai.configure(**OPTIONS)
    kernai.configure(**dict.fromkeys(OPTIONS.keys() - {"debug", "allowed_skills"}))  # type: ignore[arg-type]
    assert (kernai.config.default_provider, kernai.config.recorder, kernai.config.logger) == (None, None, None)
    for resolver in (kernai.config.credential_resolver, kernai.config.setting_resolver):
        assert resolver.resolve("no_such_skill", "key") is None


@pytest.mark.parametrize("options,message", [
    ({"debgu": True}, "'debgu'"), ({"debug": 1}, "debug must be True or False"),
    ({"debug": None}, "debug"), ({"repair": "yaml"}, "repair must be True, 'json' or False"), ({"default_provider": "openai"}, "default_provider"),
    ({"allowed_skills": "search"}, "allowed_skills must be a list of names or None"),
    ({"allowed_skills": [1]}, "allowed_skills"), ({"allowed_skills": 3}, "allowed_skills"),
    ({"recorder": "file"}, "recorder"), ({"logger": "kernai"}, "logger"),
    ({"credential_resolver": {"a": "b"}}, "credential_resolver.*resolve.*got dict$"), ({"setting_resolver": str}, "setting_resolver"),
    ({"default_provider": MockProvider}, "default_provider"), ({"recorder": Recorder}, "recorder"),
])  # fmt: skip
def test_a_wrong_option_is_an_error_that_names_it_and_nothing_changes(options: dict[str, Any], message: str) -> None:
    before = state()
    with pytest.raises((TypeError, ValueError), match=message):
        kernai.configure(**{"debug": True, **options} if "debug" not in options else options)
    ((name, value),) = options.items()
    with pytest.raises((TypeError, ValueError, AttributeError), match=message):
        setattr(kernai.config, name, value)
    assert state() == before


def test_reset_restores_all_defaults_and_empties_both_registries() -> None:
    defaults, config = state(), kernai.config
    kernai.configure(**OPTIONS)
    kernai.skills.register(echo)
    kernai.protocols.register("p", lambda *_: "")
    skills, protocols = kernai.skills, kernai.protocols
    kernai.reset()
    after = state()
    for name in ("credential_resolver", "setting_resolver"):
        assert type(after.pop(name)) is type(defaults.pop(name))
    assert after == defaults
    assert (kernai.skills.all(), kernai.protocols.all()) == ([], [])
    assert (kernai.config, kernai.skills, kernai.protocols) == (config, skills, protocols)


def test_isolated_restores_everything() -> None:
    kernai.configure(debug=True, allowed_skills=["a"])
    kernai.skills.register(echo)
    kernai.protocols.register("p", lambda *_: "")
    before, skills, protocols = state(), kernai.skills.all(), kernai.protocols.all()

    def turn_everything_over() -> None:
        with kernai.isolated():
            assert kernai.skills.all() == skills, "it starts with the current state"
            kernai.skills.unregister("echo")
            kernai.reset()
            with kernai.isolated():
                kernai.configure(**OPTIONS)
                kernai.skills.register(Skill("other", execute=lambda: ""))
            assert kernai.config.debug is False
            assert kernai.skills.all() == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        turn_everything_over()
    assert (state(), kernai.skills.all(), kernai.protocols.all()) == (before, skills, protocols)


# ------------------------------------------------------------------------------------------------- its effects


def test_configuration_is_read_when_the_run_starts() -> None:
    def change() -> str:
        kernai.configure(allowed_skills=["change"], recorder=Recorder())
        return "changed"

    agent = Agent(instructions="", skills=[echo, Skill("change", execute=change)])
    recorder = Recorder()
    kernai.configure(recorder=recorder)
    assert kernai.run(agent, "Go.", provider=MockProvider(command("change"), command("echo", "x"), "done")) == "done"
    assert [event.data["skill"] for event in recorder.for_event("skill_result")] == ["change", "echo"]
