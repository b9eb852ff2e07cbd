"""`price_of`: a model's price according to genai-prices. Needs the extra: ``pip install "kernai[prices]"``.

::

    price = price_of("anthropic/claude-sonnet-5")
    provider, model = resolve("anthropic/claude-sonnet-5", cost=price.cost)

A price list gets out of date, so each price says from which day it is. kernai itself contains no prices.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

from kernai import Cost
from kernai_providers.vendors import split_name

try:
    from genai_prices.data_snapshot import get_snapshot
except ImportError as missing:
    raise ImportError('kernai_providers.prices needs genai-prices: pip install "kernai[prices]"') from missing

#: vendors that have another name in the list
_VENDORS = {
    "bedrock": "aws", "gemini": "google", "gemini-openai": "google", "openai-responses": "openai", "vertex": "google",
    "xai": "x-ai",
}


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in dollars per million tokens.

    `as_of` is the day of the latest change in the list, or of its download if genai-prices has updated it. `source` is
    the list and its version. `is_tiered`: long prompts cost more than `cost`, which is the lowest tier.
    """

    cost: Cost
    as_of: date
    source: str
    is_tiered: bool


def price_of(name: str, *, now: datetime | None = None) -> Price | None:
    """Returns the price of ``"vendor/model"``, a name for `resolve`, at `now` (UTC if it has no zone), or None."""
    vendor, model_id = split_name(name)
    model_id = model_id.removeprefix("google/" if vendor.name == "vertex" else "models/")  # as Google writes names
    snapshot = get_snapshot()
    try:
        _, model = snapshot.find_provider_model(model_id, None, _VENDORS.get(vendor.name, vendor.name), None)
        found = model.get_prices(now or datetime.now(UTC))
    except LookupError:
        return None
    rates = [getattr(found, f"{part}_mtok", None) for part in ("input", "output", "cache_read", "cache_write")]
    lowest = [getattr(rate, "base", rate) for rate in rates]
    if None in lowest[:2]:
        return None  # not priced by the token, but by the image, for example
    cost = Cost(*(None if rate is None else float(rate) for rate in lowest))  # type: ignore[arg-type]  # two are numbers
    as_of = snapshot.timestamp.date() if snapshot.from_auto_update else _latest_change()
    is_tiered = any(hasattr(rate, "tiers") for rate in rates)
    return Price(cost, as_of, f"genai-prices {version('genai-prices')}", is_tiered)


@cache
def _latest_change() -> date:
    """Returns the latest day on which a price changed: the list that comes with the package has no date of its own."""
    days, comments = list[Any](), []
    for provider in get_snapshot().providers:
        comments += [provider.price_comments, *(model.price_comments for model in provider.models)]
        for model in provider.models:
            dated = model.prices if isinstance(model.prices, list) else []
            days += [getattr(one.constraint, "start_date", None) for one in (*dated, *(model.price_variants or ()))]
    for written in re.findall(r"\b20\d\d-\d\d-\d\d\b", " ".join(filter(None, comments))):
        with suppress(ValueError):  # a day that is none
            days.append(date.fromisoformat(written))
    today = datetime.now(UTC).date()
    return max((day for day in days if isinstance(day, date) and day <= today), default=date.min)
