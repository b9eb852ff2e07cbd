"""Calls quoted from outside text: if the model makes one, it has to confirm that it means it.

Outside text is what skills, protocols, tasks and sub-agents returned, their error messages, and the results in a
history. Each scope remembers what its model has read, in addition to what its parent knew. Texts are only searched once
the next response has arrived, so that the calls of one response are not compared with their own results. All of this
follows from recorded outcomes, so a replay makes the same decisions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from kernai.blocks.block import Block, neutralize, restored
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.parser import parse
from kernai.errors import SkillInputError
from kernai.inputs.table import ReadParams
from kernai.jsonio.json_data import jsonable

if TYPE_CHECKING:
    from kernai.blocks.quotations import Look
    from kernai.loop.run_state import Run
    from kernai.registry.skill_definition import Skill
    from kernai.values.message import Message

#: normal forms of a call's content: two contents that have one in common are the same call
Keys = frozenset[str]
#: calls that a model was asked to confirm: type, name and a key of the content
Asked = frozenset[tuple[str, str | None, str]]
_NONE: Asked = frozenset()
_NO_TEXTS: Mapping[str, str] = {}
TOGETHER = 2  # the first `Rules.quotes` with which one response may confirm several calls, see `definition.QUOTES`
HANDLERS = 3  # the first with which protocol handlers' messages in a history count as outside text
TRANSLATED_ANSWERS = 4  # the first with which an answer in another format can be confirmed
MEDIA_NAMES = 4  # the first with which names of media in protocol handlers' messages count as outside text
_ANY = ("", None)  # in place of type and name: a text that was made to hide its calls may quote any call


class QuotedCalls:
    """The quoted calls that one scope knows."""

    __slots__ = ("_asked", "_confirmed", "_known", "_spelled", "_unread", "calls", "knows_none")

    def __init__(self) -> None:
        #: whether no text may contain a call, as in most runs; otherwise `begin_response` needs each response
        self.knows_none = True
        # few runs ever read a call, so these are created with the first one
        self._unread: list[tuple[str, Look]] | None = None
        #: quoted contents by type and name, each with its first source
        self.calls: dict[tuple[str, str | None], dict[str | None, str]] | None = None
        #: by type and name: how many of the quoted contents have been indexed, and the source of each of their keys
        self._known: dict[tuple[str, str | None], tuple[int, dict[str, str]]] | None = None
        #: letters and digits of texts that may spell a call, each with its first source
        self._spelled: Mapping[str, str] = _NO_TEXTS
        #: calls that the model was asked to confirm, and those that its response confirms
        self._asked = self._confirmed = _NONE

    def begin_sub_run(self, outer: QuotedCalls) -> None:
        """Begins a sub-run: its model knows what the parent's model has read so far."""
        self.calls = outer.calls and {of: {**calls} for of, calls in outer.calls.items()}
        self._spelled = outer._spelled
        self.knows_none = self.knows_none and not (self.calls or self._spelled)

    def record_untrusted(self, source: str, text: str) -> None:
        """Notes an outside text that the model reads with its next call."""
        if not (  # without a loop, for speed: every result is checked
            "<" in text or "&" in text or "%" in text or "\\" in text or "name" in text or "CALLS" in text
            or "=3" in text
        ) and text.isascii():
            return  # most short texts end here
        from kernai.blocks.quotations import look_at  # has patterns that few runs need

        look = look_at(text)
        if look is not None:
            self._unread = self._unread or []
            self._unread.append((source, look))
            self.knows_none = False

    def begin_response(self, *, confirms: Callable[[Asked], bool]) -> None:
        """Prepares to check a response. `confirms` says whether it has only calls that were to be confirmed."""
        self._confirmed = self._asked if self._asked and confirms(self._asked) else _NONE
        self._asked = _NONE
        if self._unread:
            self._spelled = spelled = dict(self._spelled)  # sub-runs share what was there
            for source, look in self._unread:
                for one in look.spellings:
                    spelled.setdefault(one, source)
                if not look.shows_call:
                    continue
                from kernai.blocks.quotations import quoted_calls  # few runs come here

                for call in quoted_calls(look.text):
                    self.calls = self.calls or {}
                    of = _ANY if call.type is None else (call.type, call.name)
                    self.calls.setdefault(of, {}).setdefault(call.content, source)
        self._unread, self.knows_none = None, not (self.calls or self._spelled)

    def source_of(
        self, type: str, name: str | None, content: str, keys_of: Callable[[str], Keys], *, may_confirm: bool,
        spelled: bool,
    ) -> str | None:
        """Returns the source from which a call is quoted; None if it is not, or if the model has confirmed it.

        With `may_confirm`, the model's next response may confirm the call. With `spelled`, a text also quotes a call if
        only the letters and digits are the same.
        """
        calls, wild = ((self.calls or {}).get(of, {}) for of in ((type, name), _ANY))
        spellings = self._spelled if spelled else _NO_TEXTS
        if not calls and not wild and not spellings:
            return None
        keys = keys_of(content)
        if not keys or any((type, name, key) in self._confirmed for key in keys):
            return None
        self._known = self._known or {}
        # `known` has the keys of the first `seen` calls
        seen, known = self._known.get((type, name), (0, {}))
        for quoted, where in islice(calls.items(), seen, None):
            for key in ("",) if quoted is None else keys_of(quoted):
                known.setdefault(key, where)
        self._known[type, name] = len(calls), known
        source = next((known[key] for key in sorted(keys) if key in known), known.get(""))
        source = source or next(iter(wild.values()), None)
        if source is None and spellings:
            from kernai.blocks.quotations import is_spelled_in  # loaded by now

            source = next((where for one, where in spellings.items() if is_spelled_in(one, type, name, content)), None)
        if source is not None and may_confirm:
            self._asked |= {(type, name, key) for key in keys}
        return source


def are_asked(run: Run, blocks: Sequence[Block], asked: Asked) -> bool:
    """Whether all `blocks` are calls that the model was asked to confirm, and there are any."""
    if len(blocks) != 1 and run.gate.rules(run).quotes < TOGETHER:
        return False
    found = set()
    for block in blocks:
        name = called_name(block)
        skill = run.skills.find(name or "") if block.type == "command" else None
        keys = content_keys(block.content) if skill is None else skill_keys(run, skill)(block.content)
        if not any((block.type, name, key) in asked for key in keys):
            return False
        found.add((block.type, name, keys))
    return 0 < len(blocks) == len(found)  # one confirmation is for one call


def called_name(block: Block) -> str | None:
    """Returns the name that a block calls. The name of a final or a plan means nothing."""
    return None if block.type in ("final", "plan") else block.name and block.name.strip(ASCII_SPACE)


def skill_keys(run: Run, skill: Skill) -> Callable[[str], Keys]:
    """Returns a function for the keys of a skill's call: its parameters as sent, and as the skill receives them.

    In the parameters as sent, a number in quotes is the same as the number.
    """

    def keys_of(content: str) -> Keys:
        params = skill.read(content, repair=run.gate.repair(run))
        if isinstance(params, ReadParams) and params.refused:
            return frozenset()  # it calls nothing
        keys = {f"sent {_canonical(_without_types(jsonable(params)))}"}
        with suppress(SkillInputError):
            keys.add(f"bound {_canonical(skill.bind(params, run.context.media_store, repair=True))}")
        return frozenset(keys)

    return keys_of


def content_keys(content: str) -> Keys:
    """Returns the keys of a protocol's request, a plan or an answer: its stripped text and, of JSON, also its value."""
    bare = content.strip(ASCII_SPACE)
    keys = {f"text {bare}"}
    if bare[:1] in ("{", "[", "`"):
        from kernai.jsonio.tolerant_json import read_tolerantly  # few runs come here

        with suppress(ValueError):
            keys.add(f"value {_canonical(read_tolerantly(bare)[0])}")
    return frozenset(keys)


def _without_types(value: Any) -> Any:
    """Turns numbers and booleans into text. A call with the wrong type is refused, then repeated with the right one."""
    if isinstance(value, dict):
        return {key: _without_types(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_types(one) for one in value]
    return json.dumps(value) if isinstance(value, (bool, int, float)) else value


def _canonical(value: object) -> str:
    return json.dumps(jsonable(value), sort_keys=True)


def record_untrusted_history(run: Run, message: Message) -> None:
    """Notes the results and errors in a message of a history, and messages that a protocol's handler wrote.

    In results and errors, the runtime's own text is unchanged, and text that it passed on is neutralised.
    """
    if message.role != "user":
        return
    text = message.text
    blocks = parse(text).blocks if "<block" in text or "<result" in text else ()
    results = [block for block in blocks if block.type in ("result", "error")]
    if not results and message.by == "tool" and run.gate.rules(run).quotes >= HANDLERS:
        run.quoted.record_untrusted("history", text)
    for block in results:
        is_own = block.type == "error" or (block.name or "").startswith("/")
        # a call's parameters may contain an `&lt;` of their own, which a model may copy or decode
        both = restored(block.content), block.content.replace("&lt;", "<")
        for one in (passed_on(block.content),) if is_own else dict.fromkeys(both):
            run.quoted.record_untrusted("history", one)


_OWN_TAG = r"&lt;/?(?:block|command|final|plan)\b[^<>]*>?"


def passed_on(text: str) -> str:
    """Returns a text of the runtime without the tags of its usage lines, so that only text by others can quote calls.

    Tags in text that the runtime passed on were neutralised; they are restored.
    """
    return re.sub(_OWN_TAG, "", neutralize(text.replace("&lt;", "\x00"))).replace("\x00", "<")
