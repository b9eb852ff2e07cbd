"""Configuration: a single object that is changed in place and restored completely."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

import kernai
from kernai import Agent, MappingResolver, MockProvider, ProviderError, Recorder, Skill
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
    kernai.configure(
        default_provider=None,
        recorder=None,
        logger=None,
        credential_resolver=None,
        setting_resolver=None,
    )
    assert (kernai.config.default_provider, kernai.config.recorder, kernai.config.logger) == (None, None, None)
    for resolver in (kernai.config.credential_resolver, kernai.config.setting_resolver):
        assert resolver.resolve("no_such_skill", "key") is None


@pytest.mark.parametrize("options,message", [
    ({"debgu": True}, "debgu.*debug"), ({"debug": 1}, "debug"), ({"debug": None}, "debug"),
    ({"default_provider": "openai"}, "default_provider"), ({"allowed_skills": "search"}, "allowed_skills"),
    ({"allowed_skills": [1]}, "allowed_skills"), ({"allowed_skills": 3}, "allowed_skills"),
    ({"recorder": "file"}, "recorder"), ({"logger": "kernai"}, "logger"),
    ({"credential_resolver": {"a": "b"}}, "credential_resolver.*resolve"),
    ({"setting_resolver": str}, "setting_resolver"),
    ({"default_provider": MockProvider}, "default_provider"), ({"recorder": Recorder}, "recorder"),
])  # fmt: skip
def test_a_wrong_option_is_an_error_that_names_it_and_nothing_changes(options: dict[str, Any], message: str) -> None:
    before = state()
    with pytest.raises(TypeError, match=message):
        kernai.configure(**{"debug": True, **options} if "debug" not in options else options)
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


def test_isolated_starts_with_the_current_state() -> None:
    kernai.skills.register(echo)
    with kernai.isolated():
        assert kernai.skills.all() == [echo]
        kernai.skills.unregister("echo")
    assert kernai.skills.find("echo") is echo


# ------------------------------------------------------------------------------------------------- its effects


def test_the_default_provider_is_used_if_neither_run_nor_agent_names_one() -> None:
    agents, theirs, default = MockProvider("the agent's"), MockProvider("the run's"), MockProvider("the default")
    kernai.configure(default_provider=default)
    assert kernai.run(Agent(instructions=""), "Go.") == "the default"
    assert kernai.run(Agent(instructions="", provider=agents), "Go.") == "the agent's"
    assert kernai.run(Agent(instructions="", provider=agents), "Go.", provider=theirs) == "the run's"
    kernai.configure(default_provider=None)
    with pytest.raises(ProviderError):
        kernai.run(Agent(instructions=""), "Go.")


def test_configuration_is_read_when_the_run_starts() -> None:
    def change() -> str:
        kernai.configure(allowed_skills=["change"], recorder=Recorder())
        return "changed"

    agent = Agent(instructions="", skills=[echo, Skill("change", execute=change)])
    recorder = Recorder()
    kernai.configure(recorder=recorder)
    assert kernai.run(agent, "Go.", provider=MockProvider(command("change"), command("echo", "x"), "done")) == "done"
    assert [event.data["skill"] for event in recorder.for_event("skill_result")] == ["change", "echo"]


def test_the_repr_of_the_configuration_shows_no_secret() -> None:
    kernai.configure(credential_resolver=MappingResolver({"key": "hunter2"}))
    shown = repr(kernai.config)
    assert "debug=False" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize("name, value, error, says", [
    ("allowed_skils", ["a"], AttributeError, "config has no option 'allowed_skils'; did you mean 'allowed_skills'?"),
    ("allowed_skills", "search", TypeError, "allowed_skills must be a list of names or None"),
    ("debug", "yes", TypeError, "debug must be True or False"),
])  # fmt: skip
def test_an_assigned_option_is_checked_as_by_configure(name: str, value: object, error: type[Exception], says: str) -> None:
    before = kernai.config.snapshot()
    with pytest.raises(error, match=re.escape(says)):
        setattr(kernai.config, name, value)
    assert kernai.config.snapshot() == before
