"""`Conversation`: the messages of one run. It only ever grows, so a snapshot of it is a length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar, overload

from kernai.values.message import Message


class Conversation:
    """The messages after the system message."""

    __slots__ = ("_characters", "_counted", "messages")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages: list[Message] = list(messages)
        self._characters = self._counted = 0

    def append(self, message: Message) -> None:
        """Adds a message. The loop appends to `messages` directly."""
        self.messages.append(message)

    @property
    def characters(self) -> int:
        """The length of all messages in characters. Media count nothing, since only vendors know what they cost."""
        for message in islice(self.messages, self._counted, None):
            self._characters += len(message.text)
        self._counted = len(self.messages)
        return self._characters


T = TypeVar("T")


class _Snapshot(Sequence[T]):
    """Compares and is indexed like a list; a subclass has the items and their number."""

    __slots__ = ()

    def _at(self, index: int) -> T:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return list(self)[index]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError("message index out of range")
        return self._at(at)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (_Snapshot, list, tuple)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compares like a list

    def __repr__(self) -> str:
        return repr(list(self))


class ConversationView(_Snapshot[Message]):
    """What a model call sends: the system message and the conversation so far.

    A read-only snapshot, made in constant time; later messages are not in it.
    """

    __slots__ = ("length", "messages", "system")

    def __init__(self, system: Message, messages: Sequence[Message], length: int | None = None) -> None:
        self.system = system
        #: the conversation itself, which grows, and how much of it belongs to the snapshot
        self.messages = messages
        self.length = len(messages) if length is None else length

    def __len__(self) -> int:
        return self.length + 1

    def __iter__(self) -> Iterator[Message]:
        yield self.system
        yield from islice(self.messages, self.length)

    def _at(self, index: int) -> Message:
        return self.system if index == 0 else self.messages[index - 1]


class MessageDicts(_Snapshot[dict[str, Any]]):
    """The same snapshot as message dicts, made on access: the data of `messages_sent`."""

    __slots__ = ("view",)

    def __init__(self, view: ConversationView) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (message.as_sent() for message in self.view)

    def _at(self, index: int) -> dict[str, Any]:
        return self.view[index].as_sent()

    def to_dict(self) -> list[dict[str, Any]]:
        """The messages as JSON data."""
        return list(self)

    def __repr__(self) -> str:
        return f"MessageDicts({len(self)} messages)"
