"""Prices from the list of genai-prices, which is data that ages."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, date, datetime
from typing import Any

import pytest

from kernai_providers import VENDORS, resolve

pytest.importorskip("genai_prices", reason="prices need pip install genai-prices")
from kernai_providers import prices
from kernai_providers.prices import Price, price_of


def test_a_price_is_that_of_the_list_and_says_of_which_day() -> None:
    price = price_of("anthropic/claude-sonnet-4-5", now=datetime(2026, 11, 24, tzinfo=UTC))
    assert isinstance(price, Price)
    assert (price.cost.input, price.cost.output, price.cost.cache_read, price.cost.cache_write) == (3.0, 15.0, 0.3, 3.75)
    assert date(2026, 1, 1) < price.as_of <= datetime.now(UTC).date()
    assert price.source.startswith("genai-prices ")
    provider, model = resolve("anthropic/claude-sonnet-4-5", api_key="k", cost=price.cost)
    assert model.cost == price.cost
    provider.close()


def test_a_price_by_the_length_of_the_prompt_says_that_it_is_the_lowest() -> None:
    price, other = price_of("gemini/gemini-2.5-pro"), price_of("openai/gpt-4o-mini")
    assert price is not None
    assert other is not None
    assert (price.is_tiered, other.is_tiered) == (True, False)
    assert price.cost.input == 1.25


def test_a_list_that_was_downloaded_is_of_the_day_of_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    from genai_prices.data_snapshot import DataSnapshot, get_snapshot

    day = datetime(2031, 2, 3, tzinfo=UTC)
    updated = DataSnapshot(providers=get_snapshot().providers, from_auto_update=True, timestamp=day)
    monkeypatch.setattr(prices, "get_snapshot", lambda: updated)
    price = price_of("openai/gpt-4o")
    assert price is not None
    assert price.as_of == day.date()


@pytest.mark.parametrize("name", ["openai/gpt-99-nobody", "ollama/llama3.2", "local/x"])
def test_what_the_list_does_not_know_has_no_price(name: str) -> None:
    assert price_of(name) is None


@pytest.mark.parametrize("name", ["gpt-4o", "nobody/gpt-4o", "openai/", 5])
def test_a_name_that_resolve_would_not_take_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="name must be 'vendor/model'"):
        price_of(name)


def test_most_vendors_are_found_in_the_list() -> None:
    from genai_prices.data_snapshot import get_snapshot

    known = {provider.id for provider in get_snapshot().providers}
    ours = {prices._VENDORS.get(vendor.name, vendor.name) for vendor in VENDORS}
    assert ours - known <= {"ollama", "local", "vercel", "deepinfra"}


def test_without_the_list_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    monkeypatch.delitem(sys.modules, "genai_prices.data_snapshot", raising=False)
    monkeypatch.delitem(sys.modules, "kernai_providers.prices")
    with pytest.raises(ImportError, match=r'pip install "kernai\[prices\]"'):
        importlib.import_module("kernai_providers.prices")
