"""`Model` and `Models`: capabilities, prices, and the catalogue. `GenerationOptions`, and how two of them are merged."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Agent, Cost, GenerationOptions, Model, Models
from kernai.values.model import CAPABILITIES, MEDIA_INPUTS, MEDIA_OUTPUTS

CHOICES: list[tuple[str, ...]] = [(), CAPABILITIES, CAPABILITIES[::-1], *combinations(CAPABILITIES, 1), *combinations(CAPABILITIES, 2)]


def test_a_model_supports_its_capabilities_and_nothing_else() -> None:
    for capabilities in CHOICES:
        model = Model("m", capabilities)
        assert {word for word in CAPABILITIES if model.supports(word)} == set(capabilities)
        assert model.supports(*capabilities)
        assert model.supports()
        # in one order, whatever the order of the capabilities
        assert model.supported_media_inputs == tuple(kind for one, kind in MEDIA_INPUTS.items() if one in capabilities)
        assert model.supported_media_outputs == tuple(kind for one, kind in MEDIA_OUTPUTS.items() if one in capabilities)


def test_all_of_the_capabilities_asked_for_are_needed_and_must_exist() -> None:
    assert Models.GPT_4O.supports("vision", "audio_in")
    assert not Models.GPT_4O.supports("vision", "video_in")
    with pytest.raises(ValueError, match="unknown capability 'visoin'"):
        Models.GPT_4O.supports("visoin")


@pytest.mark.parametrize("given, expected", [
    ("vision", ("vision",)),
    (["vision", "text"], ("vision", "text")),
    ({"document_in", "video_in", "audio_in", "vision", "text"}, ("text", "vision", "audio_in", "video_in", "document_in")),
    (frozenset({"audio_in", "text"}), ("text", "audio_in")),
    ((), ()),
])
def test_capabilities_become_a_tuple(given: Any, expected: tuple[str, ...]) -> None:
    assert Model("m", given).capabilities == expected


@pytest.mark.parametrize("arguments, error, complaint", [
    ((" ",), ValueError, "id must be a non-blank string"),
    ((None,), ValueError, "id must be a non-blank string"),
    (("m", ("sight",)), ValueError, "unknown capability 'sight'; known: text, vision"),
    (("m", "text vision"), ValueError, "unknown capability 'text vision'"),
    (("m", (None,)), ValueError, "unknown capability None"),
    (("m", 5), TypeError, "capabilities must be a tuple of words"),
    *(
        (("m", ("text",), cost), ValueError, "cost must be")
        for cost in (3.0, (3.0,), (3, 15, 1), (3, "15"), (3, True), (-1, 2), (math.nan, 2), (1, 2, -1, None))
    ),
])
def test_a_wrong_argument_of_a_model_is_an_error_that_names_it(arguments: Any, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        Model(*arguments)


def test_models_are_values_and_a_price_may_be_zero_or_unknown() -> None:
    assert (Model("m").cost, Model("m", cost=(0, 0)).cost) == (None, Cost(0.0, 0.0))
    assert Model("m", ["text"], (1, 2)) == Model("m", ("text",), (1.0, 2.0))  # type: ignore[arg-type]
    assert len({Model("m"), Model("m"), Model("n"), Model("m", cost=(1, 2))}) == 3
    with pytest.raises(FrozenInstanceError):
        Model("m").id = "n"  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------- generation options

options = st.builds(
    GenerationOptions,
    temperature=st.none() | st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 10**6),
    top_p=st.none() | st.floats(0, 1),
    thinking=st.none() | st.fixed_dictionaries({"budget": st.integers()}) | st.just({"effort": "low"}),
    extra=st.dictionaries(st.text(max_size=3), st.lists(st.integers(), max_size=2), max_size=3),
)


@pytest.mark.parametrize("given", [
    {}, {"temperature": 0}, {"max_tokens": 1}, {"top_p": 0.0}, {"thinking": {"budget": 0}}, {"thinking": {"effort": "high"}},
    {"extra": {"seed": None}}, {"cache": False}, {"cache": True},
])
def test_options_that_are_set_are_listed_zero_too(given: dict[str, Any]) -> None:
    made = GenerationOptions(**given)
    assert (made.is_empty, made.to_dict()) == (not given, given)


@given(options, options)
def test_merging_takes_each_option_from_the_second_where_it_sets_one(one: GenerationOptions, two: GenerationOptions) -> None:
    merged = one.merge(two)
    for name in ("temperature", "max_tokens", "top_p", "thinking"):
        over = getattr(two, name)
        assert getattr(merged, name) == (getattr(one, name) if over is None else over)
    assert merged.extra == {**one.extra, **two.extra}


@given(options)
def test_equal_options_have_an_equal_hash_and_a_dict_of_them_gives_them_back(one: GenerationOptions) -> None:
    again = GenerationOptions.coerce(one.to_dict())
    assert again == one
    assert hash(again) == hash(one)
    assert (GenerationOptions.coerce(one) is one, GenerationOptions.coerce(None).is_empty) == (True, True)
    other = [hash(one.merge({"thinking": {"budget": budget}, "extra": {"a": budget, "b": [{}]}})) for budget in (7, 8)]
    assert other[0] != other[1]


@pytest.mark.parametrize("given, extra", [
    ({"seed": 1}, {"seed": 1}),
    ({"seed": 1, "temperature": 0.5, "top_logprobs": 3}, {"seed": 1, "top_logprobs": 3}),
    ({"seed": 1, "extra": {"user": "a"}}, {"seed": 1, "user": "a"}),
    ({"seed": 1, "extra": {"seed": 2}}, {"seed": 2}),
    ({"seed": 1, "extra": None}, {"seed": 1}),
])
def test_a_name_that_is_no_option_is_a_field_of_the_vendor(given: dict[str, Any], extra: dict[str, Any]) -> None:
    assert GenerationOptions.coerce(given) == GenerationOptions(temperature=given.get("temperature"), extra=extra)
    assert GenerationOptions().merge(given).extra == extra


def test_options_cannot_be_changed() -> None:
    extra, thinking = {"seed": 1}, {"budget": 1024}
    made = GenerationOptions(extra=extra, thinking=thinking)
    extra["seed"] = thinking["budget"] = 2
    assert (made.extra, made.thinking) == ({"seed": 1}, {"budget": 1024})
    with pytest.raises(FrozenInstanceError):
        made.temperature = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("given, error, complaint", [
    *(({name: "hot"}, TypeError, f"{name} must be a number or None, got 'hot'") for name in ("temperature", "top_p")),
    ({"max_tokens": 0}, ValueError, "max_tokens must be a positive int"),
    ({"max_tokens": True}, ValueError, "max_tokens must be a positive int"),
    ({"thinking": "low"}, TypeError, r'thinking must be \{"budget": int\} or \{"effort": str\}'),
    *(
        ({"thinking": wrong}, ValueError, "thinking must be")
        for wrong in ({}, {"budget": "1"}, {"budget": True}, {"effort": 1}, {"budget": 1, "effort": "low"}, {"depth": 1})
    ),
    ({"extra": [1]}, TypeError, "extra must be a mapping"), ({"cache": "2h"}, ValueError, "cache must be True, False, '1h' or None"),
    *(({"stop": wrong}, ValueError, "stop must be a text that is not empty") for wrong in ("", [], [1], ["a", ""])),
    ({"temprature": 1}, ValueError, r"no generation option 'temprature'; did you mean 'temperature'\?.*extra"),
    ({"top_k_": 1, "top_q": 1}, ValueError, "no generation option 'top_q'; did you mean 'top_p'"),
    ("hot", TypeError, "generation must be GenerationOptions, a mapping or None, got str"),
    ([("temperature", 1)], TypeError, "got list"),
])
def test_a_wrong_option_is_refused_by_name_where_options_are_taken(given: Any, error: type[Exception], complaint: str) -> None:
    for take in (GenerationOptions.coerce, GenerationOptions().merge, lambda it: Agent(instructions="", generation=it)):
        with pytest.raises(error, match=complaint):
            take(given)
