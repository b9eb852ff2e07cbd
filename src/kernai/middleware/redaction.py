"""`redact`: what matches a pattern reaches neither the conversation nor anybody who watches the run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any

from kernai.errors import Pause, ProviderError, Stop, copied, error_text
from kernai.jsonio.json_data import jsonable
from kernai.loop.effects import CallModel, Effect
from kernai.middleware.chain import Flow, Middleware
from kernai.values.llm_response import LlmResponse
from kernai.values.message import Message
from kernai.values.skill_result import SkillResult


def redact(pattern: str | re.Pattern[str], replacement: str = "[redacted]") -> Middleware:
    """Replaces what matches in the answers of models, skills and protocols, and in their errors, pauses and stops.

    Text is shown when it is whole. What a run is given (input, history, instructions) and `progress` stay as they are.
    """
    if not isinstance(pattern, (str, re.Pattern)):
        raise TypeError(f"pattern must be a text or a compiled pattern, got {type(pattern).__name__}")
    found = re.compile(pattern)

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return found.sub(replacement, value)
        if isinstance(value, Mapping):
            return {clean(key): clean(one) for key, one in value.items()}
        return type(value)(map(clean, value)) if isinstance(value, (list, tuple)) else value

    def cleaned(outcome: Any) -> Any:
        if isinstance(outcome, LlmResponse):
            return replace(outcome, content=clean(outcome.content), metadata=clean(jsonable(outcome.metadata)))
        if isinstance(outcome, Message):
            return Message(outcome.role, clean(outcome.content))
        result = SkillResult.of(outcome)
        return result.replaced(clean(result.parts), clean(jsonable(result.metadata)))

    def middleware(effect: Effect) -> Flow:
        try:
            return cleaned((yield effect.replace(stream=False) if isinstance(effect, CallModel) else effect))
        except Stop as stop:
            ended = copy(stop)
            ended.message = clean(stop.message)
            ended.args = (stop.reason, ended.message)
            raise ended from None
        except Pause as pause:
            raise Pause(clean(pause.reason), clean(jsonable(pause.metadata))) from None
        except Exception as error:
            text = clean(error_text(error))
            if text == error_text(error):
                raise
            hidden = copied(error) if isinstance(error, ProviderError) else RuntimeError()
            hidden.args = (text,)
            raise hidden from None

    return middleware
