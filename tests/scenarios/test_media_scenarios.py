"""The scenarios with pictures: what they need, and the charts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("PIL", reason="Pillow is not installed: pip install pillow")


from harness import UsageError

from kit import charts, packages


def test_an_outdated_package_is_reported_like_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    packages.require_packages("PIL", "jsonschema")
    installed = {"pillow": "10.3.0", "jsonschema": "4.20"}
    monkeypatch.setattr(packages, "version", installed.__getitem__)
    with pytest.raises(UsageError, match=r'more than kernai: pip install "pillow>=10\.4"$'):
        packages.require_packages("PIL", "jsonschema")


# -------------------------------------------------------------------------------------------------- the charts


@given(
    kg=st.lists(st.integers(1, charts.MOST_KG), min_size=1, max_size=charts.MOST_BARS),
    line=st.integers(1, charts.MOST_KG),
    numbered=st.booleans(),
)
def test_measuring_a_chart_returns_the_values_it_was_drawn_from(kg: list[int], line: int, numbered: bool) -> None:
    bars = [charts.Bar(f"hive {number}", one) for number, one in enumerate(kg)]
    assert charts.measure(charts.draw("Harvest", bars, line, numbered=numbered), line) == kg
