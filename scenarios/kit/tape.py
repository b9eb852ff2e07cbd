"""`Tape`: the model's turns of one recorded run, in a file.

::

    {"format": 2, "scenario": NAME, "provider": "openai", "model": "gpt-4o-mini", "conversations": [
      {"scope": "", "input": "What has to be ordered?", "turns": [
        {"content": "<block ...", "asked": ["What has to be ordered?"], "prompt_tokens": 812, "completion_tokens": 31},
        {"error": {"message": "overloaded", "retryable": true}}]}]}

A conversation is one run or sub-run. `scope` is its scope in the events. `input` is its input; if that has media, the
text after the last of them. `asked` has the texts of the user messages that were new at that turn, with media as
``[kind:id]``. A turn needs its `content`, or the `error` with which the provider failed; everything else may be
missing. A tape written by hand has "hand-written" as its provider and model.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kit.definition import UsageError

TAPE_FORMAT = 2
MADE_BY = "make it with MODEL PROVIDER --save-tape, or by hand"
TOKEN_COUNTS = ("prompt_tokens", "completion_tokens")


@dataclass(frozen=True)
class Turn:
    """One call of the model: its `content`, or the `error` with which it failed. None means: not on the tape."""

    content: str = ""
    asked: tuple[str, ...] | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: Mapping[str, Any] | None = None

    @property
    def is_counted(self) -> bool:
        """Whether both token counts are known."""
        return self.prompt_tokens is not None and self.completion_tokens is not None


@dataclass(frozen=True)
class Conversation:
    """The turns of one run or sub-run, in order."""

    scope: str
    input: str
    turns: tuple[Turn, ...]

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"the conversation {self.scope!r}" if self.scope else "the root's conversation"


@dataclass(frozen=True)
class Tape:
    """All conversations of one run, and the model that answered in them."""

    scenario: str
    provider: str
    model: str
    conversations: tuple[Conversation, ...]

    @classmethod
    def load(cls, path: Path, scenario: str) -> Tape:
        """Read a tape. Raises `UsageError` if there is none, or if it is not of this scenario and format."""
        data = read_json("tape", path, MADE_BY)
        if not isinstance(data, dict) or data.get("format") != TAPE_FORMAT:
            raise UsageError(
                f'{path} is not a tape of format {TAPE_FORMAT}: it must be an object with "format": {TAPE_FORMAT}; '
                "make it again with --save-tape"
            )
        if data.get("scenario") != scenario:
            raise UsageError(f"{path} is a tape of the scenario {data.get('scenario')!r}, not of {scenario!r}")
        for key in ("provider", "model"):
            if not isinstance(data.get(key), str):
                raise UsageError(f'{path} must have its "{key}", as text; "hand-written" if no model was called')
        return cls(scenario, data["provider"], data["model"], _conversations(path, data.get("conversations")))

    @property
    def is_counted(self) -> bool:
        """Whether it has the token counts of every turn."""
        return all(turn.is_counted for one in self.conversations for turn in one.turns if turn.error is None)

    @property
    def turns(self) -> int:
        """The number of turns in all conversations."""
        return sum(len(one.turns) for one in self.conversations)

    @property
    def origin(self) -> str:
        """A text about its origin."""
        written = "hand-written"
        return written if self.provider == written else f"recorded from {self.provider} {self.model}"

    def save(self, path: Path) -> None:
        """Write the tape, replacing an existing one, and create its folder. Raises `UsageError` if that fails."""
        data = {"format": TAPE_FORMAT, **asdict(self, dict_factory=_known)}
        # half a surrogate pair has no UTF-8, and JSON has an escape for it
        text = re.sub("[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}",
                      json.dumps(data, indent=2, ensure_ascii=False))
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text + "\n", encoding="utf-8")
            beside.replace(path)  # completely or not at all
        except OSError as error:
            with suppress(OSError):
                beside.unlink()
            raise UsageError(f"cannot write the tape {path}: {error.strerror}") from error


def _known(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A part of a tape as it is in the file: without unknown values, and with an error in place of the content."""
    known = {key: value for key, value in pairs if value is not None}
    if "error" in known:
        del known["content"]
        known = {"error": known.pop("error"), **known}
    return known


def check_place(path: Path) -> None:
    """Raises `UsageError` if a file that is not a tape is at the place. A tape of an older format may be replaced."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return
    try:
        data = read_json("tape", path, MADE_BY)
    except UsageError:
        data = None
    if not isinstance(data, dict) or "scenario" not in data or "events" in data:
        raise UsageError(
            f"--save-tape: {path} exists and is not a tape, so it is left unchanged: name another file with --tape"
        )


def read_json(what: str, path: Path, made_by: str) -> Any:
    """The data of a tape or a log. Raises `UsageError` if it cannot be read; `made_by` says how to make one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"there is no {what} {path}: {made_by}") from error
    except OSError as error:
        raise UsageError(f"cannot read the {what} {path}: {error.strerror}") from error
    except RecursionError as error:
        raise UsageError(f"cannot read the {what} {path}: it is nested too deeply") from error
    except ValueError as error:
        raise UsageError(f"cannot read the {what} {path}: not JSON: {error}") from error


def _conversations(path: Path, found: object) -> tuple[Conversation, ...]:
    if not isinstance(found, list) or not found:
        raise UsageError(f'{path} must hold "conversations", a list that is not empty')
    return tuple(_conversation(f"{path}: conversation {number}", one) for number, one in enumerate(found, 1))


def _conversation(place: str, found: object) -> Conversation:
    if not isinstance(found, dict) or not isinstance(found.get("turns"), list) or not found["turns"]:
        raise UsageError(f'{place} must be an object with "turns", a list that is not empty')
    for key in ("scope", "input"):
        if not isinstance(found.get(key), str):
            raise UsageError(f'{place} must have its "{key}", as text')
    turns = tuple(_turn(f"{place}, turn {number}", turn) for number, turn in enumerate(found["turns"], 1))
    return Conversation(found["scope"], found["input"], turns)


def _turn(place: str, found: object) -> Turn:
    if not isinstance(found, dict) or isinstance(found.get("content"), str) == ("error" in found):
        raise UsageError(f'{place} must be an object with the text "content", or with an "error"')
    counts = {key: found.get(key) for key in TOKEN_COUNTS}
    if not all(value is None or _is_count(value) for value in counts.values()):
        raise UsageError(f"{place}: {' and '.join(TOKEN_COUNTS)} must be whole numbers")
    asked = found.get("asked")
    if asked is not None and not _is_texts(asked):
        raise UsageError(f'{place}: "asked" must be a list of texts')
    error = found.get("error")
    if "error" in found and not (isinstance(error, dict) and isinstance(error.get("message"), str)):
        raise UsageError(f'{place}: "error" must be an object with the text "message"')
    return Turn(found.get("content", ""), None if asked is None else tuple(asked), error=error, **counts)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_texts(value: Sequence[object] | object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
