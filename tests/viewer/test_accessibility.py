"""axe, which checks a page against WCAG and good practice, finds no problem in any state of the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize, expect

from tests.viewer.conftest import Show
from tests.viewer.recordings import PNG, Script

#: so high that everything is visible, because axe checks contrast only there
WINDOWS = {"desk": ViewportSize(width=1440, height=6000), "phone": ViewportSize(width=390, height=9000)}
MARKDOWN = "# Found\n\n- **north**, `open`: [prices](https://x.example/a)\n\n> 40 euros\n\n| | price |\n|-|-:|\n| tea | 4 |\n\n```\ncode\n```\n"
PICTURE = {"id": "media_0123456789ab", "kind": "image", "mime_type": "image/png", "size": 70}


def kept() -> list[dict[str, Any]]:
    """A run that waited, was interrupted and resumed, with pictures, Markdown and JSON."""
    script = Script("run-2").add("run_start", {"agent": "clerk", "input": [MARKDOWN, PICTURE, {**PICTURE, "id": "media_0123456789ac"}]})
    script.add("messages_sent", [{"role": "system", "content": "Be kind."}, {"role": "user", "content": [MARKDOWN, PICTURE]}])
    script.turn(0, 'Well.\n<command name="refund">5</command>', ("command", "refund", "5"), prompt_tokens=9, completion_tokens=7, cost=0.1)
    call = {"call_id": "0.0", "skill": "refund"}
    script.add("skill_execute", {**call, "params": {"order": 5}}).add("approval_requested", {**call, "reason": "over 4"})
    script.add("approval_given", {**call, "decision": "too much", "by": "ada"}).add("skill_error", {**call, "error": "cancelled"})
    script.add("run_resumed", {"from_seq": 7, "dropped": [7]}).add("in_flight", {**call, "decision": "retry"})
    script.add("approval_given", {**call, "decision": True, "by": "ada"}).add("progress", {**call, "data": "half"})
    script.add("skill_result", {**call, "result": [{"list": list(range(40))}, PICTURE], "duration_ms": 12}).add("kind", {"x": 1})
    return script.add("result", {"text": MARKDOWN, "stop_reason": "final"}).entries


def click_all(page: Page, name: str) -> None:
    for button in page.get_by_role("button", name=name).all()[::-1]:
        button.click()


def search(page: Page) -> None:
    page.locator("#search").fill("run")  # axe does not check the contrast of single characters
    page.locator("#search").press("Enter")
    expect(page.locator("#found")).to_contain_text("1 of")


def press(*keys: str) -> Callable[[Page], None]:
    def reach(page: Page) -> None:
        for key in keys:
            page.keyboard.press(key)

    return reach


def picture(page: Page) -> None:
    press("Escape", "1")(page)
    page.locator(".thumbnail").first.click()


#: actions on the page, in order; axe checks it after each
STATES: dict[str, tuple[Callable[[Page], None], ...]] = {
    "conversation": (press("1"),),
    "opened conversation with a search": (
        lambda page: click_all(page, "Render Markdown"), lambda page: click_all(page, "Lay out"),
        lambda page: click_all(page, "What"), search,
    ),
    "an event's JSON": (press("Escape", "2"), press("j", "o")),
    "search in events": (search,),
    "errors only, and types": (press("Escape", "e"), lambda page: page.get_by_text("Types", exact=True).click()),
    "errors only in the conversation": (press("Escape", "1"),),
    "a row of the time line": (press("e", "3"), press("l", "ArrowDown", "ArrowDown")),
    "keys": (press("?"),),
    "a picture": (picture,),
}
#: states that look like another one, so they are not checked
ALIKE = ("conversation", "search in events", "errors only in the conversation")
CONTRAST = "color-contrast"  # this rule is as slow as all others together, and does not depend on the window
COLOURS, ALL_ELSE = {"runOnly": [CONTRAST]}, {"rules": {CONTRAST: {"enabled": False}}}


def faults(page: Page, rules: dict[str, Any] | None = None) -> list[str]:
    options = {"resultTypes": ["violations"], **(rules or {})}  # the details of what is right take as long
    found = Axe().run(page, options=options).response["violations"]
    return [f"{fault['id']}: {node['html'][:200]} {node['failureSummary']}" for fault in found for node in fault["nodes"]]


@pytest.mark.parametrize("window, scheme, rules", [
    ("desk", "light", COLOURS), ("desk", "dark", COLOURS), ("phone", "light", ALL_ELSE),
], ids=["light", "dark", "phone"])
def test_axe_finds_nothing(
    show: Show, bought: list[dict[str, Any]], tmp_path: Path, window: str, scheme: str, rules: dict[str, Any]
) -> None:
    (tmp_path / "media_0123456789ab.png").write_bytes(PNG)
    page = show([*kept(), *bought], media_folder=tmp_path, viewport=WINDOWS[window], color_scheme=scheme)
    found = {}
    for state, actions in STATES.items():
        for reach in actions:
            reach(page)
        if state not in ALIKE:
            found[state] = faults(page, rules)
    assert not any(found.values()), found
