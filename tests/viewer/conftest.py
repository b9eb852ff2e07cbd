"""A real, offline browser with a page that fails its test if a recording does more than show text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Dialog, FloatRect, Locator, Page, ViewportSize, sync_playwright

from kernai.viewer import render_page
from tests.viewer.recordings import buying

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--disable-gpu-compositing",
    "--disable-software-rasterizer",
]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")


# Per package, not per session: while playwright runs, its event loop occupies the main thread, so asynchronous tests
# could not run theirs. There are none in this folder.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        missing = "there is no Chromium on PATH (Debian: apt-get install chromium): the viewer is not tested in a browser"
        (pytest.fail if os.environ.get("KERNAI_REQUIRE_BROWSER") == "1" else pytest.skip)(missing)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def bought() -> list[dict[str, Any]]:
    """The events of a real run, recorded once; see `buying`."""
    return buying()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


class Tab:
    """A page that collects what it does besides showing text, reused for one document after another, because a new page
    is several times slower.
    """

    def __init__(self, browser: Browser) -> None:
        self._context = browser.new_context()
        self._context.set_default_timeout(20_000)
        self.page = page = self._context.new_page()
        self._allowed: tuple[str, ...] = ()
        self._expected = "nothing"
        self._faults: list[str] = []
        self._requests: list[str] = []
        page.on("console", lambda message: self._faults.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._faults.append(f"error: {error.stack or error}"))
        page.on("dialog", self._dismiss)
        page.on("popup", lambda popup: self._faults.append(f"window: {popup.url}"))
        page.on("request", lambda request: self._requests.append(request.url))

    def _dismiss(self, dialog: Dialog) -> None:
        self._faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(
        self, address: str, *, allowed: str = "", expected: str = "nothing", viewport: ViewportSize | None = None,
        color_scheme: Literal["light", "dark"] = "light",
    ) -> Page:
        if self.page.url != "about:blank":  # leaving it takes as long as loading it
            self.check()
        self._allowed, self._expected = (allowed or address.partition("#")[0], "data:"), expected
        self.page.set_viewport_size(viewport or {"width": 1280, "height": 900})
        self.page.emulate_media(media="screen", color_scheme=color_scheme, forced_colors="none")
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready]")
        # the lists draw what is on the screen once it has been painted
        self.page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(drawn))))")
        return self.page

    def check(self) -> None:
        """Fail if the document logged, raised, opened or requested anything but itself; then leave it."""
        assert self.page.evaluate("window.harmed") is None
        assert [fault for fault in self._faults if self._expected not in fault] == []
        assert [url for url in self._requests if not url.startswith(self._allowed)] == []
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self._faults.clear()
        self._requests.clear()

    def close(self) -> None:
        self._context.close()


@pytest.fixture(scope="package")
def tabs(browser: Browser) -> Iterator[list[Tab]]:
    """The tab that tests reuse; empty after a test that failed."""
    tabs: list[Tab] = []
    yield tabs
    for tab in tabs:
        tab.close()


NewPage = Callable[..., Page]
Show = Callable[..., Page]


@pytest.fixture
def new_page(browser: Browser, tabs: list[Tab]) -> Iterator[NewPage]:
    """A function that opens documents, one at a time. None may log, raise, open or request anything but itself."""
    tab = tabs.pop() if tabs else Tab(browser)
    try:
        yield tab.open
        tab.check()
    except BaseException:
        tab.close()
        raise
    tabs.append(tab)


@pytest.fixture
def show(new_page: NewPage, tmp_path: Path) -> Show:
    """A function that opens the page of these entries; `at` is the end of the URL, such as ``#e5``."""

    def open_entries(
        entries: list[dict[str, Any]] | tuple[Mapping[str, Any], ...], *, at: str = "", title: str = "a run",
        media_folder: Path | None = None, **options: Any,
    ) -> Page:
        file = tmp_path / "run.html"
        file.write_text(render_page(entries, title=title, media_folder=media_folder), encoding="utf-8")
        return new_page(file.as_uri() + at, **options)

    return open_entries


def box_of(locator: Locator) -> FloatRect:
    box = locator.bounding_box()
    assert box is not None
    return box


def rows(page: Page) -> list[str]:
    return page.locator("#tree .row .name").all_inner_texts()


def step_card(page: Page, number: int) -> Locator:
    title = page.get_by_role("heading", name=f"Step {number}", exact=True)
    return page.locator("#conversation .card.step").filter(has=title)
