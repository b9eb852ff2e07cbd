"""`ModelStream`: one model call's text on its way in, and what it means once it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernai.blocks.parser import parse
from kernai.blocks.stream_parser import StreamParser
from kernai.loop.decision import Response

if TYPE_CHECKING:
    from kernai.blocks.block import Block
    from kernai.loop.run_state import Run


class ModelStream:
    """Keeps streamed pieces, and shows live listeners what they mean. A driver gives it to the provider as `on_chunk`.

    Called with a piece of text, from whatever thread the provider works in, it raises where the run is to stop. A
    provider that waits for something else than text should look at `cancelled()` and at `deadline`, in the run's
    monotonic seconds, None without a timeout.

    Without a listener nothing is parsed on the way: the whole text is parsed at the end, to the same blocks. While the
    call is under way pieces are delivered at once; what is left at its end goes out with the events that follow.
    """

    __slots__ = ("_blocks", "_cancellation", "_incomplete", "_parser", "_run", "_tell", "caught_up", "pieces")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cancellation = run.root.cancellation
        self._tell = run.emit_now
        self._parser: StreamParser | None = None
        self.pieces: list[str] = []
        #: what a call gives back: under asyncio something that may be awaited
        self.caught_up: Any = None
        if run.outbox.delivery.listening:
            self._begin()

    @property
    def deadline(self) -> float | None:
        return self._cancellation.deadline

    def cancelled(self) -> bool:
        return self._cancellation.is_set()

    def __call__(self, text: str) -> Any:
        if self._cancellation.is_set():
            raise self._cancellation.error()
        if not isinstance(text, str):
            raise TypeError(f"on_chunk takes str, got {type(text).__name__}")
        self.pieces.append(text)
        if self._parser is not None:
            self._parser.push(text)
        return self.caught_up

    def response(self, content: str) -> Response:
        """The parsed response. What counts is `content`: where the pieces say something else, they are taken back."""
        run = self._run
        self._tell = run.emit
        shown = "".join(self.pieces)
        if shown and shown != content:
            run.emit("model_restarted", {"reason": "the final content differs from what was streamed"})
        if self._parser is None:
            parsed = parse(content)
            return Response(content, parsed.blocks, parsed.incomplete, parsed.certain)
        if shown != content:
            self._begin().push(content)
        self._parser.flush()
        return Response(content, self._blocks, self._incomplete, self._parser.certain)

    def _begin(self) -> StreamParser:
        self._blocks: list[Block] = []
        self._incomplete: Block | None = None
        parser = StreamParser()
        for name in ("text_chunk", "block_start", "block_content"):
            parser.on(name, lambda data, name=name: self._tell(name, data))  # type: ignore[misc]  # mypy and defaults
        parser.on("block_complete", self._blocks.append)
        parser.on("block_incomplete", lambda block: setattr(self, "_incomplete", block))
        self._parser = parser
        return parser
