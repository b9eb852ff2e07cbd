"""The time line in a real browser: the tree of runs, steps, calls and sub-agents, with bars and figures."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import FloatRect, Locator, Page, expect

from tests.viewer.conftest import Show, box_of, rows, step_card
from tests.viewer.recordings import Script, long, small


def test_the_tree_shows_steps_calls_and_tasks_in_order_with_sums_and_leads_to_events(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    assert rows(page) == [
        "buyer", "Step 0 · no_such", "Step 1", "north", "Step 0 · look_up", "Step 1", "south", "Step 0 · look_up", "Step 1",
        "compare", "Step 0", "Step 2",
    ]
    levels = page.locator("#tree .row").evaluate_all("rows => rows.map(row => row.getAttribute('aria-level'))")
    assert levels == ["1", "2", "2", "3", "4", "4", "3", "4", "4", "3", "4", "2"]
    figures = {
        name: page.locator(".row", has=page.get_by_text(name, exact=True)).first.locator(".figure").all_inner_texts()
        for name in ("buyer", "north", "compare", "Step 2")
    }
    assert [figures[name][0] for name in figures] == ["8,200", "2,050", "1,025", "1,025"]
    assert {figures[name][1] for name in figures} == {"?"}
    expect(page.locator("#head")).to_contain_text("8 model calls")
    expect(page.locator("#head")).to_contain_text("cost unknown")
    page.keyboard.press("2")
    page.locator(".row", has=page.get_by_text("compare", exact=True)).click()
    expect(page.locator("#events .target .type")).to_have_text("task_start")


@pytest.mark.parametrize("ending, sign, words", [
    (("skill_result", {"result": "3 hits"}), "✓", "result after 12 ms"),
    (("skill_error", {"error": "closed"}), "!", "error after 12 ms, with a problem"),
    (None, "…", "no outcome is on record"),
])  # fmt: skip
def test_a_step_with_one_call_is_one_row_with_the_outcome_of_the_call(
    show: Show, ending: tuple[str, dict[str, Any]] | None, sign: str, words: str
) -> None:
    script = small()
    del script.entries[-1]
    if ending is not None:
        script.add(ending[0], {"call_id": "0.0", "skill": "search", "duration_ms": 12, **ending[1]})
    page = show(script.entries)
    row = page.get_by_role("treeitem", name=f"Step 0 · search, {words}, ")
    assert row.locator(".label").inner_text().split() == ["Step", "0", "·", "search", sign]
    row.click()
    expect(page.locator(".target h3")).to_have_text("Step 0")
    expect(page.locator(".target [data-call='0.0']")).to_be_in_viewport()


def test_a_row_of_a_step_and_its_only_call_includes_the_figures_of_the_called_agent(show: Show) -> None:
    script = Script().turn(0, "x", prompt_tokens=100, completion_tokens=1)
    script.add("skill_execute", {"call_id": "0.0", "skill": "ask"}).add("run_start", {"agent": "expert"}, 0, "0.0")
    script.turn(0, "y", prompt_tokens=20, completion_tokens=2)
    for entry in script.entries[-2:]:
        entry["scope"] = "0.0"
    page = show(script.entries)
    assert rows(page)[1:] == ["Step 0 · ask", "Step 0"]
    figures = page.locator("#tree .row .figure:nth-of-type(3)").all_inner_texts()
    assert figures == ["123", "123", "22"]
    expect(page.get_by_role("button", name="Its conversation: ask")).to_be_visible()


def test_each_call_of_a_step_with_several_calls_has_its_own_row(show: Show) -> None:
    page = show(small().add("skill_execute", {"call_id": "0.1", "skill": "sort"}).entries)
    assert rows(page) == ["librarian", "Step 0", "search", "sort"]


def bar(page: Page, name: str) -> FloatRect:
    return box_of(page.locator(".row", has=page.get_by_text(name, exact=True)).locator(".bar").first)


def test_the_bars_of_concurrent_tasks_are_stacked(show: Show) -> None:
    script = Script().add("run_start", {"agent": "boss"})  # at second 0
    for event, task in (("start", "north"), ("start", "south"), ("complete", "south"), ("complete", "north"),
                        ("start", "compare"), ("complete", "compare")):
        script.add(f"task_{event}", {"task_id": task})
    page = show(script.entries)
    whole = bar(page, "boss")
    placed = {name: bar(page, name) for name in ("north", "south", "compare")}
    sixths = {
        name: [round(6 * (at - whole["x"]) / whole["width"], 1) for at in (box["x"], box["x"] + box["width"])]
        for name, box in placed.items()
    }
    assert sixths == {"north": [1, 4], "south": [2, 3], "compare": [5, 6]}


def test_missing_figures_are_unknown_and_partial_sums_are_marked(show: Show) -> None:
    script = small()
    page = show(script.entries)
    expect(page.locator("#head")).to_contain_text("unknown tokens")
    expect(page.locator("#head")).to_contain_text("no end on record")
    assert "0 in" not in page.locator("body").inner_text()
    page = show(script.turn(1, "<final>x</final>", prompt_tokens=70, completion_tokens=7, cost=0.25).entries)
    expect(page.locator("#head")).to_contain_text("≥ 70 in, ≥ 7 out")
    expect(page.locator("#head")).to_contain_text("≥ $0.250")
    known = {"prompt_tokens": 70, "completion_tokens": 7, "cost": 0.25}  # `result` has the sum of what is known
    page = show(script.add("result", {"text": "x", "stop_reason": "final", "usage": known}).entries)
    expect(page.locator(".outcome-first")).to_contain_text("≥ 70 in, ≥ 7 out≥ $0.250")
    page = show(Script().turn(0, "<final>x</final>", ("final", None, "x"), prompt_tokens=70).entries)
    expect(step_card(page, 0)).to_contain_text("70 in, unknown out")


def test_the_tree_can_be_used_by_keyboard(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    page.keyboard.press("l")
    focused = page.locator(".row:focus .name")
    expect(focused).to_have_text("buyer")
    page.keyboard.press("End")
    expect(focused).to_have_text("Step 2")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")  # moves from the task's step to the task
    expect(focused).to_have_text("compare")
    page.keyboard.press("ArrowLeft")  # closes the task
    expect(page.locator(".row:focus")).to_have_attribute("aria-expanded", "false")
    assert rows(page)[-2:] == ["compare", "Step 2"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("z")
    expect(page.get_by_role("button", name="Whole run")).to_be_visible()
    page.keyboard.press("z")
    expect(page.get_by_role("button", name="Whole run")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".target")).to_have_attribute("aria-label", "Task compare")


def nested() -> list[dict[str, Any]]:
    """Two tasks of 40 steps each, started by step 0."""
    script = Script().add("run_start", {"agent": "boss"})
    for task in ("north", "south"):
        script.add("task_start", {"task_id": task})
        for step in range(40):
            script.add("llm_response", {"content": "x"}, step, f"0.{task}")
    return script.entries


IS_UNCOVERED = """(row) => {
  const { x, top, bottom } = row.getBoundingClientRect();
  return [top + 2, bottom - 2].every((y) => row.contains(document.elementFromPoint(x + 60, y)));
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_parents_of_the_first_visible_row_stay_visible_and_lead_to_their_rows(show: Show, width: int) -> None:
    page = show(nested(), viewport={"width": width, "height": 844})
    page.keyboard.press("l")
    pane, path = page.locator("#panel-timeline"), page.get_by_role("group", name="What the first visible row is in")
    expect(path).to_be_hidden()  # the first row is the run
    for share, parents in ((0.3, ["boss", "Step 0", "north"]), (0.8, ["boss", "Step 0", "south"])):
        pane.evaluate("(pane, share) => { pane.scrollTop = share * pane.scrollHeight; }", share)
        expect(path.get_by_role("button")).to_have_text(parents)
    path.get_by_role("button", name="south").click()
    expect(page.locator(".row:focus .name")).to_have_text("south")
    assert page.locator(".row:focus").evaluate(IS_UNCOVERED)
    expect(path.get_by_role("button")).to_have_text(["boss", "Step 0"])
    page.keyboard.press("Home")
    expect(path).to_be_hidden()


def test_a_row_focused_by_keyboard_is_not_covered(show: Show) -> None:
    page = show(nested(), viewport={"width": 1280, "height": 500})
    page.keyboard.press("l")
    focused = page.locator(".row:focus")
    for key in [*["ArrowDown"] * 15, "End", *["ArrowUp"] * 15, "Home"]:
        page.keyboard.press(key)
        assert focused.evaluate(IS_UNCOVERED)


def test_several_runs_in_one_file_are_shown_together_and_can_be_selected(show: Show) -> None:
    again = small().entries
    other = Script("run-2").add("run_start", {"agent": "second", "input": "x"}).entries
    unnamed = Script("run-3").add("run_start", {"input": "x"}).entries
    page = show([*small().entries, *again, *other, *unnamed])
    expect(page.locator("#head")).to_contain_text("4 runs")
    assert page.locator(".row.run .name").all_inner_texts() == ["librarian", "librarian", "second", "run 4"]
    headings = page.locator("#conversation h2").all_inner_texts()
    assert headings == ["Run 1 librarian", "Run 2 librarian", "Run 3 second", "Run run 4"]
    page.keyboard.press("2")
    page.locator("#scope").select_option(label="Run 3: second")
    expect(page.locator("#events .card")).to_have_count(1)


# ------------------------------------------------------------------------------------------------------------- the plot


LEAST_COLUMNS = 24


def spending(*steps: dict[str, Any]) -> list[dict[str, Any]]:
    script = Script().add("run_start", {"agent": "buyer"})
    for number, usage in enumerate(steps):
        script.turn(number, "x", **usage)
    return script.entries


def chart(page: Page, name: str) -> Locator:
    return page.get_by_role("img", name=f"{name} by step")


def heights(chart: Locator, part: str) -> list[float]:
    drawn = chart.locator(f"path.{part}").get_attribute("d") or ""
    bars = [bar.replace("h.8", "").strip("z").replace("V", " ").split() for bar in drawn.split("M")[1:]]
    return [float(low) - float(high) for _, low, high, _ in bars]


def click_step(page: Page, name: str, number: int) -> None:
    box = box_of(chart(page, name))
    page.mouse.click(box["x"] + (number + 0.5) * box["width"] / LEAST_COLUMNS, box["y"] + 5)


def test_each_step_has_a_bar_for_its_tokens_and_one_for_its_cost(show: Show) -> None:
    page = show(spending(
        {"prompt_tokens": 60, "completion_tokens": 20, "cost": 0.5}, {"prompt_tokens": 30, "completion_tokens": 10, "cost": 2},
        {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0}))
    tokens, cost = chart(page, "Tokens"), chart(page, "Cost")
    assert (heights(tokens, "prompt"), heights(tokens, "completion")) == ([75, 37.5, 0], [25, 12.5, 0])
    assert heights(cost, "cost") == [25, 100, 0]
    expect(tokens).to_have_accessible_name("Tokens by step: 90 in, 30 out; at most 80 in a step")
    expect(cost).to_have_accessible_name("Cost by step: $2.50; at most $2.00 in a step")
    expect(page.locator("#charts")).to_contain_text("Tokens90 in30 out; at most 80 in a step")


def test_unknown_figures_are_named_and_never_drawn_as_numbers(show: Show) -> None:
    page = show(small().entries)
    assert page.locator("#charts p").all_inner_texts() == [
        "Tokens unknown: no usage is on record", "Cost unknown: no prices are on record"]
    expect(page.locator("#charts svg")).to_have_count(0)
    page = show(spending({"cost": 1, "prompt_tokens": 7}, {"prompt_tokens": 7}, {"cost": 0}))
    assert (heights(chart(page, "Cost"), "cost"), heights(chart(page, "Cost"), "unknown")) == ([100, 0, 0], [0, 100, 0])
    expect(chart(page, "Cost")).to_have_accessible_name("Cost by step: ≥ $1.00; at most $1.00 in a step; 1 of 3 steps unknown")
    expect(chart(page, "Tokens")).to_have_accessible_name("Tokens by step: ≥ 14 in, unknown out; at most 7 in a step; 1 of 3 steps unknown")
    page = show(Script().add("run_start", {"agent": "buyer"}).entries)
    expect(page.locator("#plot")).to_be_hidden()  # no model was called


@pytest.mark.parametrize("width", [1280, 390])
def test_a_click_on_a_bar_selects_its_step_in_the_tree_and_shows_its_card(
    show: Show, bought: list[dict[str, Any]], width: int
) -> None:
    page = show(bought, viewport={"width": width, "height": 844})
    page.keyboard.press("3")
    page.locator("#tree .row", has=page.get_by_text("south", exact=True)).locator(".twisty").click()
    click_step(page, "Tokens", 4)  # in the order of the tree: two steps of buyer, two of north, then those of south
    expect(page.locator("#tree .row[aria-selected=true] .name")).to_have_text("Step 0 · look_up", use_inner_text=False)
    expect(page.locator("#conversation .target")).to_contain_text("south is closed")
    page.keyboard.press("3")
    chosen, box = box_of(page.locator(".chosen")), box_of(chart(page, "Tokens"))
    assert abs((chosen["x"] - box["x"]) / box["width"] * LEAST_COLUMNS - 4) < 0.1


def test_in_a_long_run_a_bar_covers_several_steps_and_each_step_can_still_be_reached(show: Show) -> None:
    page = show(long(5_000))  # 1,000 steps
    tokens = chart(page, "Tokens")
    assert len(heights(tokens, "prompt")) == 200
    expect(tokens).to_have_accessible_name("Tokens by step: 10,000 in, 5,000 out; at most 15 in a step; a bar is 5 steps")
    box = box_of(tokens)
    page.mouse.move(box["x"] + box["width"] * 0.7503, box["y"] + 9)
    expect(page.locator("#charts")).to_have_attribute(
        "title", "archivist, step 750\n1 model call; tokens: 10 in, 5 out; cost: unknown")


def test_figures_of_any_size_are_drawn(show: Show) -> None:
    page = show(spending({"prompt_tokens": 1e308, "completion_tokens": 1e308, "cost": -5}, {"prompt_tokens": -1, "cost": -1}))
    for name, part in (("Tokens", "prompt"), ("Tokens", "completion"), ("Cost", "cost")):
        assert all(0 <= height <= 100 for height in heights(chart(page, name), part))
