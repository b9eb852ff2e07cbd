"""Calls quoted from outside text: if the model makes one, it has to confirm that it means it.

Outside text is what skills, protocols, tasks and sub-agents returned, their error messages, and the results in a
history. Each scope remembers what its model has read, on top of what its parent knew. Texts are searched when the next
response has arrived, so that the calls of one response are not compared with its own results. All of it follows from
recorded outcomes, so a replay decides the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kernai.blocks.block import neutralize, restored
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.parser import parse
from kernai.errors import SkillInputError
from kernai.inputs.table import ReadParams
from kernai.jsonio.json_data import jsonable

if TYPE_CHECKING:
    from kernai.blocks.block import Block
    from kernai.blocks.quotations import Look
    from kernai.loop.run_state import Run
    from kernai.registry.skill_definition import Skill
    from kernai.values.message import Message

#: the texts by which contents are compared: two contents that have one in common are the same call
Keys = frozenset[str]
#: calls that a model was asked to confirm: type, name and a key of the content
Asked = frozenset[tuple[str, str | None, str]]
_NONE: Asked = frozenset()
TOGETHER = 2  # from these rules on, see `rules.QUOTES`
_ANY = ("", None)  # the key of a text that was made to hide its calls


class QuotedCalls:
    """What one scope remembers. `outer` is that of its parent run."""

    __slots__ = (
        "_asked", "_confirmed", "_contents", "_known", "_quoted", "_spelled", "_unread", "is_due", "knows_none",
        "outer",
    )

    def __init__(self) -> None:
        self.outer: QuotedCalls | None = None
        #: whether `begin_response` has to look at the next response
        self.is_due = False
        #: whether no text held a call, as in most runs
        self.knows_none = True
        # few runs ever read a call, so these are created with the first one
        self._unread: list[tuple[str, Look]] | None = None
        #: by type and name: the contents, each with its source, and all of them once
        self._quoted: dict[tuple[str, str | None], list[tuple[str | None, str]]] | None = None
        self._contents: set[tuple[str, str | None, str | None]] | None = None
        #: by type and name: how many of those read were searched, and the keys of their contents
        self._known: dict[tuple[str, str | None], tuple[int, dict[str, str]]] | None = None
        #: letters and digits of texts that may spell a call, each with its source
        self._spelled: list[tuple[str, str]] | None = None
        #: calls that the model was asked to confirm, and those that its response confirms
        self._asked = self._confirmed = _NONE

    def begin_below(self, outer: QuotedCalls) -> None:
        """This scope's model knows what its parent's has read so far."""
        self.outer, self.knows_none = outer, outer.knows_none

    def record_untrusted(self, source: str, text: str) -> None:
        """The model will read this text with its next call."""
        if not (  # written out, since every result is checked
            "<" in text or "&" in text or "%" in text or "\\" in text or "name" in text or "CALLS" in text
            or "=3" in text
        ) and text.isascii():
            return  # most short texts end here
        from kernai.blocks.quotations import look_at  # has patterns that few runs need

        look = look_at(text)
        if look is not None:
            self._unread = self._unread or []
            self._unread.append((source, look))
            self.is_due = True

    def begin_response(self, *, confirms: Callable[[Asked], bool]) -> None:
        """A response has arrived; `confirms` says whether it holds nothing but calls that were to be confirmed."""
        self._confirmed = self._asked if self._asked and confirms(self._asked) else _NONE
        self._asked = _NONE
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._read(unread)
        self.is_due = bool(self._confirmed)

    def _read(self, unread: list[tuple[str, Look]]) -> None:
        """Finds the calls in texts that the model has read."""
        for source, look in unread:
            self._spelled = [*(self._spelled or ()), *((one, source) for one in look.spellings)]
            if not look.shows_call:
                continue
            from kernai.blocks.quotations import quoted_calls  # few runs come here

            for call in quoted_calls(look.text):
                of = _ANY if call.type is None else (call.type, call.name)
                if self._quoted is None or self._contents is None:
                    self._quoted, self._contents = {}, set()
                if (*of, call.content) not in self._contents:
                    self._contents.add((*of, call.content))
                    self._quoted.setdefault(of, []).append((call.content, source))
        self.knows_none = self.knows_none and not (self._quoted or self._spelled)

    def source_of(
        self, type: str, name: str | None, content: str, keys_of: Callable[[str], Keys], *, may_confirm: bool,
        spelled: bool,
    ) -> str | None:
        """Where this call is quoted from, if it is and the model has not confirmed it; confirmation is then expected.

        `spelled`: a text also quotes the call if only its letters and digits are the same.
        """
        lists = self.untrusted_calls(type, name)
        wild = next((calls[0] for calls in self.untrusted_calls(*_ANY) if calls), None)
        spellings = self._spellings() if spelled else []
        if not any(lists) and wild is None and not spellings:
            return None
        keys = keys_of(content)
        if not keys or any((type, name, key) in self._confirmed for key in keys):
            return None
        if self._known is None:
            self._known = {}
        seen, known = self._known.get((type, name), (0, {}))
        for calls in lists:
            for quoted, where in calls[seen:]:
                for key in ("",) if quoted is None else keys_of(quoted):
                    known.setdefault(key, where)
            seen = max(0, seen - len(calls))
        self._known[type, name] = sum(map(len, lists)), known
        source = next((known[key] for key in sorted(keys) if key in known), known.get(""))
        source = source or (wild and wild[1])
        if source is None and spellings:
            from kernai.blocks.quotations import is_spelled_in  # loaded by now

            source = next((where for one, where in spellings if is_spelled_in(one, type, name, content)), None)
        if source is not None and may_confirm:
            self._asked |= {(type, name, key) for key in keys}
            self.is_due = True
        return source

    def untrusted_calls(self, type: str, name: str | None) -> list[list[tuple[str | None, str]]]:
        """The quoted calls of a type and name, by scope; first those of outer scopes, which do not change meanwhile."""
        outer = [] if self.outer is None else self.outer.untrusted_calls(type, name)
        return outer if self._quoted is None else [*outer, self._quoted.get((type, name), [])]


    def _spellings(self) -> list[tuple[str, str]]:
        outer = [] if self.outer is None else self.outer._spellings()  # noqa: SLF001 - of the same class
        return [*outer, *(self._spelled or ())]


def confirmed(run: Run, blocks: Sequence[Block]) -> Callable[[Asked], bool]:
    """Says whether all `blocks` are calls that were to be confirmed."""

    def keys_of(block: Block) -> tuple[str | None, Keys]:
        if block.type in ("final", "plan"):
            return None, content_keys(block.content)
        name = block.name and block.name.strip(ASCII_SPACE)
        skill = run.skills.look_up(name or "")[0] if block.type == "command" else None
        return name, content_keys(block.content) if skill is None else skill_keys(run, skill)(block.content)

    def confirms(asked: Asked) -> bool:
        if len(blocks) != 1 and run.gate.rules(run).quotes < TOGETHER:
            return False
        found = [(block.type, *keys_of(block)) for block in blocks]
        is_asked = all(any((kind, name, key) in asked for key in keys) for kind, name, keys in found)
        return is_asked and 0 < len(found) == len(set(found))  # one confirmation is for one call

    return confirms


def skill_keys(run: Run, skill: Skill) -> Callable[[str], Keys]:
    """The parameters of a call as they were sent, be a number in quotes or not, and as the skill gets them."""

    def keys_of(content: str) -> Keys:
        params = skill.read(content, repair=run.root.repair)
        if isinstance(params, ReadParams) and params.refused:
            return frozenset()  # it calls nothing
        keys = {f"sent {_canonical(_without_types(jsonable(params)))}"}
        with suppress(SkillInputError):
            keys.add(f"bound {_canonical(skill.bind(params, run.context.media_store, repair=True))}")
        return frozenset(keys)

    return keys_of


def content_keys(content: str) -> Keys:
    """A protocol's request, a plan or an answer: JSON by its value, other text without the white space around it."""
    bare = content.strip(ASCII_SPACE)
    keys = {f"text {bare}"}
    if bare[:1] in ("{", "[", "`"):
        from kernai.jsonio.tolerant_json import read_tolerantly  # few runs come here

        with suppress(ValueError):
            keys.add(f"value {_canonical(read_tolerantly(bare).value)}")
    return frozenset(keys)


def _without_types(value: Any) -> Any:
    """Numbers and booleans as texts: a call of the other type is refused, and then shown with the right one."""
    if isinstance(value, dict):
        return {key: _without_types(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_types(one) for one in value]
    return json.dumps(value) if isinstance(value, (bool, int, float)) else value


def _canonical(value: object) -> str:
    return json.dumps(jsonable(value), sort_keys=True)


def record_untrusted_history(run: Run, message: Message) -> None:
    """The results and errors in a message of a history.

    In there, what the runtime itself says is unchanged, and what it passed on is neutralised.
    """
    if message.role != "user" or ("<block" not in message.text and "<result" not in message.text):
        return
    for block in parse(message.text).blocks:
        if block.type not in ("result", "error"):
            continue
        is_own = block.type == "error" or (block.name or "").startswith("/")
        if is_own:
            run.quoted.record_untrusted("history", passed_on(block.content))
            continue
        # a call's parameters may hold an `&lt;` of their own, which a model copies or decodes
        for text in dict.fromkeys((restored(block.content), block.content.replace("&lt;", "<"))):
            run.quoted.record_untrusted("history", text)


_OWN_TAG = r"&lt;/?(?:block|command|final|plan)\b[^<>]*>?"


def passed_on(text: str) -> str:
    """What the runtime passes on in an error or a listing of its own, without the tags of its usage lines."""
    return re.sub(_OWN_TAG, "", neutralize(text.replace("&lt;", "\x00"))).replace("\x00", "<")
