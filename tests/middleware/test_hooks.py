"""`Hooks`: a class whose hooks are called around models, tools and runs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import kernai
from kernai import Agent, LlmResponse, MockProvider, ProviderError, Recorder, Skill, SkillContext, Stop, skill
from kernai.middleware import CallSkill, HookContext, Hooks, fallback
from tests.durable.durable_cases import AT_ONCE, EACH_WAY, Stored, provider
from tests.durable.durable_cases import Way as DurableWay
from tests.loop.loop_cases import command, plan, task
from tests.middleware.asking import FINAL, RETRYABLE, Script, data_of, echo, fail
from tests.ways import WAYS, Way


class Noting(Hooks):
    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def on_run_start(self, run: Any) -> None:
        self.notes.append(("on_run_start", run.scope))

    def on_run_end(self, run: Any, result: Any) -> None:
        self.notes.append(("on_run_end", run.scope, str(result.stop_reason)))

    def before_model(self, ctx: HookContext) -> None:
        self.notes.append(("before_model", ctx.call_id))

    def after_model(self, ctx: HookContext) -> None:
        self.notes.append(("after_model", ctx.call_id, ctx.response.content))

    def before_tool(self, ctx: HookContext) -> None:
        self.notes.append(("before_tool", ctx.call_id))

    def after_tool(self, ctx: HookContext) -> None:
        self.notes.append(("after_tool", ctx.call_id, ctx.result))

    def on_error(self, ctx: HookContext, error: Exception) -> None:
        self.notes.append(("on_error", ctx.call_id, str(error)))


def agent_with(hooks: Any, *answers: Any, **options: Any) -> Agent:
    return Agent(
        instructions="x", provider=Script(*answers), skills=[echo, fail], middleware=[hooks],
        protocols=[kernai.Protocol("note", lambda block, ctx: block.content)], **options,
    )  # fmt: skip


@WAYS
def test_every_hook_is_called_in_order(way: Way) -> None:
    hooks = Noting()
    calls = command("echo", "hi") + command("fail", "why") + '<block type="note">n</block>'
    way(agent_with(hooks, calls, FINAL))
    assert hooks.notes == [
        ("on_run_start", ""),
        ("before_model", "0"), ("after_model", "0", calls),
        ("before_tool", "0.0"), ("after_tool", "0.0", "hi"),
        ("before_tool", "0.1"), ("on_error", "0.1", "why"),
        ("before_tool", "0.2"), ("after_tool", "0.2", "n"),
        ("before_model", "1"), ("after_model", "1", FINAL),
        ("on_run_end", "", "final"),
    ]  # fmt: skip


@WAYS
def test_hooks_of_runs_are_called_for_sub_runs_too(way: Way) -> None:
    hooks = Noting()
    way(agent_with(hooks, plan(task("a", "x")), "<final>task</final>", FINAL))
    assert [note for note in hooks.notes if note[0].startswith("on_run")] == [
        ("on_run_start", ""), ("on_run_start", "0.a"), ("on_run_end", "0.a", "final"), ("on_run_end", "", "final"),
    ]  # fmt: skip


@WAYS
def test_a_before_hook_may_change_the_call_or_answer_it(way: Way) -> None:
    class Changing(Hooks):
        def before_tool(self, ctx: HookContext) -> None:
            effect = ctx.effect
            assert isinstance(effect, CallSkill)
            if effect.arguments["text"] == "change":
                ctx.effect = effect.replace(arguments={"text": "changed"})
            else:
                ctx.result = "preset"

        def before_model(self, ctx: HookContext) -> None:
            if ctx.call_id == "1":
                ctx.response = LlmResponse("<final>preset</final>")

        def after_tool(self, ctx: HookContext) -> None:
            ctx.result = f"{ctx.result}!"

    recorder = Recorder()
    agent = agent_with(Changing(), command("echo", "change") + command("echo", "other"), "never")
    assert way(agent, recorder=recorder).text == "preset"
    assert [one["result"] for one in data_of(recorder, "skill_result")] == ["changed!", "preset!"]


class Verdict(Hooks):
    def __init__(self, *verdicts: Any) -> None:
        self.verdicts = list(verdicts)
        self.attempts: list[int] = []

    def on_error(self, ctx: HookContext, error: Exception) -> Any:
        self.attempts.append(ctx.attempt)
        return self.verdicts.pop(0)


@WAYS
@pytest.mark.parametrize("verdicts, stop, text", [
    *[(["retry"] * times, "final", "done") for times in (1, 2)],
    *[([verdict], "error", None) for verdict in (None, "fail", "skip", "retrry", False, "fallback")],
    ([LlmResponse("<final>instead</final>")], "final", "instead"),
])
def test_on_error_decides_how_a_failed_model_call_continues(way: Way, verdicts: list[Any], stop: str, text: str | None) -> None:
    hooks = Verdict(*verdicts)
    answers = [RETRYABLE] * len(verdicts)
    result = way(agent_with(hooks, *answers, FINAL))
    assert (result.stop_reason, result.text) == (stop, text)
    assert hooks.attempts == [*range(len(verdicts))]
    assert result.error is None or isinstance(result.error, ProviderError)


@WAYS
@pytest.mark.parametrize("verdict, stop, error, results", [
    ("retry", "final", None, ["at last"]),
    *[(verdict, "final", "not yet", []) for verdict in (None, "skip")],
    ("fail", "error", "not yet", []),
    *[(wrong, "final", f"Verdict.on_error must return 'retry', 'fail', 'skip', None or a SkillResult, got {wrong!r}", [])
      for wrong in ("retrry", "instead", "fallback", False)],
    (kernai.SkillResult("retry"), "final", None, ["retry"]),
], ids=str)
def test_on_error_decides_how_a_failed_tool_call_continues(
    way: Way, verdict: Any, stop: str, error: str | None, results: list[str]
) -> None:
    outcomes: list[Any] = [ValueError("not yet"), "at last"]

    @skill(register=False)
    def flaky() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return str(outcome)

    recorder = Recorder()
    agent = agent_with(Verdict(verdict), command("flaky"), FINAL).replace(skills=[flaky])
    result = way(agent, recorder=recorder)
    assert result.stop_reason == stop
    assert [one["error"] for one in data_of(recorder, "skill_error")] == ([error] if error else [])
    assert [one["result"] for one in data_of(recorder, "skill_result")] == results


@WAYS
def test_on_run_start_may_stop_the_run(way: Way) -> None:
    class Closed(Noting):
        def on_run_start(self, run: Any) -> None:
            raise Stop("guardrail", "closed today")

    hooks = Closed()
    result = way(agent_with(hooks, FINAL))
    assert (result.stop_reason, str(result.error)) == ("guardrail", "closed today")
    assert hooks.notes == [("on_run_end", "", "guardrail")]


@WAYS
@pytest.mark.parametrize("error", [ValueError("late"), Stop("guardrail", "late"), kernai.Pause("late")], ids=repr)
def test_an_exception_in_on_run_end_changes_nothing(way: Way, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    class Breaks(Hooks):
        def on_run_end(self, run: Any, result: Any) -> None:
            raise error

    assert way(agent_with(Breaks(), FINAL)).text == "done"
    assert f"on_run_end raised {type(error).__name__}" in caplog.text


@WAYS
@pytest.mark.parametrize("has_begun", [True, False])
def test_on_run_end_is_called_when_the_hosts_code_ends_a_run_that_has_begun_with_an_exception(way: Way, has_begun: bool) -> None:
    def instructions() -> str:
        if hooks.notes or not has_begun:
            raise LookupError("no more")
        return "x"

    hooks = Noting()
    agent = agent_with(hooks, command("echo", "x"), FINAL)
    agent.update_instructions(instructions)
    with pytest.raises(LookupError):
        way(agent)
    assert hooks.notes[-1:] == [("on_run_end", "", "error")] * has_begun


@WAYS
def test_on_error_may_use_a_fallback_earlier_in_the_list(way: Way) -> None:
    def down() -> MockProvider:
        return MockProvider().fail_on_step(0, ProviderError("down"))

    backup = fallback(MockProvider("<final>backup</final>"))
    before = Agent(instructions="", provider=down(), middleware=[backup, Verdict("fallback")])
    assert way(before).text == "backup"
    behind = Agent(instructions="", provider=down(), middleware=[Verdict("fallback"), fallback(down())])
    assert str(way(behind).error) == "Verdict.on_error returned 'fallback', but no fallback() is before it in the list: down"


def plain(self: Hooks, ctx: HookContext) -> None: ...


async def asynchronous(self: Hooks, ctx: HookContext) -> None: ...


def generator(self: Hooks, ctx: HookContext) -> Any:
    yield


@pytest.mark.parametrize("name, function, says", [
    ("before_model", asynchronous, r"Guard.before_model must be a plain function of \(self, ctx\), got the async function <function asynchronous"),
    ("before_tool", generator, r"Guard.before_tool must be a plain function of \(self, ctx\), got the generator <function generator"),
    ("before_tools", plain, "Guard.before_tools is not a hook and would never be called; did you mean 'before_tool'?"),
    ("befor_tool", plain, "Guard.befor_tool is not a hook and would never be called; did you mean 'before_tool'?"),
    ("on_token", plain, "Guard.on_token is not a hook and would never be called; they are on_run_start, on_run_end, before_model"),
    ("before_tool", lambda self: None, r"Guard.before_tool must be a function of \(self, ctx\): too many positional arguments"),
    ("on_error", lambda self, ctx, error, how: None, r"Guard.on_error must be a function of \(self, ctx, error\): missing a required argument: 'how'"),
])  # fmt: skip
def test_a_misspelt_or_unusable_hook_is_an_error_when_the_class_is_defined(name: str, function: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        type("Guard", (Hooks,), {name: function})


def test_hooks_may_be_static_have_defaults_helpers_and_another_base_class() -> None:
    class Named:
        name = ""

        def __init_subclass__(cls, name: str) -> None:
            cls.name = name

    class Fine(Hooks, Named, name="fine"):
        on_record = 5

        @staticmethod
        def before_tool(ctx: Any) -> None: ...
        def after_tool(self, ctx: Any, extra: int = 0) -> None: ...
        def before_model(self, *given: Any) -> None: ...
        def helper(self, anything: str) -> None: ...
        def after(self, model: str) -> None: ...

    assert (callable(Fine()), Fine.name) == (True, "fine")


@WAYS
@pytest.mark.parametrize("hook", ["before_tool", "after_tool", "before_model", "after_model"])
def test_a_hook_that_returns_a_value_or_sets_the_wrong_outcome_fails_the_call(way: Way, hook: str) -> None:
    outcomes = ("response", "result") if hook.endswith("model") else ("result", "response")
    for guard, text in (
        (lambda self, ctx: False, "returned False, which has no effect: raise, or set ctx.{}"),
        (lambda self, ctx: setattr(ctx, outcomes[1], "no"), "set ctx.{1}, which has no effect here: set ctx.{0}"),
    ):
        recorder, guards = Recorder(), type("Guard", (Hooks,), {hook: guard})
        result = way(agent_with(guards(), command("echo", "hi"), FINAL), recorder=recorder)
        errors = [str(result.error), *(one["error"] for one in data_of(recorder, "skill_error"))]
        assert any(text.format(*outcomes) in error for error in errors)
        assert not data_of(recorder, "skill_result")


# ------------------------------------------------------------------ Stop("final", text): the run ends with that answer


def finishing(hook: str, text: str = "enough", skill: str | None = None) -> Hooks:
    """Return hooks of which one finishes the run, if given only at a call of `skill`."""

    def one(self: Hooks, ctx: Any) -> None:
        if skill in (None, getattr(ctx.effect, "skill", None)):
            raise Stop("final", text)

    def two(self: Hooks, ctx: Any, error: Exception) -> None:
        one(self, ctx)

    made: Hooks = type("Finishing", (Hooks,), {hook: two if hook == "on_error" else one})()
    return made


def look() -> str:
    return "seen"


def break_down() -> str:
    raise LookupError("nothing there")


def worker(*hooks: Hooks, **options: Any) -> Agent[Any]:
    skills = [Skill(one.__name__, execute=one, inputs={}) for one in (look, break_down)]
    return Agent(**{"instructions": "x", "skills": skills, "middleware": list(hooks), **options})


@WAYS
@pytest.mark.parametrize("hook", ["before_model", "after_model", "before_tool", "after_tool", "on_error"])
def test_a_hook_of_a_call_finishes_the_run_with_its_text(way: Way, hook: str) -> None:
    recorder = Recorder()
    calls = command("break_down" if hook == "on_error" else "look")
    result = way(worker(finishing(hook), provider=MockProvider(calls, "<final>later</final>")), recorder=recorder)
    assert (result.text, result.stop_reason, result.error, result.steps) == ("enough", "final", None, 1)
    assert data_of(recorder, "final") == ["enough"]
    roles = [message.role for message in result.messages]
    assert roles[-1] == "assistant"
    assert all(before != after for before, after in pairwise(roles)), "some templates want it so"


@WAYS
def test_a_skill_may_finish_the_run_and_tags_in_its_text_stay_text(way: Way) -> None:
    def finish(ctx: SkillContext[Any]) -> str:
        raise Stop("final", "use <command> here")

    it = Agent(instructions="x", skills=[Skill("finish", execute=finish)], provider=MockProvider(command("finish")))
    result = way(it)
    assert result.text == "use <command> here"
    assert result.messages[-1].text == '<block type="final">use &lt;command> here</block>'


@WAYS
def test_the_text_of_a_hook_is_checked_like_a_models_answer(way: Way) -> None:
    model, outputs = MockProvider(), list[Any]()
    for text in ("8", "many"):
        model = MockProvider(command("look"), "<final>7</final>")
        outputs.append(way(worker(finishing("after_tool", text), output=int, provider=model)).output)
    assert outputs == [8, 7]
    assert "Your answer cannot be used" in (model.messages_at(1) or ())[-1].text


@WAYS
@pytest.mark.parametrize("guarded", [False, True])
def test_concurrent_calls_end_first_and_a_guardrail_takes_precedence_over_the_answer(way: Way, guarded: bool) -> None:
    ended: list[str] = []

    def slow(ctx: SkillContext[Any]) -> str:
        ended.append("slow")
        if guarded:
            raise Stop("guardrail", "not that")
        return "slow"

    it = worker(finishing("before_tool", skill="look"), parallel_skills=True)
    it = it.replace(skills=[*(it.skills or ()), Skill("slow", execute=slow)])
    result = way(it.replace(provider=MockProvider(command("look") + command("slow"))))
    assert ended == ["slow"]
    assert result.stop_reason == ("guardrail" if guarded else "final")
    assert result.text == (None if guarded else "enough")


@WAYS
def test_in_a_sub_run_a_stop_is_the_answer_of_only_that_sub_run(way: Way) -> None:
    clerk = worker(finishing("before_tool", "the clerk's", "look")).as_skill("clerk", "Helps.")
    scripts = {
        "go": [command("clerk", "help"), plan(task("a")), "<final>done</final>"], "help": [command("look")],
        "a": [command("break_down")],
    }
    it = worker(finishing("on_error", "the task's", "break_down"))
    it = it.replace(skills=[*(it.skills or ()), clerk], provider=provider(scripts))
    result = way(it)
    assert result.text == "done"
    assert "the clerk's" in result.messages[2].text
    assert "the task's" in result.messages[4].text


@EACH_WAY
@AT_ONCE
@pytest.mark.parametrize("hook", ["before_tool", "after_model"])
def test_a_run_finished_by_a_hook_can_be_resumed_replayed_and_continued(way: DurableWay, hook: str, at_once: bool) -> None:
    it = worker(finishing(hook, skill="look" if hook == "before_tool" else None), parallel_skills=at_once)
    run = Stored(way, it, {"go": [command("break_down") + command("look") + command("break_down")]})
    result = run.execute()
    assert result.text == "enough"
    again = run.resume()
    assert (again.text, again.messages, again.usage, again.steps) == (result.text, result.messages, result.usage, result.steps)
    assert run.replay() == result
    run.agent = worker(parallel_skills=at_once)
    for turn in range(2):
        more = run.resume(input="more", provider=MockProvider(f"<final>{turn}</final>"))
        assert more.text == str(turn)
        assert more.messages[:len(result.messages)] == result.messages
        assert run.replay() == more
