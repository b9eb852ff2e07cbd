"""docs/scale.md and docs/guides/approval-inbox.md on a real server, and the inbox in a real browser."""

from __future__ import annotations

import os
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import MemoryStore
from kernai.postgres import PostgresStore, Workers
from kernai.registry.skill_registry import REGISTRY
from tests.postgres.server import Server
from tests.postgres.test_workers import working
from tests.test_docs import code_blocks, served

DOCS = Path(__file__).resolve().parents[2] / "docs"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PATIENCE = 20.0


def blocks(page: str) -> list[str]:
    return [block.code for block in code_blocks(DOCS / page) if block.language == "python"]


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    module = types.ModuleType("agents")
    exec(blocks("guides/approval-inbox.md")[0], module.__dict__)
    monkeypatch.setitem(sys.modules, "agents", module)
    yield module
    REGISTRY.unregister("refund")


def test_the_code_of_the_page_on_scaling_works(server: Server, schema: str, agents: types.ModuleType) -> None:
    code, copies = blocks("scale.md")
    old = MemoryStore()
    kernai.execute(agents.clerk, "Refund order 42", store=old, run_id="old", metadata={"tags": {"customer": "7"}})
    with PostgresStore(server.dsn, schema=schema, create=True) as store, working(Workers(store, {"clerk": agents.clerk})):
        opened = code.replace('PostgresStore("postgresql:///app")', f"PostgresStore({server.dsn!r}, schema={schema!r})")
        assert opened != code
        names: dict[str, Any] = {"old": old}
        exec(opened, names)
        exec(copies, names)
        (info,) = store.runs(status="waiting", tags={"customer": "7"})
        assert kernai.resume(agents.clerk, info.run_id, store=store, approvals={"0.0": True}).text == "Order 42 is refunded."
        names["store"].close()


@pytest.mark.browser
@pytest.mark.process
def test_the_inbox_works_in_a_browser(
    server: Server, schema: str, agents: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if CHROMIUM is None:
        (pytest.fail if os.environ.get("KERNAI_REQUIRE_BROWSER") == "1" else pytest.skip)("there is no Chromium on PATH")
    from playwright.sync_api import expect, sync_playwright

    monkeypatch.setenv("DATABASE", server.dsn)
    names: dict[str, Any] = {}
    code = blocks("guides/approval-inbox.md")[1].replace('os.environ["DATABASE"]', f'os.environ["DATABASE"], schema="{schema}"')
    with PostgresStore(server.dsn, schema=schema, create=True) as store, working(Workers(store, {"clerk": agents.clerk})):
        exec(code, names)
        with served(names["app"]) as (host, port), sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            page.set_default_timeout(PATIENCE * 1000)

            def ask() -> None:
                page.goto(f"http://{host}:{port}/")
                page.fill("input[name=task]", "Refund order 42")
                page.click("text=Ask the clerk")
                expect(page.locator("pre")).to_contain_text("waits for a decision on refund", timeout=PATIENCE * 1000)

            ask()
            watching = page.url
            decider = browser.new_page()
            decider.goto(f"http://{host}:{port}/")
            expect(decider.locator("li")).to_contain_text('refund {"order": 42, "amount": 30}')
            decider.click("text=Approve")  # the other page sees the outcome
            expect(page.locator("pre")).to_contain_text("decided by ann", timeout=PATIENCE * 1000)
            expect(page.locator("pre")).to_contain_text("Order 42 is refunded.", timeout=PATIENCE * 1000)
            ask()
            assert page.url != watching
            page.click("text=Cancel")
            expect(page.locator("pre")).to_contain_text("ended: closed", timeout=PATIENCE * 1000)
            decider.goto(f"http://{host}:{port}/")
            expect(decider.locator("li")).to_have_count(0)
            browser.close()
        names["store"].close()
    with PostgresStore(server.dsn, schema=schema) as store:
        assert sorted(one.status for one in store.runs()) == ["closed", "final"]
