"""`Model`: its id, its capabilities, its price. `Models`: a small catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from kernai._util.copies import Value

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
        """The price of so many tokens in dollars; `cached` and `written` are parts of `prompt`."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        other = max(0, prompt - cached - written)
        tokens = other * self.input + cached * read + written * write + completion * self.output
        return tokens / TOKENS_PER_PRICE


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model(Value):
    """A model as an agent sees it.

    `id` is the vendor's name for it. `capabilities` come from `CAPABILITIES`; another word is a `ValueError`. `cost` is
    a `Cost` or its rates in order, in US dollars per million tokens: prompt, completion and, if they have rates of
    their own, tokens read from the cache and written to it. None for unknown.
    """

    id: str
    capabilities: tuple[str, ...] = ("text",)
    cost: Cost | tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not self.id.strip():
            raise ValueError(f"Model id must be a non-blank string, got {self.id!r}")
        given: object = self.capabilities
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, (tuple, list, set, frozenset)):
            raise TypeError(f"capabilities must be a tuple of words, got {type(given).__name__}")
        unknown = [word for word in given if word not in CAPABILITIES]
        if unknown:
            raise ValueError(f"unknown capability {unknown[0]!r}; known: {', '.join(CAPABILITIES)}")
        object.__setattr__(self, "capabilities", tuple(given) if not isinstance(given, (set, frozenset)) else
                           tuple(word for word in CAPABILITIES if word in given))
        if self.cost is not None:
            object.__setattr__(self, "cost", _cost(self.cost))

    @property
    def rates(self) -> Cost | None:
        """`cost`, which is always kept as a `Cost`."""
        return self.cost if isinstance(self.cost, Cost) else None

    def supports(self, *capabilities: str) -> bool:
        """Whether the model has all of these. An unknown word is a `ValueError`, so that a typo shows."""
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
    if len(given) not in (2, 4) or not all(_is_rate(rate, optional=at > 1) for at, rate in enumerate(given)):
        raise ValueError(
            f"cost must be Cost(input, output, cache_read=, cache_write=), or (input_per_million, output_per_million), "
            f"in dollars, got {cost!r}"
        )
    return Cost(*(None if rate is None else float(rate) for rate in given))  # type: ignore[arg-type]  # checked


def _is_rate(rate: object, *, optional: bool) -> bool:
    if rate is None:
        return optional
    return isinstance(rate, (int, float)) and not isinstance(rate, bool) and 0 <= rate < inf


class Models:
    """Models in common use. Anything else: `Model("its-id", capabilities=(...))`."""

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
