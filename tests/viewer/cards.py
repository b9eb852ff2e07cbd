"""Finding things on a page of the viewer."""

from __future__ import annotations

from playwright.sync_api import Locator, Page


def rows(page: Page) -> list[str]:
    """The names in the tree, from above."""
    return page.locator("#tree .row .name").all_inner_texts()


def step_card(page: Page, number: int) -> Locator:
    """The cards of the steps of that number."""
    title = page.get_by_role("heading", name=f"Step {number}", exact=True)
    return page.locator("#conversation .card.step").filter(has=title)
