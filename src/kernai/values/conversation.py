"""`Tape`: the conversation of one run. It only ever grows, so a snapshot of it is a length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, overload

from kernai.values.message import Message


class Tape:
    """The messages after the system message, and how many characters they hold."""

    __slots__ = ("characters", "messages")

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self.messages: list[Message] = []
        self.characters = 0
        for message in messages:
            self.append(message)

    def append(self, message: Message) -> None:
        self.messages.append(message)
        content = message.content
        # media count nothing: only vendors know what they cost
        self.characters += len(content[0]) if len(content) == 1 and type(content[0]) is str else len(message.text)

    def view(self, system: Message) -> TapeView:
        """What a model call sends: the system message, then the tape as it is now."""
        return TapeView(system, self.messages, len(self.messages))


class TapeView(Sequence[Message]):
    """A read-only snapshot, taken in constant time: later messages are not in it."""

    __slots__ = ("_length", "_messages", "system")

    def __init__(self, system: Message, messages: list[Message], length: int) -> None:
        self.system = system
        self._messages = messages
        self._length = length

    def __len__(self) -> int:
        return self._length + 1

    def __iter__(self) -> Iterator[Message]:
        yield self.system
        yield from islice(self._messages, self._length)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        if isinstance(index, slice):
            return list(self)[index]
        size = self._length + 1
        at = index + size if index < 0 else index
        if not 0 <= at < size:
            raise IndexError("message index out of range")
        return self.system if at == 0 else self._messages[at - 1]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (TapeView, list, tuple)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compares like a list

    def __repr__(self) -> str:
        return repr(list(self))


class MessageDicts(Sequence[dict[str, Any]]):
    """The same snapshot as message dicts, made when looked at: the data of `messages_sent`."""

    __slots__ = ("view",)

    def __init__(self, view: TapeView) -> None:
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (message.to_dict() for message in self.view)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        found = self.view[index]
        return [one.to_dict() for one in found] if isinstance(found, list) else found.to_dict()

    def to_dict(self) -> list[dict[str, Any]]:
        """As JSON data, which for a sequence is a list."""
        return list(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (MessageDicts, list, tuple)):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # compares like a list

    def __repr__(self) -> str:
        return f"MessageDicts({len(self)} messages)"
