"""`Model`: its id, its capabilities, its price. `Models`: a small catalogue. `GenerationOptions`: how to generate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, NamedTuple

from kernai._util.api import Value, check_count, check_type
from kernai.jsonio.json_data import copy_of

TOKENS_PER_PRICE = 1_000_000
CAPABILITIES = ("text", "vision", "audio_in", "audio_out", "video_in", "document_in", "image_gen")

#: the kind of media that a capability accepts
MEDIA_INPUTS = {"vision": "image", "audio_in": "audio", "video_in": "video", "document_in": "document"}
#: the kind of media that a capability produces
MEDIA_OUTPUTS = {"image_gen": "image", "audio_out": "audio"}


class Cost(NamedTuple):
    """What a model costs, in US dollars per million tokens.

    `cache_read` is the rate of prompt tokens that were read from the vendor's cache, `cache_write` of those written to
    it; None means the rate of other prompt tokens.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None

    @property
    def highest(self) -> float:
        """The highest rate."""
        return max(rate for rate in self if rate is not None)

    def of(self, prompt: int, completion: int, cached: int = 0, written: int = 0) -> float:
        """The price of these numbers of tokens in dollars; `cached` and `written` are parts of `prompt`."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        other = max(0, prompt - cached - written)
        tokens = other * self.input + cached * read + written * write + completion * self.output
        return tokens / TOKENS_PER_PRICE


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model(Value):
    """A model as an agent sees it.

    `id` is the vendor's name for it. `capabilities` are some of ``text vision audio_in audio_out video_in document_in
    image_gen``; any other raises `ValueError`. `cost` is a `Cost` or its rates in order, in US dollars per million
    tokens: prompt, completion and, if they have rates of their own, tokens read from the cache and written to it; None
    if unknown.
    """

    id: str
    capabilities: tuple[str, ...] = ("text",)
    cost: Cost | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():
            raise ValueError(f"Model id must be a non-blank string, got {self.id!r}")
        given: Any = self.capabilities
        if isinstance(given, str):
            given = (given,)
        check_type(given, (tuple, list, set, frozenset), "capabilities must be a tuple of words")
        self.supports(*given)  # only to check the words
        object.__setattr__(self, "capabilities", tuple(given) if not isinstance(given, (set, frozenset)) else
                           tuple(word for word in CAPABILITIES if word in given))
        if self.cost is not None:
            object.__setattr__(self, "cost", _cost(self.cost))

    @property
    def rates(self) -> Cost | None:
        """`cost`, which is always kept as a `Cost`."""
        return self.cost if isinstance(self.cost, Cost) else None

    def supports(self, *capabilities: str) -> bool:
        """Whether the model has all of these. Raises `ValueError` for an unknown word, so that a typo is noticed."""
        for word in capabilities:
            if word not in CAPABILITIES:
                raise ValueError(f"unknown capability {word!r}; known: {', '.join(CAPABILITIES)}")
        return all(word in self.capabilities for word in capabilities)

    @property
    def supported_media_inputs(self) -> tuple[str, ...]:
        """Media kinds that the model accepts: a subset of ``image audio video document``."""
        return tuple(kind for word, kind in MEDIA_INPUTS.items() if word in self.capabilities)

    @property
    def supported_media_outputs(self) -> tuple[str, ...]:
        """Media kinds that the model produces: a subset of ``image audio``."""
        return tuple(kind for word, kind in MEDIA_OUTPUTS.items() if word in self.capabilities)


def _cost(cost: object) -> Cost:
    given = tuple(cost) if isinstance(cost, (tuple, list)) else ()
    numbers = [one for at, one in enumerate(given) if one is not None or at < 2]  # noqa: PLR2004 - two are required
    are_rates = all(isinstance(one, (int, float)) and not isinstance(one, bool) and 0 <= one < inf for one in numbers)
    if len(given) not in (2, 4) or not are_rates:
        raise ValueError(
            f"cost must be Cost(input, output, cache_read=, cache_write=), or (input_per_million, output_per_million), "
            f"in dollars, got {cost!r}"
        )
    return Cost(*(None if rate is None else float(rate) for rate in given))  # type: ignore[arg-type]  # checked


class Models:
    """Some models; vendors retire the older ones. For any other: `Model("its-id", capabilities=(...))`."""

    TEXT_ONLY = Model("text-only")
    CLAUDE_OPUS_5 = Model("claude-opus-5", ("text", "vision"))
    CLAUDE_SONNET_5 = Model("claude-sonnet-5", ("text", "vision"))
    CLAUDE_OPUS_4 = Model("claude-opus-4-20250514", ("text", "vision"))
    CLAUDE_SONNET_4 = Model("claude-sonnet-4-20250514", ("text", "vision"))
    CLAUDE_HAIKU_4_5 = Model("claude-haiku-4-5-20251001", ("text", "vision"))
    GPT_4O = Model("gpt-4o", ("text", "vision", "audio_in", "audio_out"))
    GPT_4O_MINI = Model("gpt-4o-mini", ("text", "vision"))
    GEMINI_2_5_PRO = Model("gemini-2.5-pro", ("text", "vision", "audio_in", "video_in", "document_in"))
    LLAMA_3_1 = Model("llama3.1")
    LLAVA = Model("llava", ("text", "vision"))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GenerationOptions(Value):
    """How a model should generate; None leaves an option to the vendor.

    `temperature` and `top_p` have the vendor's ranges. `max_tokens` limits the completion. `thinking` is
    ``{"budget": tokens}`` or ``{"effort": "low" | …}``. `stop` is a text, or several, at which the answer ends.
    ``cache=True`` asks the vendor to cache the prompt for the next request, ``"1h"`` to cache it for an hour. `extra`
    is added to the vendor's request unchanged.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    thinking: Mapping[str, Any] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    cache: bool | str | None = None
    stop: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature)
        _check_number("top_p", self.top_p)
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens)
        if self.thinking is not None:
            _check_thinking(self.thinking)
            object.__setattr__(self, "thinking", dict(self.thinking))
        if self.cache is not None and self.cache not in (True, False, "1h"):
            raise ValueError(f"cache must be True, False, '1h' or None, got {self.cache!r}")
        if self.stop is not None:
            object.__setattr__(self, "stop", _stop(self.stop))
        extra = {} if self.extra is None else check_type(self.extra, Mapping, "extra must be a mapping")
        object.__setattr__(self, "extra", copy_of(extra))

    @classmethod
    def coerce(cls, value: GenerationOptions | Mapping[str, Any] | None) -> GenerationOptions:
        """Makes options from None, a mapping, or options. Unknown keys go into `extra`, and so to the vendor.

        Raises `ValueError` for a key that differs in one letter from the name of an option.
        """
        if value is None:
            return cls()
        if isinstance(value, cls):
            return value
        found: Mapping[str, Any] = check_type(value, Mapping, "generation must be GenerationOptions, a mapping or None")
        known = [one.name for one in fields(cls)]
        given = {key: one for key, one in found.items() if key in known}
        others = {key: one for key, one in found.items() if key not in given}
        for key in others:
            meant = next((name for name in known if _one_letter_apart(str(key), name)), None)
            if meant is not None:
                raise ValueError(f"there is no generation option {key!r}; did you mean {meant!r}? A vendor's field of "
                                 f"that name goes into extra={{{key!r}: ...}}")
        if others:
            given["extra"] = {**others, **check_type(given.get("extra") or {}, Mapping, "extra must be a mapping")}
        return cls(**given)

    def merge(self, other: GenerationOptions | Mapping[str, Any] | None) -> GenerationOptions:
        """These options overridden by `other`; a None in `other` changes nothing, `extra` is merged by key."""
        over = GenerationOptions.coerce(other)
        return GenerationOptions(**{**self.to_dict(), **over.to_dict(), "extra": {**self.extra, **over.extra}})

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set."""
        return self == GenerationOptions()

    def to_dict(self) -> dict[str, Any]:
        """The options that are set."""
        return {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) not in (None, {})}

    def __hash__(self) -> int:
        others = {**(self.thinking or {}), **self.extra}  # mappings and lists among their values have no hash
        plain = frozenset((key, one if isinstance(one, (str, int, float)) else None) for key, one in others.items())
        return hash((self.temperature, self.max_tokens, self.top_p, plain))


def _one_letter_apart(one: str, other: str) -> bool:
    """Whether the only difference is one missing, additional or different letter."""
    at = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    rests = (one[at:], other[at + 1 :]), (one[at + 1 :], other[at:]), (one[at + 1 :], other[at + 1 :])
    return one != other and any(a == b for a, b in rests)


def _check_number(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
        raise TypeError(f"{name} must be a number or None, got {value!r}")


def _check_thinking(thinking: object) -> None:
    wanted = 'thinking must be {"budget": int} or {"effort": str}'
    given: Mapping[str, Any] = check_type(thinking, Mapping, wanted)
    for key, kind in (("budget", int), ("effort", str)):
        if set(given) == {key} and isinstance(given[key], kind) and not isinstance(given[key], bool):
            return
    raise ValueError(f"{wanted}, got {dict(given)!r}")


def _stop(stop: object) -> list[str]:
    given = [stop] if isinstance(stop, str) else list(stop) if isinstance(stop, (list, tuple)) else []
    if not given or not all(isinstance(one, str) and one for one in given):
        raise ValueError(f"stop must be a text that is not empty, or a list of such, got {stop!r}")
    return given
