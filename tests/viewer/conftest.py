"""A real browser that is offline, and a page in it that fails its test when anything but text comes of a recording."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

from kernai.viewer import render_page
from tests.viewer.recordings import buying

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


# By module, not by session: while playwright runs, its event loop counts as the main thread's, and no asynchronous test
# could run one of its own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        told = "there is no Chromium on PATH (Debian: apt-get install chromium): the viewer is not tested in a browser"
        (pytest.fail if os.environ.get("KERNAI_REQUIRE_BROWSER") == "1" else pytest.skip)(told)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def bought() -> list[dict[str, Any]]:
    """A real run, recorded once; see `buying`."""
    return buying()


class Watched:
    """What a page did besides showing text."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.requests: list[str] = []

    def watch(self, page: Page) -> None:
        page.on("console", lambda message: self.faults.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.faults.append(f"error: {error.stack or error}"))
        page.on("dialog", self._dismiss)
        page.on("popup", lambda popup: self.faults.append(f"window: {popup.url}"))
        page.on("request", lambda request: self.requests.append(request.url))

    def _dismiss(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()


NewPage = Callable[..., "Page"]


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    """Opens pages; none of them may have logged, thrown, opened or asked for anything but itself."""
    contexts = []
    watched: list[tuple[Watched, str, str]] = []

    def open_page(address: str, *, allowed: str = "", expected: str = "nothing", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        watching = Watched()
        watching.watch(page)
        watched.append((watching, allowed or address.partition("#")[0], expected))
        page.goto(address)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("window.harmed") is None
        context.close()
    for watching, allowed, expected in watched:
        assert [fault for fault in watching.faults if expected not in fault] == []
        assert [url for url in watching.requests if not url.startswith((allowed, "data:"))] == []


@pytest.fixture
def show(new_page: NewPage, tmp_path: Path) -> Callable[..., Page]:
    """Opens the page of these entries; `at` is behind the address, as ``#e5`` is."""

    def open_entries(
        entries: list[dict[str, Any]] | tuple[Mapping[str, Any], ...], *, at: str = "", title: str = "a run",
        media_folder: Path | None = None, **options: Any,
    ) -> Page:
        file = tmp_path / "run.html"
        file.write_text(render_page(entries, title=title, media_folder=media_folder), encoding="utf-8")
        return new_page(file.as_uri() + at, **options)

    return open_entries
