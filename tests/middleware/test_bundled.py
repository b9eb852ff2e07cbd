"""The bundled middleware does what its documentation says, under every driver."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import Agent, LlmResponse, Media, MemoryStore, Message, MockProvider, Model, ProviderError, Recorder, skill
from kernai.errors import Pause, Stop, error_text
from kernai.loop.effects import CallModel
from kernai.middleware import Sleep, compact, fallback, guardrail, redact, retry, timeout
from kernai.middleware.bundled import _compacted
from kernai.testing import ByHand
from kernai.values.message import ConversationView
from tests.loop.loop_cases import command, plan, task
from tests.middleware.asking import BOTH, FINAL, RETRYABLE, Script, agent_with, data_of, echo, types
from tests.middleware.test_model_calls import AsyncWaits, Waits
from tests.ways import WAYS, Way
from tests.written import call


def asked(hand: ByHand, kind: str) -> list[Any]:
    return [effect for effect in hand.effects if type(effect).__name__ == kind]


# ------------------------------------------------------------------------------------------------- retry


@pytest.mark.parametrize("error, draw, waits", [
    (RETRYABLE, 0.0, [0.25, 0.5, 1.0, 2.0, 4.0]),
    (RETRYABLE, 1.0, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[60] * 480]),
    *[(ProviderError("x", retryable=True, retry_after=after), 0.5, [after] * 5) for after in (0, 3, 60)],
    *[(ProviderError("x", retryable=True, retry_after=after), 1.0, [0.5, 1.0, 2.0, 4.0, 8.0]) for after in (float("nan"), -1)],
    *[(ProviderError("x", retryable=True, retry_after=after), 1.0, []) for after in (61, float("inf"))],
    (ProviderError("x", retryable=False), 1.0, []),
])  # fmt: skip
def test_retry_waits_as_long_as_the_vendor_says_or_with_exponential_backoff_if_a_retry_can_succeed(
    error: ProviderError, draw: float, waits: list[float]
) -> None:
    provider = Script(error)
    hand = ByHand(agent_with(provider, retry(max(6, len(waits) + 1), draw=lambda: draw)))
    assert str(hand.run("go").error) == str(error)
    assert ([effect.seconds for effect in asked(hand, "Sleep")], len(provider.asked)) == (waits, len(waits) + 1)


# ------------------------------------------------------------------------------------------------- fallback


@WAYS
@BOTH
def test_fallback_calls_another_model_if_the_first_fails(way: Way, kind: type[Script]) -> None:
    recorder = Recorder()
    first, other = Model("first", cost=(100.0, 1000.0)), Model("other", cost=(1.0, 10.0))
    agent = agent_with(kind(ProviderError("down")), fallback(kind(FINAL), other), model=first)
    result = way(agent, recorder=recorder, limits=kernai.Limits(max_cost=1.0))
    assert (result.text, result.usage.cost) == ("done", 0.002)
    assert data_of(recorder, "llm_response")[0]["model"] == "other"


def test_the_innermost_fallback_is_tried_first_and_the_last_error_is_reported() -> None:
    first, second, third = Script(ProviderError("1")), Script(ProviderError("2")), Script(ProviderError("3"))
    result = ByHand(agent_with(first, fallback(third), fallback(second))).run("go")
    assert (len(first.asked), len(third.asked), str(result.error)) == (1, 1, "2")
    only_model = Script(ProviderError("1"), FINAL)
    assert ByHand(agent_with(only_model, fallback(model=Model("small")))).run("go").text == "done"
    assert [model.id for _, model in only_model.asked] == ["text-only", "small"]


# ------------------------------------------------------------------------------------------------- guardrail


@WAYS
@pytest.mark.parametrize(
    "verdict, stopped", [(None, None), (True, None), (False, "a guardrail has stopped the run"), ("why", "why"), ("", "a guardrail has stopped the run"),
     (5, "a guardrail's check must return True, False, None or a text, got 5")],
)
def test_guardrail_stops_the_run_if_its_check_objects(way: Way, verdict: Any, stopped: str | None) -> None:
    checked: list[str] = []

    def check(effect: object) -> Any:
        checked.append(type(effect).__name__)
        return verdict if checked[-1] == "CallSkill" else None

    result = way(agent_with(Script(command("echo", "x"), FINAL), guardrail(check), skills=[echo]))
    assert checked == ["CallModel", "CallSkill", *([] if stopped else ["CallModel"])], "no answers, unless asked for"
    assert (result.stop_reason, result.error and str(result.error)) == ("guardrail" if stopped else "final", stopped)


@WAYS
@BOTH
def test_an_answer_stopped_by_a_guardrail_is_not_shown(way: Way, kind: type[Script]) -> None:
    def check(what: object) -> bool:
        return not (isinstance(what, LlmResponse) and "secret" in what.content)

    live: list[kernai.Event] = []
    result = way(agent_with(kind("the secret is 42"), guardrail(check, answers=True)), on_event=live.append)
    assert result.stop_reason == "guardrail"
    assert "secret" not in str([event.to_dict() for event in live])
    assert way(agent_with(kind(FINAL), guardrail(check, answers=True))).text == "done"


# ------------------------------------------------------------------------------------------------- timeout


@WAYS
@pytest.mark.parametrize("kind", [Waits, AsyncWaits], ids=["call", "acall"])
def test_each_attempt_has_its_own_timeout(way: Way, kind: type[Waits]) -> None:
    provider = kind()
    result = way(agent_with(provider, retry(2, first_wait=0), timeout(0.02)))
    assert getattr(result.error, "code", None) == "timeout"
    assert provider.deadlines == sorted(set(provider.deadlines))  # a worker may begin too late to call the provider


def test_the_shorter_of_two_timeouts_applies() -> None:
    for one, other in ((1, 2), (2, 1)):
        hand = ByHand(agent_with(Script(FINAL), timeout(one), timeout(other)))
        hand.run("go")
        assert [effect.timeout for effect in asked(hand, "CallModel")] == [1]


# ------------------------------------------------------------------------------------------------- redact

SECRET = "4929-1234"


@WAYS
@BOTH
@pytest.mark.parametrize("listening", [False, True], ids=["unwatched", "watched"])
def test_a_redacted_secret_is_in_nothing_that_is_recorded_or_sent(way: Way, kind: type[Script], listening: bool) -> None:
    @skill(register=False)
    def card(form: str) -> Any:
        forms = {
            "text": SECRET,
            "data": {"card": json.dumps([f"number:\n{SECRET}"])},  # the end of an escape in JSON is no word boundary
            "parts": ["card ", SECRET, Media.from_bytes(b"x", mime_type="image/png")],
            "result": kernai.SkillResult(SECRET, metadata={"card": {"number": (SECRET,)}}),
            "number": 4,
            "none": None,
        }
        if form == "error":
            raise ValueError(f"no such card: {SECRET}")
        return forms[form]

    forms = ["text", "data", "parts", "result", "number", "none", "error"]
    calls = "".join(command("card", form) for form in forms) + '<block type="cards">x</block><block type="cards">y</block>'
    provider = kind(
        LlmResponse(calls + f"<plan>{SECRET}</plan>", metadata={"reasoning": [SECRET]}), f"<final>It is {SECRET}.</final>"
    )
    protocol = kernai.Protocol("cards", lambda block, ctx: Message("user", f"card {SECRET}") if block.content == "x" else SECRET)
    recorder, live = Recorder(), list[kernai.Event]()
    agent = agent_with(provider, redact(r"\b\d{4}-\d{4}"), skills=[card], protocols=[protocol], parallel_skills=True)
    result = way(agent, recorder=recorder, **({"on_event": live.append} if listening else {}))
    assert result.text == "It is [redacted]."
    everything = str([recorder.to_list(), [event.to_dict() for event in live], result.to_dict(), provider.asked])
    assert (SECRET in everything, "[redacted]" in everything) == (False, True)
    results = {one["call_id"]: one["result"] for one in data_of(recorder, "skill_result")}
    assert (results["0.1"], results["0.4"]) == (json.dumps({"card": '["number:\\n[redacted]"]'}), "4")
    assert "model_restarted" not in types(recorder)
    assert ("text_chunk" in [event.type for event in live]) is False or listening


class Asked(Pause):
    def __init__(self, until: datetime) -> None:
        super().__init__(f"pay with {SECRET}?", {"cards": [SECRET]}, until=until)


class Unknown(Stop):
    def __init__(self) -> None:
        super().__init__("guardrail", f"no such card: {SECRET}")


@WAYS
@pytest.mark.parametrize("raised, reason", [(Asked(datetime(2026, 11, 20, tzinfo=UTC)), "interrupt"), (Unknown(), "guardrail")])
def test_a_redacted_secret_is_neither_in_a_pause_nor_in_a_stop(way: Way, raised: BaseException, reason: str) -> None:
    def pay() -> str:
        raise raised

    store = MemoryStore()
    agent = agent_with(Script(command("pay"), FINAL), redact(r"\d{4}-\d{4}"), skills=[kernai.Skill("pay", execute=pay)])
    result = way(agent, store=store, run_id="r")
    assert result.stop_reason == reason
    assert len(list(store.runs(due=True))) == (reason == "interrupt")
    everything = str([list(store.load("r")), result.to_dict(), result.error, result.pending])
    assert (SECRET in everything, "[redacted]" in everything) == (False, True)
    if reason == "interrupt":
        with pytest.raises(kernai.StoreNeededError, match=r"paused \(pay with \[redacted\]\?\)"):
            way(agent.replace(provider=Script(command("pay"))))


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


@pytest.mark.parametrize("raised, kind, args", [
    (Stop("guardrail", f"card {SECRET}"), Stop, ("guardrail", "card X")), (KeyboardInterrupt(SECRET), KeyboardInterrupt, (SECRET,)),
    (ValueError(f"card {SECRET}"), RuntimeError, ("card X",)), (ValueError("plain"), ValueError, ("plain",)),
    (SystemExit(f"card {SECRET}"), SystemExit, ("card X",)), (SystemExit(3), SystemExit, (3,)),
    (noted(ProviderError("no"), f"card {SECRET}"), ProviderError, ("no\ncard X",)),
    (ProviderError(f"card {SECRET}", status=403), ProviderError, ("card X",)), (ProviderError("plain", status=1), ProviderError, ("plain",)),
])  # fmt: skip
def test_all_arguments_of_an_error_are_redacted_and_its_type_and_attributes_are_kept(
    raised: BaseException, kind: type[BaseException], args: tuple[str, ...]
) -> None:
    effect: Any = object()
    before, flow = raised.args, redact(SECRET, "X")(effect)
    next(flow)
    with pytest.raises(BaseException) as caught:
        flow.throw(raised)
    assert (type(caught.value), caught.value.args, raised.args) == (kind, args, before)
    assert getattr(caught.value, "status", None) == getattr(raised, "status", None)
    assert isinstance(caught.value, KeyboardInterrupt) or SECRET not in error_text(caught.value)


# ------------------------------------------------------------------------------------------------- compact


def result_of(characters: int, name: str = "look") -> str:
    return f'<block type="result" name="{name}">{"x" * characters}</block>'


@pytest.mark.parametrize("items, sent", [(None, ()), (["a secret"], ("a ***",)), ([{"type": ["?"], "text": "secret"}], ())])
def test_redact_takes_whatever_a_provider_of_ones_own_keeps_of_its_reasoning(items: Any, sent: Any) -> None:
    first = LlmResponse(command("echo", "x"), metadata={"reasoning_items": items})
    provider = Script(first, FINAL)
    assert kernai.execute(agent_with(provider, redact("secret", "***")), "go").ok
    assert provider.asked[-1][0][-2].reasoning == sent


def test_compact_sends_the_oldest_results_as_one_line_each_and_the_conversation_keeps_them() -> None:
    @skill(register=False)
    def repeat(letter: str) -> str:
        return letter * 400

    steps = [command("repeat", letter) for letter in "abcde"]
    hand = ByHand(agent_with(Script(*steps, FINAL), compact(400), skills=[repeat]))
    result = hand.run("go")
    assert result.text == "done"
    last = [message.text for message in asked(hand, "CallModel")[-1].messages]
    lines = [text for text in last if "left out here" in text]
    assert lines == ['<block type="result" name="repeat">[443 characters, left out here]</block>'] * 3
    assert last[-1] == f'<block type="result" name="repeat">{"e" * 400}</block>'
    assert "left out here" not in str([message.text for message in result.messages])
    assert "left out here" not in str([event.to_dict() for event in hand.recorded])


def test_compact_keeps_the_input_of_a_task_after_the_results_it_depends_on() -> None:
    steps = [plan(task("a"), task("b", "THE TASK b", depends_on=["a"])), f"<final>{'a' * 300}</final>", command("echo", "x" * 2000), FINAL]
    hand = ByHand(agent_with(Script(*steps), compact(400), skills=[echo]))
    assert hand.run("go").text == "done"
    first, second = (effect.messages for effect in asked(hand, "CallModel") if effect.scope == "0.b")
    assert first[1].text.endswith("THE TASK b")
    assert second[1] == first[1]


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.sampled_from("rei"), st.integers(0, 600)), max_size=4), st.integers(0, 200)),
        min_size=1, max_size=12,
    ),
    st.integers(1, 2000),
)  # fmt: skip
def test_shortened_results_stay_shortened_and_results_without_a_response_are_complete(
    steps: list[tuple[list[tuple[str, int]], int]], most: int
) -> None:
    conversation = [Message("user", "go")]
    before: list[str] = []
    for results, answer in steps:
        whole = list(ConversationView(Message("system", "s" * 500), conversation))
        sent = [message.text for message in _compacted(whole, most)]
        # a result before another input gets no response any more: its turn has failed
        unanswered = next((at for at in range(len(whole) - 1, -1, -1) if whole[at].role == "assistant" or whole[at].by), 0)
        assert sent[unanswered:] == [message.text for message in whole[unanswered:]]
        assert all(len(one) <= len(message.text) for one, message in zip(sent, whole, strict=True))
        for was, now, message in zip(before, sent, whole, strict=False):
            assert now == was or (was == message.text and "left out here" in now)
        if sum(len(message.text) for message in whole[1:]) <= most:
            assert sent[1:] == [message.text for message in whole[1:]]
        before = sent
        conversation.append(Message("assistant", "a" * answer))
        for kind, characters in results:
            text = result_of(characters) if kind in "ri" else '<block type="error">x</block>'  # people paste results
            conversation.append(Message("user", text, by="user" if kind == "i" else None))


@pytest.mark.parametrize("characters, first, spare, shortened", [
    (1000, 1341, 1, 5),  # leaves exactly half of the limit
    (1000, 1341, 0, 0),
    (100, 2, 2, 7),  # all results but the one the model has not answered yet; still more than half is left
    (30, 2, 2, 0),  # the replacement would be as long as the result
])  # fmt: skip
def test_beyond_the_limit_the_oldest_results_are_shortened_until_half_is_left(
    characters: int, first: int, spare: int, shortened: int
) -> None:
    pictures = [Media.from_bytes(b"p", mime_type="image/png")] * (characters > 30)
    steps = [Message("assistant", ""), Message("user", [result_of(characters), *pictures])] * 8
    whole = [Message("user", "x" * first), *steps]
    limit = sum(len(message.text) for message in whole) - spare
    results = _compacted([Message("system", "s"), *whole], limit)[3::2]
    assert [("left out here" in one.text, one.has_media) for one in results] == [
        *[(True, False)] * shortened, *[(False, bool(pictures))] * (8 - shortened)]
    failed = _compacted([*whole, Message("user", "And now?", by="user")], 1)  # the last turn has, without a response
    assert {"left out here" in one.text for one in failed[2:-1:2]} == {bool(pictures)}
    of_plan = Message("user", result_of(characters, "tasks"))  # of `execute_plan`, whose results no model has read yet
    assert _compacted([*whole, steps[0], of_plan, Message("user", "And now?", by="user")], 1)[-2] == of_plan


# ------------------------------------------------------------------------------------------------- misuse


wrong: Any = "text"


@pytest.mark.parametrize("make, says", [
    *[(lambda attempts=one: retry(attempts), f"attempts must be a positive int, got {one!r}") for one in (0, wrong, True)],
    *[(lambda make=make, wait=one: make(wait), f"{name} must be a number of seconds from 0 and below 1,000,000, got {one!r}") for name, make in (
        ("first_wait", lambda wait: retry(first_wait=wait)), ("longest_wait", lambda wait: retry(longest_wait=wait)), ("seconds", Sleep),
    ) for one in (-1, float("nan"), float("inf"), 10**9, wrong, None, True)],
    (lambda: fallback(), "needs another provider, another model, or both"),
    (lambda: fallback(wrong), "provider must be a kernai.Provider, got str"),
    (lambda: retry(draw=wrong), "draw must be a plain function of no arguments"),
    (lambda: fallback(model=wrong), "model must be a Model"),
    (lambda: guardrail(wrong), "check must be a plain function"),
    (lambda: guardrail(lambda: True), "check must be a function of the call: too many"),  # type: ignore[misc, arg-type]
    (lambda: compact(9, wrong), r"summary must be a plain function of the messages \(or an agent\), got 'text'"),
    *[(lambda seconds=one: timeout(seconds), "seconds must be a number of seconds above 0") for one in (0, float("nan"), 10**400, wrong)],
    (lambda: agent_with(Script(FINAL), compact(1), retry(1), timeout), r"timeout makes a middleware: write timeout\(\.\.\.\)"),
    *[(lambda most=one: compact(most), "max_tokens must be a positive int") for one in (0, wrong)],
    *[(lambda given=one: redact(*given), says) for one, says in (
        ((5,), "pattern must be a text or a compiled pattern, got int"), ((re.compile(b"x"),), "bytes pattern"),
        (("x", 5), "replacement must be text, got int"), (("x", r"\1"), "invalid group reference"))],
    (lambda: Pause(5), "reason must be text, got int"),  # type: ignore[arg-type]
    (lambda: Pause("x", wrong), "metadata must be a mapping or None, got str"),
])
def test_a_wrong_argument_of_a_bundled_middleware_or_a_sleep_is_an_error_at_once(make: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError, re.error), match=says):
        make()


# ---------------------------------------------------------------------------------------------- compact with a summary


HEADING = "Summary of the conversation so far:\n"


@skill(register=False)
def read(page: int) -> str:
    """Reads a page."""
    return f"page {page}: " + "x" * 400


def calls(pages: int) -> list[str]:
    return [call("read", page=page) for page in range(pages)]


TAPE = [*calls(6), "<final>Read.</final>"]


class Summaries:
    """A function that summarizes, and keeps the messages it was given."""

    def __init__(self, more: str = "") -> None:
        self.given: list[list[str]] = []
        self.more = more

    def __call__(self, messages: Sequence[Message]) -> str:
        self.given.append([message.text for message in messages])
        return f"summary {len(self.given)} <block type='command'>{self.more}"


def reader(provider: MockProvider, summary: Any, most: int = 400) -> Agent:
    return Agent(instructions="Be brief.", provider=provider, skills=[read], middleware=[compact(most, summary)])


@WAYS
def test_the_older_half_is_replaced_by_a_summary(way: Way) -> None:
    provider, summary, recorder = MockProvider(*TAPE), Summaries(), Recorder()
    result = way(reader(provider, summary), recorder=recorder)
    assert (result.text, len(summary.given) >= 1) == ("Read.", True)
    assert all(sum(len(message.text) for message in one.messages[1:]) < 2400 for one in provider.calls)
    sent = provider.calls[-1].messages
    assert sent[1].text.startswith(HEADING)
    assert "&lt;block" in sent[1].text
    assert sent[2].role == "assistant"
    for one_call in provider.calls:  # the kept part starts with a response, followed by its results
        roles = [message.role for message in one_call.messages[1:]]
        assert all(pair != ("assistant", "assistant") for pair in itertools.pairwise(roles))
    assert len(result.messages) == 14  # the conversation itself keeps all messages
    assert all("Summary of" not in str(event.to_dict()) for event in recorder.for_event("messages_sent"))


@pytest.mark.parametrize("more, summaries", [(0, 0), (1, 1)])
def test_after_a_summary_about_half_of_the_limit_is_left_of_the_conversation(more: int, summaries: int) -> None:
    provider, summary = MockProvider("<final>Read.</final>"), Summaries()
    history = [Message("user", "q" * 55), Message("assistant", "a" * 10), Message("user", "b" * 10), Message("assistant", "c" * 10)]
    kernai.execute(reader(provider, summary, 25), "d" * (15 + more), history=history)
    assert (len(summary.given), provider.calls[0].messages[2].text) == (summaries, "a" * 10)


def test_a_second_summary_includes_the_first_and_the_length_of_summaries_counts() -> None:
    provider, summary = MockProvider(*calls(14), "<final>Read.</final>"), Summaries("s" * 700)
    kernai.execute(reader(provider, summary), "Go.")
    assert len(summary.given) > 1
    assert summary.given[1][0].startswith(f"{HEADING}summary 1 &lt;block type='command'>")
    assert all(sum(len(message.text) for message in one.messages[1:]) < 2400 for one in provider.calls)
    pages = [text for given in summary.given for text in given if text.startswith('<block type="result"')]
    assert len(pages) == len(set(pages))  # no message is summarized twice


def test_a_conversation_without_its_system_message_is_summarized_from_its_first_message() -> None:
    def without_system(effect: Any) -> Any:
        return (yield effect.replace(messages=effect.messages[1:]) if isinstance(effect, CallModel) else effect)

    provider, summary = MockProvider(*TAPE), Summaries()
    one = reader(provider, summary)
    kernai.execute(one.replace(middleware=[without_system, *(one.middleware or ())]), "Go.")
    assert summary.given[0][0] == "Go."
    assert provider.calls[-1].messages[0].text.startswith(HEADING)


@pytest.mark.parametrize("stop_at", [5, 6])
def test_a_resumed_run_uses_the_existing_summary(stop_at: int) -> None:
    store, first, second = MemoryStore(), Summaries(), Summaries()
    broken = MockProvider(*TAPE).fail_on_step(stop_at)
    kernai.execute(reader(broken, first), "Go.", store=store, run_id="r")
    rest = MockProvider(*TAPE[stop_at:])
    result = kernai.resume(reader(rest, second), "r", store=store)
    assert result.text == "Read."
    assert (len(first.given), second.given) == (1, [])
    assert rest.calls[0].messages[1].text.startswith(f"{HEADING}summary 1")
    assert kernai.replay(reader(MockProvider(), Summaries()), "r", store=store) is not None


def test_the_next_turn_of_a_chat_uses_the_existing_summary() -> None:
    provider, summary = MockProvider(*TAPE), Summaries()
    first = reader(provider, summary)
    messages = kernai.execute(first.replace(middleware=[redact("summary ", "brief "), *(first.middleware or ())]), "Go.").messages
    saved = [Message.from_dict(json.loads(json.dumps(message.to_dict()))) for message in messages]
    more, again = MockProvider("<final>Yes.</final>"), Summaries()
    kernai.execute(reader(more, again, 800), "And?", history=saved)
    assert more.calls[0].messages[1].text.startswith(f"{HEADING}brief {len(summary.given)}")


@pytest.mark.parametrize("summary, first", [("In short.", f"{HEADING}In short."), (" ", "Go.")])
def test_a_summary_by_an_agent_is_a_separate_model_call_and_a_blank_one_replaces_nothing(summary: str, first: str) -> None:
    writer, provider, live = MockProvider(summary), MockProvider(*TAPE), list[kernai.Event]()
    small = Agent(instructions="Summarize.", provider=writer, model=kernai.Model("small"))
    assert kernai.execute(reader(provider, small), "Go.", on_event=live.append).text == "Read."
    assert "text_chunk" not in {one.type for one in live}  # a summary is not shown
    beside = MockProvider(*TAPE)  # the summary's agent has a model, but no provider
    kernai.execute(reader(beside, small.replace(provider=None)), "Go.")
    assert {call.model.id for call in beside.calls} == {"text-only", "small"}
    assert (writer.calls[0].messages[0].text, writer.calls[0].model.id) == ("Summarize.", "small")
    assert writer.calls[0].messages[1].text.startswith("user: Go.\n\nassistant: ")
    assert provider.calls[-1].messages[1].text == first


@WAYS
def test_the_usage_of_a_summary_is_in_the_result_and_counts_against_the_limits(way: Way) -> None:
    def agent() -> Agent:
        writer = MockProvider(LlmResponse("In short.", prompt_tokens=900, completion_tokens=100))
        tape = MockProvider(*TAPE).with_token_counter(lambda messages, content: {"prompt_tokens": 10, "completion_tokens": 1})
        small = Agent(instructions="Summarize.", provider=writer, model=Model("without a price"))
        return reader(tape, small).replace(model=Model("big", cost=(1, 1)))

    usage = way(agent()).usage
    summaries = usage.model_calls - len(TAPE)
    assert (summaries >= 1, usage.total_tokens) == (True, 11 * len(TAPE) + 1000 * summaries)
    for reason, limits in {"max_tokens": kernai.Limits(max_tokens=1000), "max_cost": kernai.Limits(max_cost=0.001)}.items():
        store = MemoryStore()
        stopped = way(agent(), limits=limits, store=store, run_id="r")
        again = kernai.resume(agent(), "r", limits=limits, store=store)
        assert (stopped.stop_reason, again.stop_reason, again.usage) == (reason, reason, stopped.usage)


def test_a_summary_function_that_fails_or_returns_no_text_fails_the_call() -> None:
    def broken(messages: Sequence[Message]) -> str:
        raise RuntimeError("no")

    assert "RuntimeError: no" in str(kernai.execute(reader(MockProvider(*TAPE), broken), "Go.").error)

    for silent in (None, "", 5):
        result = kernai.execute(reader(MockProvider(*TAPE), lambda messages, silent=silent: silent), "Go.")
        assert "compact's summary function must return text, got" in str(result.error)

    async def later(messages: Sequence[Message]) -> str:
        return ""

    for wrong in (5, later, Agent(instructions=lambda: "x")):
        with pytest.raises(TypeError, match="summary must be"):
            compact(100, wrong)  # type: ignore[arg-type]  # the subject


def test_the_summary_of_a_native_conversation_keeps_calls_and_results_together() -> None:
    provider, summary = MockProvider(*TAPE[:-1], "Read.", native=True), Summaries()
    one = reader(provider, summary).replace(calls="native")
    assert kernai.execute(one, "Go.").text == "Read."
    sent = provider.calls[-1].messages
    assert sent[1].text.startswith(HEADING)
    assert (sent[2].blocks is not None, sent[3].answers) == (True, 0)
    response = LlmResponse("x", metadata={"reasoning_items": [{"type": "summary_of_conversation"}]})
    assert response.message().reasoning
