"""`Model` and `Models`: capabilities, prices, and the catalogue."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import combinations
from typing import Any

import pytest

from kernai import Cost, Model, Models
from kernai.values.model import CAPABILITIES, MEDIA_INPUTS, MEDIA_OUTPUTS

CHOICES: list[tuple[str, ...]] = [(), CAPABILITIES, *combinations(CAPABILITIES, 1), *combinations(CAPABILITIES, 2)]

def test_a_model_of_which_nothing_is_said_takes_text_at_an_unknown_price() -> None:
    model = Model("any")
    assert (model.id, model.capabilities, model.cost) == ("any", ("text",), None)


def test_a_model_supports_its_capabilities_and_nothing_else() -> None:
    for capabilities in CHOICES:
        model = Model("m", capabilities)
        assert {word for word in CAPABILITIES if model.supports(word)} == set(capabilities)
        assert model.supports(*capabilities)
        assert model.supports()
        assert set(model.supported_media_inputs) == {MEDIA_INPUTS[one] for one in capabilities if one in MEDIA_INPUTS}
        assert set(model.supported_media_outputs) == {MEDIA_OUTPUTS[one] for one in capabilities if one in MEDIA_OUTPUTS}


def test_all_of_the_capabilities_asked_for_are_needed() -> None:
    assert Models.GPT_4O.supports("vision", "audio_in")
    assert not Models.GPT_4O.supports("vision", "video_in")


def test_media_kinds_come_in_one_order_whatever_the_order_of_the_capabilities() -> None:
    model = Model("m", ("document_in", "audio_in", "vision"))
    assert model.supported_media_inputs == ("image", "audio", "document")


@pytest.mark.parametrize(
    "given, expected",
    [
        ("vision", ("vision",)),
        (["text", "vision"], ("text", "vision")),
        ({"vision", "text"}, ("text", "vision")),
        (frozenset({"audio_in"}), ("audio_in",)),
        ((), ()),
    ],
)
def test_capabilities_become_a_tuple(given: Any, expected: tuple[str, ...]) -> None:
    assert Model("m", given).capabilities == expected


@pytest.mark.parametrize(
    "arguments, error, complaint",
    [
        (("",), ValueError, "id must be a non-blank string"),
        ((" ",), ValueError, "id must be a non-blank string"),
        ((None,), ValueError, "id must be a non-blank string"),
        (("m", ("sight",)), ValueError, "unknown capability 'sight'; known: text, vision"),
        (("m", "text vision"), ValueError, "unknown capability 'text vision'"),
        (("m", (None,)), ValueError, "unknown capability None"),
        (("m", None), TypeError, "capabilities must be a tuple of words"),
        (("m", 5), TypeError, "capabilities must be a tuple of words"),
        (("m", ("text",), 3.0), ValueError, "cost must be"),
        (("m", ("text",), (3.0,)), ValueError, "cost must be"),
        (("m", ("text",), (3, 15, 1)), ValueError, "cost must be"),
        (("m", ("text",), (3, "15")), ValueError, "cost must be"),
        (("m", ("text",), (3, True)), ValueError, "cost must be"),
        (("m", ("text",), (-1, 2)), ValueError, "cost must be"),
        (("m", ("text",), (float("nan"), 2)), ValueError, "cost must be"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        Model(*arguments)


def test_asking_for_an_unknown_capability_is_a_mistake_and_not_a_no() -> None:
    with pytest.raises(ValueError, match="unknown capability 'visoin'"):
        Models.GPT_4O.supports("visoin")


def test_prices_are_kept_as_floats_and_may_be_zero() -> None:
    assert Model("m", cost=(3, 15)).cost == Cost(3.0, 15.0)
    assert Model("m", cost=(0, 0)).cost == Cost(0.0, 0.0)


def test_models_are_values() -> None:
    assert Model("m", ["text"], (1, 2)) == Model("m", ("text",), (1.0, 2.0))  # type: ignore[arg-type]
    assert len({Model("m"), Model("m"), Model("n"), Model("m", cost=(1, 2))}) == 3
    with pytest.raises(FrozenInstanceError):
        Model("m").id = "n"  # type: ignore[misc]
