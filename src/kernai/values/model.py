"""`Model`: an id and what it can take and give. `Models`: a small catalogue, nothing hidden behind it."""

from __future__ import annotations

from dataclasses import dataclass

from kernai.values.value import Value

#: what a price is for
TOKENS_PER_PRICE = 1_000_000
CAPABILITIES = ("text", "vision", "audio_in", "audio_out", "video_in", "document_in", "image_gen")

#: which media kind a capability lets in
MEDIA_INPUTS = {"vision": "image", "audio_in": "audio", "video_in": "video", "document_in": "document"}
#: which media kind a capability gives
MEDIA_OUTPUTS = {"image_gen": "image", "audio_out": "audio"}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model(Value):
    """A model as an agent sees it.

    `id` is the vendor's name for it. `capabilities` come from `CAPABILITIES`; another word is a `ValueError`.
    `cost` is a pair, US dollars per million prompt tokens and per million completion tokens, or None for unknown.
    """

    id: str
    capabilities: tuple[str, ...] = ("text",)
    cost: tuple[float, float] | None = None

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

    def supports(self, *capabilities: str) -> bool:
        """Whether the model has all of these. An unknown word is a `ValueError`, so that a typing error shows."""
        for word in capabilities:
            if word not in CAPABILITIES:
                raise ValueError(f"unknown capability {word!r}; known: {', '.join(CAPABILITIES)}")
        return all(word in self.capabilities for word in capabilities)

    @property
    def supported_media_inputs(self) -> tuple[str, ...]:
        """Media kinds the model can take: a subset of ``image audio video document``."""
        return tuple(kind for word, kind in MEDIA_INPUTS.items() if word in self.capabilities)

    @property
    def supported_media_outputs(self) -> tuple[str, ...]:
        """Media kinds the model can give: a subset of ``image audio``."""
        return tuple(kind for word, kind in MEDIA_OUTPUTS.items() if word in self.capabilities)


def _cost(cost: object) -> tuple[float, float]:
    if (
        not isinstance(cost, (tuple, list))
        or len(cost) != 2  # noqa: PLR2004 - a pair
        or not all(isinstance(part, (int, float)) and not isinstance(part, bool) and part >= 0 for part in cost)
    ):
        raise ValueError(f"cost must be (input_per_million, output_per_million) in dollars, got {cost!r}")
    return (float(cost[0]), float(cost[1]))


class Models:
    """Models in common use. Anything else: `Model("its-id", capabilities=(...))`."""

    TEXT_ONLY = Model("text-only")
    CLAUDE_OPUS_4 = Model("claude-opus-4-20250514", ("text", "vision"))
    CLAUDE_SONNET_4 = Model("claude-sonnet-4-20250514", ("text", "vision"))
    CLAUDE_HAIKU_4_5 = Model("claude-haiku-4-5-20251001", ("text", "vision"))
    GPT_4O = Model("gpt-4o", ("text", "vision", "audio_in", "audio_out"))
    GPT_4O_MINI = Model("gpt-4o-mini", ("text", "vision"))
    GEMINI_2_5_PRO = Model("gemini-2.5-pro", ("text", "vision", "audio_in", "video_in", "document_in"))
    LLAMA_3_1 = Model("llama3.1")
    LLAVA = Model("llava", ("text", "vision"))
