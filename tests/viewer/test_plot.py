"""The plot of tokens and cost by step, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.viewer.cards import rows
from tests.viewer.recordings import Script, long, small

Show = Callable[..., Page]
LEAST_COLUMNS = 24


def spending(*steps: dict[str, Any]) -> list[dict[str, Any]]:
    script = Script().add("run_start", {"agent": "buyer"})
    for number, usage in enumerate(steps):
        script.turn(number, "x", **usage)
    return script.entries


def chart(page: Page, name: str) -> Locator:
    return page.get_by_role("img", name=f"{name} by step")


def heights(chart: Locator, part: str) -> list[float]:
    """How high the bars are, in hundredths of the chart."""
    drawn = chart.locator(f"path.{part}").get_attribute("d") or ""
    bars = [bar.replace("h.8", "").strip("z").replace("V", " ").split() for bar in drawn.split("M")[1:]]
    return [float(low) - float(high) for _, low, high, _ in bars]


def click_step(page: Page, name: str, number: int) -> None:
    box = chart(page, name).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + (number + 0.5) * box["width"] / LEAST_COLUMNS, box["y"] + 5)


def test_each_step_has_a_bar_of_the_tokens_and_the_cost_that_it_used(show: Show) -> None:
    page = show(spending(
        {"prompt_tokens": 60, "completion_tokens": 20, "cost": 0.5}, {"prompt_tokens": 30, "completion_tokens": 10, "cost": 2},
        {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0}))
    tokens, cost = chart(page, "Tokens"), chart(page, "Cost")
    assert (heights(tokens, "prompt"), heights(tokens, "completion")) == ([75, 37.5, 0], [25, 12.5, 0])
    assert heights(cost, "cost") == [25, 100, 0]
    expect(tokens).to_have_accessible_name("Tokens by step: 90 in, 30 out; at most 80 in a step")
    expect(cost).to_have_accessible_name("Cost by step: $2.50; at most $2.00 in a step")
    expect(page.locator("#charts")).to_contain_text("Tokens90 in30 out; at most 80 in a step")


def test_what_is_unknown_is_said_and_never_drawn_as_a_number(show: Show) -> None:
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
    click_step(page, "Tokens", 4)  # as in the tree: two of buyer, two of north, then those of south
    expect(page.locator("#tree .row[aria-selected=true] .name")).to_have_text("Step 0 · look_up", use_inner_text=False)
    expect(page.locator("#conversation .target")).to_contain_text("south is closed")
    page.keyboard.press("3")
    chosen = page.locator(".chosen").bounding_box()
    box = chart(page, "Tokens").bounding_box()
    assert chosen is not None
    assert box is not None
    assert abs((chosen["x"] - box["x"]) / box["width"] * LEAST_COLUMNS - 4) < 0.1


def test_the_plot_keeps_to_the_scope_and_to_errors(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    assert len(heights(chart(page, "Tokens"), "prompt")) == 8
    page.locator("#scope").select_option(label=next(
        label for label in page.locator("#scope option").all_inner_texts() if "(1.south)" in label))
    assert len(heights(chart(page, "Tokens"), "prompt")) == 2
    page.keyboard.press("e")
    assert rows(page) == ["south", "Step 0 · look_up"]
    assert len(heights(chart(page, "Tokens"), "prompt")) == 1


def test_a_long_run_has_a_bar_for_several_steps_and_each_can_still_be_reached(show: Show) -> None:
    page = show(long(5_000))  # 1,000 steps
    tokens = chart(page, "Tokens")
    assert len(heights(tokens, "prompt")) == 200
    expect(tokens).to_have_accessible_name("Tokens by step: 10,000 in, 5,000 out; at most 15 in a step; a bar is 5 steps")
    box = tokens.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.7503, box["y"] + 9)
    expect(page.locator("#charts")).to_have_attribute(
        "title", "archivist, step 750\n1 model call; tokens: 10 in, 5 out; cost: unknown")


def test_figures_of_any_size_are_drawn(show: Show) -> None:
    page = show(spending({"prompt_tokens": 1e308, "completion_tokens": 1e308, "cost": -5}, {"prompt_tokens": -1, "cost": -1}))
    for name, part in (("Tokens", "prompt"), ("Tokens", "completion"), ("Cost", "cost")):
        assert all(0 <= height <= 100 for height in heights(chart(page, name), part))
