"""Real durable runs on the page: pauses and who decided, resumes, and the events that a resume left out."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

import kernai
from kernai import Agent, Decision, Limits, MemoryStore, MockProvider, Protocol, skill
from kernai.recording.recorder import expand
from tests.viewer.conftest import Show, box_of, rows, step_card


class Counted(kernai.Context):
    """A context that is saved."""

    paid = 0

    def save(self) -> int:
        return self.paid

    def restore(self, data: int) -> None:
        self.paid = data


def clerk(**options: Any) -> Agent:
    def answer(messages: Any, _: object) -> str:
        last = messages[-1].text
        if last.startswith("Refund"):
            return '<command name="refund">{"amount": 30}</command>'
        return "<final>All done.</final>" if "paid" in last or "error" in last else f"<final>{last}? Gladly.</final>"

    @skill(register=False, approval=True)
    def refund(amount: int, ctx: kernai.SkillContext[Any]) -> str:
        if isinstance(ctx.run_context, Counted):
            ctx.run_context.paid = amount
        return f"{amount} paid"

    return Agent(name="clerk", instructions="You refund.", skills=[refund], protocols=[],
                 provider=MockProvider().on_call(answer), **options)


def down(*_: object) -> str:
    raise kernai.ProviderError("the vendor is down", status=503)


def paused() -> MemoryStore:
    store = MemoryStore()
    kernai.execute(clerk(), "Refund it", store=store, run_id="r", context=Counted())
    return store


def cut_off() -> MemoryStore:
    """A store with a run that broke off during its only call."""
    store, broken = paused(), MemoryStore()
    kernai.resume(clerk(), "r", store=store, approvals={"0.0": True}, context=Counted())
    whole = store.load("r")
    broken.append("r", 0, whole[: [entry["event"] for entry in whole].index("skill_result")], [])
    return broken


def entries(store: MemoryStore) -> list[dict[str, Any]]:
    return list(expand(store.load("r"), "r"))


def test_a_waiting_run_is_shown_as_waiting_and_not_as_failed(show: Show) -> None:
    page = show(entries(paused()))
    expect(page.locator("#conversation .outcome-first")).to_contain_text("Waits for a decision")
    expect(step_card(page, 0).locator(".decision")).to_contain_text("waits for a decision")
    expect(page.locator("#conversation .card.end")).to_contain_text("Run waits for a decision")
    expect(page.locator("#head .pill.open")).to_have_text("waiting")
    assert page.locator(".bad").count() == 0


def trusting(directory: bool) -> MemoryStore:
    """A run that pays the recipient whom a skill has named, and whom only a directory vouches for."""

    @skill(register=False, directory=directory)
    def read() -> list[str]:
        return ["eve@x.org"]

    @skill(register=False)
    def pay(recipient: kernai.Trusted[str], amount: kernai.Trusted[int]) -> str:
        return "paid"

    call = '<command name="pay">{"recipient": "eve@x.org", "amount": 50}</command>'
    agent = Agent(instructions="", skills=[read, pay], provider=MockProvider('<command name="read"></command>', call, "<final>ok</final>"))
    store = MemoryStore()
    kernai.execute(agent, "Pay 50.", store=store, run_id="r")
    return store


def test_a_value_that_did_not_come_from_the_user_is_shown_at_its_call_with_its_source(show: Show) -> None:
    doubt = step_card(show(entries(trusting(False))), 1).locator(".decision").filter(has_text="is not in the user's words")
    expect(doubt).to_contain_text("recipient is not in the user's words")
    expect(doubt).to_contain_text("which is in the result of `read`")


def test_a_call_shows_where_its_trusted_values_came_from(show: Show) -> None:
    page = show(entries(trusting(True)))
    expect(step_card(page, 0).locator(".decision")).to_have_count(0)
    note = step_card(page, 1).locator(".decision")
    expect(note).to_have_count(1)
    expect(note).to_contain_text("recipient is in the result of `read`, a directory")
    expect(note).to_contain_text("amount is in the user's input")


def test_a_call_of_a_protocol_shows_the_name_of_its_block(show: Show) -> None:
    store, said = MemoryStore(), '<block type="sql" name="prod">drop</block>'
    agent = Agent(instructions="", protocols=[Protocol("sql", lambda block, ctx: "done")], provider=MockProvider(said, "<final>ok</final>"))
    kernai.execute(agent, "Go.", store=store, run_id="r")
    expect(step_card(show(entries(store)), 0).locator(".block.call > header .fact")).to_have_text(["protocol", "prod"])


@pytest.mark.parametrize("given, label, outcome", [
    (True, "approved by ann", "30 paid"),
    ({"params": {"amount": 5}}, "approved by ann with other parameters", "5 paid"),
    ("too much", "refused by ann", "too much"),
])  # fmt: skip
def test_a_decision_is_shown_at_its_call_with_who_made_it(show: Show, given: Any, label: str, outcome: str) -> None:
    store = paused()
    kernai.resume(clerk(), "r", store=store, approvals={"0.0": Decision(given, by="ann")}, context=Counted())
    page = show(entries(store))
    expect(page.locator("#conversation .outcome-first")).to_contain_text("All done.")
    expect(step_card(page, 0).locator(".decision")).to_have_count(2)
    waited, decided = step_card(page, 0).locator(".decision").all()
    expect(waited.locator(".pill")).to_have_text("waits for a decision")
    expect(decided.locator(".pill")).to_have_text(label)
    expect(step_card(page, 0).locator(".outcome")).to_contain_text(outcome)
    resume = step_card(page, 0).locator(".block.resume")
    expect(resume).to_contain_text("The run continues here")
    expect(resume).to_contain_text("later")
    resume.get_by_role("button", name="What was left out: 1 event").click()
    expect(resume.locator(".left-out")).to_contain_text("Run waits for a decision")


def test_the_time_line_shows_how_long_a_run_waited_for_a_decision(show: Show) -> None:
    store = paused()
    for step in rows_that_wait(show(entries(store))).values():
        assert step < 6, "still waited for: a mark where it was asked"
    kernai.resume(clerk(), "r", store=store, approvals={"0.0": True}, context=Counted())
    recorded = entries(store)
    for at, entry in enumerate(recorded):  # requested in minute 1, decided in minute 5, ended after minute 10
        decided = next(n for n, one in enumerate(recorded) if one["event"] == "run_resumed") <= at
        entry["timestamp"] = f"2026-11-22T10:{(5 if decided else 1) if 0 < at < len(recorded) - 1 else 10 if at else 0:02}:00.000Z"
    page = show(recorded)
    waits = rows_that_wait(page)
    assert list(waits) == ["Step 0 · refund"]
    whole = box_of(page.locator("#tree .row .bar.run").first)
    assert all(0.35 < width / whole["width"] < 0.45 for width in waits.values())


def rows_that_wait(page: Page) -> dict[str, float]:
    """Return the rows with a mark, and how long each mark is."""
    found = page.locator("#tree .row", has=page.locator(".bar.wait")).all()
    return {row.locator(".name").inner_text(): box_of(row.locator(".bar.wait"))["width"] for row in found}


def test_the_usage_of_failed_calls_is_in_the_sums(show: Show) -> None:
    class Failing(kernai.Provider):
        def call(self, messages: Any, model: Any, generation: Any, on_chunk: Any) -> kernai.LlmResponse:
            on_chunk.report_usage(kernai.Usage(prompt_tokens=1000, cost=0.25))
            raise kernai.ProviderError("the line went dead")

    store = MemoryStore()
    kernai.execute(clerk(), "Good day", store=store, run_id="r", provider=Failing())
    kernai.resume(clerk(), "r", store=store)
    expect(show(entries(store)).locator("#head")).to_contain_text("2 model calls")


def test_events_that_a_resume_left_out_are_listed_and_marked(show: Show) -> None:
    store = MemoryStore()
    kernai.execute(clerk(approve=lambda call: True), "Refund it", store=store, run_id="r", limits=Limits(max_calls=2),
                   context=Counted())
    kernai.resume(clerk(approve=lambda call: True), "r", store=store, context=Counted())
    page = show(entries(store))
    expect(page.locator("#conversation .outcome-first")).to_contain_text("All done.")
    assert page.locator("#conversation .bad, #tree .bad").count() == 0
    assert rows(page) == ["clerk", "Step 0 · refund", "Step 1"]
    assert "problem" not in page.locator("#head").inner_text()
    page.keyboard.press("2")
    left_out = page.locator("#events .card.left-out")
    expect(left_out).to_have_count(1)
    expect(left_out).to_contain_text("Run ends")
    expect(left_out).to_contain_text("It no longer counts, since the run continues at #")
    expect(left_out.locator(".note .link")).to_have_attribute("href", "#e10")


def test_a_failure_of_the_vendor_and_its_retry_are_shown(show: Show) -> None:
    store = MemoryStore()
    kernai.execute(clerk(), "Good day", store=store, run_id="r", provider=MockProvider().on_call(down))
    expect(step_card(show(entries(store)), 0).locator(".block.problem")).to_contain_text("the vendor is down")
    kernai.resume(clerk(), "r", store=store)
    page = show(entries(store))
    expect(page.locator("#conversation .outcome-first")).to_contain_text("Good day? Gladly.")
    card = step_card(page, 0)
    expect(card.locator(".block.resume")).to_contain_text("2 events left out")
    assert "the vendor is down" not in card.inner_text()
    card.get_by_role("button", name="What was left out").click()
    expect(card.locator(".resume .left-out").first).to_contain_text("the vendor is down")


def test_calls_in_flight_saved_contexts_and_another_input_are_shown(show: Show) -> None:
    broken = cut_off()
    kernai.resume(clerk(), "r", store=broken, in_flight="retry", context=Counted())
    kernai.resume(clerk(), "r", store=broken, input=[kernai.outside("Thanks")], context=Counted())
    page = show(entries(broken))
    expect(step_card(page, 0).locator(".decision").last).to_contain_text("was running when the run was interrupted")
    expect(step_card(page, 0).locator(".decision").last).to_contain_text("It is called again.")
    expect(page.locator("#conversation .block.other").filter(has_text="Context saved")).to_contain_text("30")
    users = page.locator("#conversation .turn.user")
    assert [text.split("\n")[-1] for text in users.all_inner_texts()] == ["Refund it", "Thanks"]
    last = step_card(page, 2).inner_text()
    assert last.index("The run continues here") < last.index("Thanks? Gladly.")


def test_a_recording_that_begins_with_a_resume_has_the_agents_name_and_the_conversation_in_order(show: Show) -> None:
    store, recorder = MemoryStore(), kernai.Recorder()
    kernai.execute(clerk(), "Good day", store=store, run_id="r")
    kernai.resume(clerk(), "r", store=store, input="Thanks", recorder=recorder)
    page = show(recorder.to_list())
    expect(page.locator("#tree .name")).to_have_text(["clerk", "Step 1"])
    users = page.locator("#conversation .turn.user")
    assert [text.split("\n")[-1] for text in users.all_inner_texts()] == ["Good day", "Thanks"]


def test_who_decided_on_a_call_in_flight_and_why_is_shown(show: Show) -> None:
    broken = cut_off()
    with pytest.raises(kernai.InFlightError) as caught:
        kernai.resume(clerk(), "r", store=broken, context=Counted())
    broken.block("r", "nobody knows", caught.value.calls)
    broken.decide("r", "0.0", kernai.Decision("it was paid", by="ann"))
    kernai.resume(clerk(), "r", store=broken, context=Counted())
    decision = step_card(show(entries(broken)), 0).locator(".decision").last
    expect(decision).to_contain_text("It is not called again; the model reads why: it was paid")
    expect(decision).to_contain_text("Decided by ann.")


def test_a_resume_that_refers_to_events_missing_from_the_file_leaves_nothing_out(show: Show) -> None:
    store = paused()
    recorded: list[dict[str, Any]] = []
    kernai.resume(clerk(), "r", store=store, approvals={"0.0": True}, on_event=lambda event: recorded.append(event.to_dict()))
    page = show([entry for entry in recorded if entry["event"] not in ("text_chunk", "block_start", "block_content")])
    expect(page.locator("#conversation .outcome-first")).to_contain_text("All done.")
    page.keyboard.press("2")
    expect(page.locator("#events .card").first).to_be_visible()
    expect(page.locator("#events .card.left-out")).to_have_count(0)
