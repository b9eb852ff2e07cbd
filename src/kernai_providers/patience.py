"""`Patience`: how long one request waits, how much it reads, and whether its answer is wanted at all.

Guarantees: a transport that waits in slices of `SLICE` seconds and calls `look` between them ends within a slice after
the answer is not wanted any more; the head comes within the time one silence may last, however its bytes drip; what
surrounds an answer's content (interim answers, chunk sizes, trailers) is bounded, whatever its form.
"""

from __future__ import annotations

import math
import time
from typing import Final

from kernai_providers.transport import Request, TransportError

#: seconds of one wait, after which somebody looks whether there is anything to wait for
SLICE: Final = 0.05
#: bytes around the content: so many for each answer, and so many for each byte of its content (a chunk of one has five)
AROUND_ANSWER: Final = 256 * 1024
AROUND_BYTE: Final = 8


class Patience:
    """For one request. `seconds` is how long a silence may last now."""

    def __init__(self, request: Request, peer: str) -> None:
        self.seconds = request.timeouts.read
        self.connecting = False
        #: whether a connection was made for this request
        self.dialed = False
        self._timeouts = request.timeouts
        self._peer = peer
        self._unwanted = request.unwanted
        self._given_up = False
        self._head_until = math.inf
        self._around: float = AROUND_ANSWER

    def connects(self, *, still: bool = True) -> None:
        """From now on, or no more, waiting is waiting for a connection: for a proxy's tunnel."""
        self.connecting = still
        self.seconds = self._timeouts.connect if still else self._timeouts.read

    def sent(self) -> None:
        """Some of the request is out: from now on the head may take as long as a silence."""
        self._head_until = time.monotonic() + self.seconds

    def answered(self) -> None:
        """The head is there."""
        self._head_until = math.inf

    def give_up(self) -> None:
        """From any thread: nobody waits any more."""
        self._given_up = True

    def look(self) -> None:
        """Raises `TransportError` where the answer is not wanted any more, and where its head drips for too long."""
        if self._given_up or (self._unwanted is not None and self._unwanted()):
            raise TransportError(f"the answer of {self._peer} is not wanted any more", "unwanted")
        # of a head that has not begun nothing is known: it may have come while this process had no time to look
        if self._head_until < math.inf and self._has_begun_head and time.monotonic() >= self._head_until:
            raise self.silence()

    def until(self, seconds: float | None = None, waited: float = 0.0) -> float:
        """When a wait that began `waited` seconds ago has been too long, in monotonic seconds."""
        return min(time.monotonic() - waited + (self.seconds if seconds is None else seconds), self._head_until)

    def took(self, size: int) -> None:
        """So many bytes were read, whatever they are."""
        self._around -= size
        if self._around < 0:
            raise TransportError(f"{self._peer} sends more around its answer than any answer needs", "protocol")

    @property
    def was_unheard(self) -> bool:
        """Whether some of the request went out on a connection that was there already, and nothing has come."""
        return not self.dialed and self._head_until < math.inf and self._around == AROUND_ANSWER

    def content(self, size: float) -> None:
        """So many of them were content."""
        self._around += size * (1 + AROUND_BYTE)

    def silence(self) -> TransportError:
        """The error for a wait that was too long."""
        if self._has_begun_head:
            what = f"did not finish the head of its answer within {self.seconds:g} seconds"
        else:
            what = f"was silent for {self.seconds:g} seconds"
        return TransportError(f"{self._peer} {what}", "timeout")

    @property
    def _has_begun_head(self) -> bool:
        return self._head_until < math.inf and self._around < AROUND_ANSWER
