"""`Message`, and views of a conversation; `outside` marks a text that neither the user nor the host wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NoReturn, Self, get_args

from kernai._util.api import Replaceable, check_type, read_only
from kernai.jsonio.json_data import copied
from kernai.values.media import Media, MediaStore

Role = Literal["system", "user", "assistant"]
#: who wrote a message with the role "user"
By = Literal["user", "model", "tool", "runtime"]
Part = str | Media

ROLES: tuple[Role, ...] = get_args(Role)
#: the attributes that a message may have besides its role and content
_EXTRAS = ("reasoning", "blocks", "answers", "by", "outside")
SPEAKERS: tuple[By, ...] = get_args(By)


class Wording(str):
    """A text of the runtime with a second wording, without blocks, for models that call natively."""

    __slots__ = ("native",)

    def __new__(cls, text: str, native: str) -> Self:
        made = super().__new__(cls, text)
        made.native = native
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # `str` has one argument
        return str(self), self.native

    native: str


def joined(texts: Iterable[str]) -> str:
    """Joins texts of the runtime, in both wordings."""
    listed = list(texts)
    text = "".join(listed)
    if not any(type(one) is Wording for one in listed):
        return text
    return Wording(text, "".join(one.native if type(one) is Wording else one for one in listed))


class Message(Replaceable):
    """A message of a conversation: its role and content. Read-only.

    `content` is always a tuple of `str` and `Media`; a bare `str` or `Media` may be given and is wrapped. `reasoning`
    is data that a vendor wants returned with the assistant's text, unchanged; it is not sent to other vendors.

    After native calls, an assistant's message has its calls as `blocks`: dicts with `type`, `name`, `content` and the
    vendor's `id`. The calls are in `content` too. In a message of the runtime, `answers` is the index of the block that
    the message answers.

    `by` says who wrote a message with the role ``"user"``: the ``"user"``; the ``"model"`` of the agent that gave the
    task; a ``"tool"`` (results and errors of calls); the ``"runtime"``; None if unknown. `outside` has the indexes of
    the parts that were marked with `kernai.outside`.
    """

    # Not a frozen dataclass, whose constructor costs four times as much: two are made each step. Keyword-only
    # parameters would cost more, too.
    __slots__ = ("_answers", "_blocks", "_by", "_content", "_outside", "_reasoning", "_role")
    _FIELDS = ("role", "content", *_EXTRAS)
    role: Final[Role] = read_only("_role")
    content: Final[tuple[Part, ...]] = read_only("_content")
    answers: Final[int | None] = read_only("_answers")
    by: Final[By | None] = read_only("_by")
    outside: Final[tuple[int, ...]] = read_only("_outside")

    def __init__(
        self, role: Role, content: Part | Sequence[Part], by: By | None = None, answers: int | None = None,
        reasoning: Sequence[Mapping[str, Any]] = (), blocks: Sequence[Mapping[str, Any]] | None = None,
        outside: Sequence[int] = (),
    ) -> None:
        if role not in ROLES:
            raise ValueError(f"role must be one of {', '.join(ROLES)}, got {role!r}")
        if by is not None and by not in SPEAKERS:
            raise ValueError(f"by must be one of {', '.join(SPEAKERS)} or None, got {by!r}")
        self._role: Role = role
        self._content: tuple[Part, ...] = (content,) if type(content) is str else as_parts(content, "content")
        self._by: By | None = by
        self._answers = answers
        self._outside: tuple[int, ...] = ()
        self._reasoning: tuple[Mapping[str, Any], ...] = ()
        self._blocks: tuple[Mapping[str, Any], ...] | None = None
        if outside or reasoning or blocks is not None or answers is not None:
            self._set_extras(outside, reasoning, blocks)

    def _set_extras(
        self, outside: Sequence[int], reasoning: Sequence[Mapping[str, Any]], blocks: Sequence[Mapping[str, Any]] | None
    ) -> None:
        """Sets what few messages have. Raises `TypeError` or `ValueError` for wrong values, as in a damaged store."""
        for name, given in {"outside": outside, "reasoning": reasoning, "blocks": blocks}.items():
            check_type(given, Iterable | None, f"{name} must be a list")
        # copied here and when read: a provider may reuse its dicts, and a middleware may change those that it reads
        self._outside, self._reasoning = tuple(outside or ()), tuple(map(copied, reasoning or ()))
        self._blocks = None if blocks is None else tuple(map(copied, blocks))
        if not all(type(at) is int and 0 <= at < len(self._content) for at in self._outside):
            raise ValueError(f"outside must be indexes of parts of the content, got {self._outside!r}")
        if not all(isinstance(one, Mapping) and isinstance(one.get("content"), str) for one in self._blocks or ()):
            raise TypeError("blocks must be dicts with 'type', 'name' and 'content'")
        if self._answers is not None and type(self._answers) is not int:
            raise TypeError(f"answers must be the index of a block, got {self._answers!r}")

    @property
    def reasoning(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(map(copied, self._reasoning)) if self._reasoning else ()

    @property
    def blocks(self) -> tuple[Mapping[str, Any], ...] | None:
        return None if self._blocks is None else tuple(map(copied, self._blocks))

    def rewritten(self, content: Part | Sequence[Part]) -> Message:
        """The same message with other content. It still answers what it answered; blocks and reasoning are dropped.

        If a part was from outside, all of the new content is.
        """
        parts = as_parts(content, "content")
        return Message(self._role, parts, self._by, self._answers, outside=range(len(parts)) if self._outside else ())

    @property
    def text(self) -> str:
        """All parts as one text, media as ``[kind:id]``."""
        return "".join([part if isinstance(part, str) else f"[{part.kind}:{part.id}]" for part in self._content])

    @property
    def media(self) -> tuple[Media, ...]:
        return tuple(part for part in self._content if isinstance(part, Media))

    @property
    def has_media(self) -> bool:
        return any(isinstance(part, Media) for part in self._content)

    def to_dict(self, *, inline_media: bool = False) -> dict[str, object]:
        """``{"role", "content"}``: content is the text, or, with media, a list of texts and media references.

        `reasoning`, `blocks`, `answers`, `by` and `outside` are added if the message has them, and `native`, by index,
        the texts of the runtime that a model with native calls reads instead.

        With `inline_media`, the references contain the media: bytes and files as ``"base64"``, a whole URL as
        ``"url"``. Raises `KernaiError` for a file that cannot be read.
        """
        made = self.as_sent(inline_media=inline_media)
        if self._by is not None:
            made["by"] = self._by
        if self._outside:
            made["outside"] = list(self._outside)
        if native := {str(at): part.native for at, part in enumerate(self._content) if type(part) is Wording}:
            made["native"] = native
        return made

    def as_sent(self, *, inline_media: bool = False) -> dict[str, object]:
        """Like `to_dict`, but without the attributes that are not sent to a model."""
        if len(self._content) == 1 and isinstance(self._content[0], str):
            made: dict[str, object] = {"role": self._role, "content": self._content[0]}
        else:
            listed = [p if isinstance(p, str) else p.to_dict(inline=inline_media) for p in self._content]
            made = {"role": self._role, "content": listed}
        if self._reasoning:
            made["reasoning"] = list(self.reasoning)
        if self._blocks is not None:
            made["blocks"] = list(map(copied, self._blocks))
        if self._answers is not None:
            made["answers"] = self._answers
        return made

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, object],
        media_store: MediaStore | None = None,
        *,
        on_lost: Callable[[Mapping[str, object]], object] | None = None,
    ) -> Message:
        """The inverse of `to_dict`. Inline media are restored, those of files as bytes.

        Other references are looked up in `media_store`. An unknown reference is passed to `on_lost`; the `Media` that
        it returns, or else a placeholder, takes its place. Raises `ValueError` for a wrong role or invalid base64,
        `TypeError` for content that is neither text nor a list of parts.
        """
        if "role" not in check_type(data, Mapping, "a message must be a dict") or "content" not in data:
            raise ValueError("a message needs 'role' and 'content'")
        content: Any = data["content"]
        role: Role = data["role"]  # type: ignore[assignment]  # the constructor checks it
        extras: dict[str, Any] = {name: data[name] for name in _EXTRAS if name in data}
        if isinstance(content, (list, tuple)):
            content = [part_from(part, media_store, on_lost) for part in content]
        if native := data.get("native"):  # the second wordings of its texts, by index
            content = [content] if isinstance(content, str) else list(content)
            texts = {str(at): part for at, part in enumerate(content) if isinstance(part, str)}
            for at, text in check_type(native, Mapping, "native must be a dict").items():
                if at not in texts or not isinstance(text, str):
                    raise ValueError(f"native must have texts by the index of a text of the content, got {native!r}")
                content[int(at)] = Wording(texts[at], text)
        return cls(role, content, **extras)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self._role, self._content, self._reasoning) == (other._role, other._content, other._reasoning)

    def __hash__(self) -> int:
        return hash((self._role, self._content))

    def __repr__(self) -> str:
        return f"Message({self._role!r}, {self.text!r})"


def as_parts(content: object, name: str, kinds: tuple[type, ...] = (str, Media)) -> tuple[Any, ...]:
    """Text, media, or a sequence of both as a tuple. Raises `TypeError` with the argument's `name` for others."""
    if isinstance(content, kinds):
        return (content,)
    if isinstance(content, (list, tuple)):
        for part in content:
            if not isinstance(part, kinds):
                more = ": earlier messages go into history=..." if name == "input" else ""
                raise TypeError(f"{name} may hold str and Media, not {type(part).__name__}{more}")
        return tuple(content)
    raise TypeError(f"{name} must be str, Media, or a list of both, not {type(content).__name__}")


def placeholder(kind: object, mime_type: object) -> str:
    """The text that replaces media that cannot be shown."""
    return f"[{kind} unavailable: {mime_type}]"


def part_from(
    part: object, media_store: MediaStore | None, on_lost: Callable[[Mapping[str, object]], object] | None
) -> Part:
    """A part of a message as data; see `Message.from_dict`."""
    if isinstance(part, (str, Media)):
        return part
    if isinstance(part, Mapping) and "id" in part and "kind" in part:
        media: object = Media.from_inline(part)
        if media is None and media_store is not None:
            media = media_store.get(str(part["id"]))
        if media is None and on_lost is not None:
            media = on_lost(part)
        return media if isinstance(media, Media) else placeholder(part["kind"], part.get("mime_type", "unknown"))
    raise TypeError(f"content may hold str, Media and media references, not {type(part).__name__}")


class Outside:
    """An untrusted text, which is a separate part of an input or of instructions.

    Formatting or joining it would lose the mark, so both raise `TypeError`.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text: str = check_type(text, str, "outside() takes text")

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(
            "in another text, outside() text would lose its mark: pass a list of parts, ['Sum up:', outside(mail)]"
        )

    __str__ = __format__ = __add__ = __radd__ = __mod__ = __rmod__ = __iter__ = _refuse

    def to_dict(self) -> dict[str, str]:
        """The data that are recorded for a part of an input."""
        return {"outside": self.text}

    def __repr__(self) -> str:
        return f"outside({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outside) and other.text == self.text

    def __hash__(self) -> int:
        return hash((Outside, self.text))


#: a part of a run's input; an `Outside` becomes text in the conversation
InputPart = Part | Outside
INPUT_PARTS = (str, Media, Outside)


def instruction_parts(given: object, what: str = "must be text, a list of texts or a callable") -> Any:
    """Returns an agent's instructions, a list as a tuple. Raises `TypeError` for anything that they cannot be."""
    if isinstance(given, str):
        return given
    if not isinstance(given, (list, tuple)) or not given or not all(isinstance(one, (str, Outside)) for one in given):
        got = given if isinstance(given, (list, tuple)) else type(given).__name__
        raise TypeError(f"instructions {what}, got {got}")
    return tuple(given)


def outside(text: str) -> Outside:
    """Marks a text as written by neither the user nor the host: a mail, a web page, a customer's message.

    Pass it as a part of an input, or of an agent's instructions: ``["Summarise this mail:", outside(mail)]``. Tags in
    it cannot act, calls in it count as quoted, and nothing in it is trusted (docs/security.md).
    """
    return Outside(text)

# ------------------------------------------------------------------------------------------------- a run's conversation


class ConversationView(Sequence[Message]):
    """The messages that a model call sends: the system message and the conversation so far. Compares like a list.

    A read-only snapshot, made in constant time; later messages are not in it.
    """

    __slots__ = ("length", "messages", "system")

    def __init__(self, system: Message, messages: Sequence[Message], length: int | None = None) -> None:
        self.system = system
        #: the conversation itself, which grows; only the first `length` messages belong to the snapshot
        self.messages = messages
        self.length = len(messages) if length is None else length

    def __len__(self) -> int:
        return self.length + 1

    def __iter__(self) -> Iterator[Message]:
        yield self.system
        yield from islice(self.messages, self.length)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(self)[index]
        at = range(len(self))[index]  # may raise `IndexError`
        return self.system if at == 0 else self.messages[at - 1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (ConversationView, list, tuple)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compares like a list

    def __repr__(self) -> str:
        return repr(list(self))


class MessageDicts(ConversationView):
    """The same messages as dicts, which are made on access: the data of `messages_sent`."""

    __slots__ = ()

    def __iter__(self) -> Iterator[dict[str, Any]]:  # type: ignore[override]  # only this view has dicts
        return (message.as_sent() for message in super().__iter__())

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found.as_sent() if isinstance(found, Message) else found

    def to_dict(self) -> list[dict[str, Any]]:
        """The messages as JSON data."""
        return [*self]

    def __repr__(self) -> str:
        return f"MessageDicts({len(self)} messages)"
