"""`ModelStream`: one model call's text on its way in, and what it means once it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernai.blocks.parser import parse
from kernai.blocks.stream_parser import StreamParser

if TYPE_CHECKING:
    from kernai.blocks.block import Block
    from kernai.errors import RunStoppedError
    from kernai.loop.run_state import Scope


class Response:
    """A parsed response: its blocks, and the one that was still open at the end."""

    __slots__ = ("blocks", "content", "incomplete")

    def __init__(self, content: str, blocks: list[Block], incomplete: Block | None = None) -> None:
        self.content = content
        self.blocks = blocks
        self.incomplete = incomplete


class ModelStream:
    """Feeds streamed pieces to the parser and tells live listeners.

    Without a listener nothing is parsed on the way: the whole text is parsed at the end, to the same blocks.
    """

    __slots__ = ("_parser", "_pieces", "_response", "_scope", "stopped")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._pieces: list[str] = []
        self._parser: StreamParser | None = None
        #: why the call was stopped from within `on_chunk`, whatever the provider makes of that exception
        self.stopped: RunStoppedError | None = None
        if scope.outbox.listening:
            self._begin()

    def on_chunk(self, text: str) -> None:
        """A piece of text. Raises to stop the call when the run's time is up."""
        if not isinstance(text, str):
            raise TypeError(f"on_chunk takes str, got {type(text).__name__}")
        scope = self._scope
        try:
            scope.root.budget.check_time(scope.clock.monotonic())
        except Exception as error:
            self.stopped = error  # type: ignore[assignment]  # check_time raises LimitReachedError alone
            raise
        if self._parser is not None:
            self._pieces.append(text)
            self._parser.push(text)

    def response(self, content: str) -> Response:
        """The parsed response. What counts is `content`: where the pieces say something else, they are taken back."""
        if self._parser is None:
            parsed = parse(content)
            return Response(content, parsed.blocks, parsed.incomplete)
        shown = "".join(self._pieces)
        if shown != content:
            if shown:
                self._scope.emit_now("model_restarted", {"reason": "the final content differs from what was streamed"})
            self._begin().push(content)
        self._parser.flush()
        self._response.content = content
        return self._response

    def _begin(self) -> StreamParser:
        self._response = response = Response("", [])
        tell = self._scope.emit_now
        parser = StreamParser()
        for name in ("text_chunk", "block_start", "block_content"):
            parser.on(name, lambda data, name=name: tell(name, data))  # type: ignore[misc]  # mypy and default values
        parser.on("block_complete", response.blocks.append)
        parser.on("block_incomplete", lambda block: setattr(response, "incomplete", block))
        self._parser = parser
        return parser
