"""`ModelStream`: receives the text of one model call, and parses it into a `ParsedResponse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kernai._util.api import check_type
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.parser import parse, parse_one
from kernai.errors import LimitReachedError, ProviderError, RunCancelledError
from kernai.events import BlockContentRow, BlockEndRow, BlockStartRow, ModelRestartedRow, ModelWaitingRow, TextChunkRow
from kernai.loop.effects import CallModel, LimitStop
from kernai.values.limits import CHARACTERS_PER_TOKEN, usage_of
from kernai.values.llm_response import CUT, UNFINISHED, LlmResponse, check_numbers
from kernai.values.result import Usage

if TYPE_CHECKING:
    from kernai.agents.native_tools import Tools
    from kernai.blocks.block import Block
    from kernai.blocks.stream_parser import StreamParser
    from kernai.loop.run_state import Run
    from kernai.registry.provider import Provider


class ParsedResponse:
    """A parsed response: its complete blocks, and the block that was still open at the end, if any.

    Only the first `certain` blocks (None: all) are sure to be blocks; later ones may be part of a JSON value that was
    cut off, see `ParseResult.certain`.
    """

    __slots__ = ("answer", "blocks", "certain", "incomplete", "only")

    def __init__(
        self, answer: LlmResponse, blocks: Sequence[Block] | None = None, incomplete: Block | None = None
    ) -> None:
        """If `blocks` is None, parses the content of `answer`."""
        certain = None
        if blocks is None:
            one = parse_one(answer.content)
            if one is not None:
                blocks = (one,)
            else:
                blocks, _, incomplete, certain = parse(answer.content)
        self.answer = answer
        self.blocks = blocks
        self.incomplete = incomplete
        self.certain = certain
        #: the response's block, if it has one complete block and no other
        self.only = blocks[0] if len(blocks) == 1 and incomplete is None and certain is None else None

    @property
    def content(self) -> str:
        return self.answer.content

    @property
    def cut(self) -> str:
        """The finish reason of a response that the vendor cut off, else an empty string."""
        reason = self.answer.finish_reason
        return reason if reason in CUT else ""

    @property
    def is_unfinished(self) -> bool:
        """Whether the response is empty although the turn has not ended, as with a call in the vendor's own format."""
        return self.answer.finish_reason in UNFINISHED and not self.content.strip(ASCII_SPACE)


_NativeCalls = dict[int, tuple[str, str | None, list[str]]]


def _is_open(block: Block) -> bool:
    return getattr(block, "is_open", False)


def _counts(answer: LlmResponse | None) -> tuple[int | None, ...] | None:
    return None if answer is None else (answer.prompt_tokens, answer.completion_tokens, answer.total_tokens)


class ModelStream:
    """Collects streamed pieces, and parses them for live listeners. A driver passes it to the provider as `on_chunk`.

    A provider calls it with each piece of text, from any thread. The call raises if the run must stop or the model
    call's deadline has passed. While a provider waits for anything other than text, it should check `cancelled()` and
    `deadline`, which is in seconds of the run's monotonic clock, or None without a timeout.

    - `report_usage(usage)` takes the vendor's `Usage` of this attempt so far, as soon as it is known. It counts even if
      the call fails.
    - `attempt_failed()`: this attempt has failed, and the provider will try again.
    - `waiting(seconds, reason, attempt)`: the provider waits that long before retry number `attempt`, counted from 1.
    - `tools`: if not None, a provider that `calls_natively` should offer these `kernai.Tools` to the model.
    - `block(index, type, name, text)` takes a piece of native call number `index`, counted from 0.

    The loop acts on the blocks of the whole text, which is parsed at the end; listeners see the same blocks earlier.
    During the call, pieces are delivered immediately; any left at its end are delivered with the events that follow.
    """

    __slots__ = (
        "_calls", "_cancellation", "_ended", "_parser", "_show", "answer", "asked",
        "caught_up", "earlier", "effect", "failure", "given_up", "own_deadline", "pieces", "reported", "run", "tools",
    )

    def __init__(self, run: Run) -> None:
        self.run = run
        self._cancellation = run.root.cancellation
        self._ended = False
        #: the call's own, in the clock's monotonic seconds
        self.own_deadline: float | None = None
        self._parser: StreamParser | None = None
        #: the call, once it has begun
        self.effect: CallModel | None = None
        #: for a native call: what the model may call
        self.tools: Tools | None = None
        self.pieces: list[str] = []
        #: streamed native calls, by index: type, name and pieces. All but the last one have ended
        self._calls: _NativeCalls | None = None
        #: returned for each piece: under asyncio, the provider may await it to let the listeners catch up
        self.caught_up: Any = None
        #: the known usage of this attempt so far, and of earlier attempts
        self.reported: Usage | None = None
        self.given_up: Usage | None = None
        #: the model's answer; and its earlier answers, with their usage, if a middleware repeated the call. In the end,
        #: only the one of these that the middleware used
        self.answer: LlmResponse | None = None
        self.earlier: tuple[tuple[LlmResponse, Usage], ...] = ()
        #: why the call failed, and which provider was asked
        self.failure: BaseException | None = None
        self.asked: Provider | None = None
        if run.outbox.delivery.listening and not run.gate.is_on_record():
            self._show = run.write_now
            self._begin()

    def again(self) -> ModelStream:
        """Returns the stream for another attempt at the call, and retracts what this one has shown."""
        run = self.run
        self.attempt_failed()
        self.earlier = self._answers()
        if self.answer is not None:  # this answer has to be paid for, too
            self.spend(self.answer, self.earlier[-1][1].cost)
            self.answer = None
        try:
            run.gate.spend_call()
        except LimitReachedError as error:
            raise LimitStop(error.reason, str(error)) from None
        self._ended = True
        stream = run.stream = ModelStream(run)
        stream.given_up, stream.earlier = self.given_up, self.earlier
        if any(self.pieces):
            run.write_now(ModelRestartedRow("the model is called again"))
        return stream

    def answered(self, answer: object, provider: Provider) -> LlmResponse:
        """Checks a provider's response. If another model than the run's was called, adds that model and its price."""
        assert self.effect is not None
        model = self.effect.model
        if not isinstance(answer, LlmResponse):
            hint = "; an async call must be named acall" if hasattr(answer, "__await__") else ""
            raise ProviderError(f"{type(provider).__name__} returned {type(answer).__name__}, not an LlmResponse{hint}")
        if model is not self.run.model and model.id != self.run.model.id:
            answer = replace(answer, model=answer.model or model.id, cost=answer.cost_at(model))
        self.answer = answer
        return answer

    def end(self, failure: BaseException, provider: Provider) -> None:
        """Ends a call that has failed or was abandoned: anything its provider still reports is discarded.

        After the call's own deadline, raises a timeout instead of the failure.
        """
        self._ended = True
        self.failure, self.asked = failure, provider
        is_late = isinstance(failure, Exception) and self.is_late() and getattr(failure, "code", None) != "timeout"
        if is_late and not self._cancellation.is_set():
            raise self.timed_out() from failure

    def report_usage(self, usage: Usage) -> None:
        check_type(usage, Usage, "report_usage takes a Usage")
        check_numbers(usage)
        if self._ended:
            return
        assert self.effect is not None
        answer = LlmResponse(
            "", prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens or 0, cost=usage.cost,
            cached_tokens=usage.cached_tokens, cache_write_tokens=usage.cache_write_tokens,
        )
        cost = answer.cost_at(self.effect.model)
        self.reported = Usage.of_failed(usage.to_dict() | {"model_calls": 1, "cost": cost})

    def waiting(self, seconds: float, reason: str, attempt: int) -> None:
        check_type(seconds, int | float, "waiting takes seconds, a reason and a number")
        check_type(reason, str, "waiting takes seconds, a reason and a number")
        if self._ended:
            return
        try:
            self.run.root.budget.check_call(-1)  # the failed attempts may have used up a limit
        except LimitReachedError as error:
            raise LimitStop(error.reason, str(error)) from None
        self.run.write_now(ModelWaitingRow(seconds, reason, attempt))

    def attempt_failed(self) -> None:
        # also called when a call is repeated or has ended: the usage of an attempt that has answered is in its answer
        if self.answer is None:
            self.give_up(self.reported)
        self.reported = None

    def _answers(self) -> tuple[tuple[LlmResponse, Usage], ...]:
        if self.answer is None or self.effect is None:
            return self.earlier
        return (*self.earlier, (self.answer, usage_of(self.answer, self.effect.model)))

    def settle(self, returned: LlmResponse | None = None) -> None:
        """Counts the usage of answers that a middleware discarded; `returned` is the one that it used, if any."""
        self.attempt_failed()
        answers = self._answers()
        last = None if self.answer is None else answers[-1]  # the limits count the earlier ones already
        found = [one for one in answers if one[0] is returned] or [
            one for one in answers if _counts(one[0]) == _counts(returned)  # the middleware may have changed it
        ]
        used = found[-1] if found else None
        self.earlier = () if used is None or used is last else (used,)
        for one in answers:
            if one is not used:
                self.given_up = (self.given_up or Usage()) + one[1]
                if one is last:
                    self.spend(one[0], one[1].cost)

    def spend(self, answer: LlmResponse, cost: float | None) -> None:
        """Counts an answer against the limits, by an estimate if the vendor reports no usage, or only a part of it."""
        run, root = self.run, self.run.root
        characters = run.characters() + len(run.system.message.text) + len(answer.content)
        reported = (answer.prompt_tokens or 0) + (answer.completion_tokens or 0)
        estimate = max(-(-characters // CHARACTERS_PER_TOKEN), reported)
        if root.budget.needs_tokens and root.budget.spend_tokens(answer.total_tokens, cost, run.model, estimate):
            root.warn("usage.estimated", model=run.model.id,
                      reason="the vendor reports no usage: limits count one token per four characters")

    def give_up(self, used: Usage | None) -> None:
        """Counts the usage of a failed attempt: against the limits now, and in the result once the call has ended."""
        if used is not None:
            self.given_up = (self.given_up or Usage()) + used
            self.run.root.budget.spend_usage(used, self.run.model)

    @property
    def deadline(self) -> float | None:
        """The earlier of the run's and the call's own deadline."""
        both = self._cancellation.deadline, self.own_deadline
        return min((one for one in both if one is not None), default=None)

    def cancelled(self) -> bool:
        return self._ended or self._cancellation.is_set()

    def is_late(self) -> bool:
        """Whether the call's own deadline has passed."""
        return self.own_deadline is not None and self.run.clock.monotonic() >= self.own_deadline

    def timed_out(self) -> ProviderError:
        """Returns the error of a call whose own deadline has passed."""
        seconds = None if self.effect is None else self.effect.timeout
        return ProviderError(f"the model call took longer than {seconds} s", code="timeout", retryable=True)

    def __call__(self, text: str) -> Any:
        if self._ended or self.own_deadline is not None or not self._cancellation.is_quiet:
            self._check_wanted()
        if not isinstance(text, str):
            raise TypeError(f"on_chunk takes str, got {type(text).__name__}")
        if self.effect is not None and not self.effect.stream:
            return self.caught_up
        self.pieces.append(text)
        if self._parser is not None:
            self._parser.push(text)
        return self.caught_up

    def block(self, index: int, type: str, name: str | None, text: str) -> Any:
        self._check_wanted()
        if not isinstance(index, int) or not isinstance(type, str) or not isinstance(text, str):
            raise TypeError(f"block takes a number, a type, a name and text, got {(index, type, name, text)!r:.80}")
        if self.effect is not None and not self.effect.stream:
            return self.caught_up
        if self._calls is None:
            self._calls = {}
        # a call that is not the last one has ended; since the piece is missing, `response` retracts all of them
        if index not in self._calls or index == next(reversed(self._calls)):
            self._add_piece(self._calls, index, type, name, text)
        return self.caught_up

    def _add_piece(
        self, calls: _NativeCalls, index: int, type: str, name: str | None, text: str, blocks: Sequence[Block] = (),
    ) -> None:
        if self._parser is not None:
            if index not in calls:
                self._end_last(calls, blocks)
                self._show(BlockStartRow(type, name, block=index))
            if text:
                self._show(BlockContentRow(text, block=index))
        calls.setdefault(index, (type, name, []))[2].append(text)

    def _end_last(self, calls: _NativeCalls, blocks: Sequence[Block]) -> None:
        """Shows that the last call has ended, unless it was cut off, which only its block in `blocks` says."""
        at = next(reversed(calls), None)
        if at is not None and not (blocks and _is_open(blocks[at])):
            type, name, _ = calls[at]
            self._show(BlockEndRow(type, name, block=at))

    def _check_wanted(self) -> None:
        if self._cancellation.is_set():
            raise self._cancellation.error()
        if self.is_late():
            raise self.timed_out()
        if self._ended:
            raise RunCancelledError("this model call has ended")

    def response(self, answer: LlmResponse) -> ParsedResponse:
        """Parses `answer`, except native calls, which are blocks already. Only the answer counts: if the streamed
        pieces differ, they are retracted.

        Anything that the provider streams after this is refused.
        """
        self._ended = True
        text, pieces, calls = answer.content, self.pieces, self._calls
        prose = None if answer.blocks is None else answer.prose
        blocks: Sequence[Block] = ()
        if answer.blocks is not None and prose is not None:
            text, blocks = prose, answer.blocks
        shown = pieces[0] if len(pieces) == 1 else "".join(pieces)
        is_same = shown == text or (prose is not None and shown.rstrip() == text.rstrip())  # blanks before a call
        if calls is not None:
            for at, (type, name, parts) in calls.items():  # not in `all()`, whose closure would slow down each step
                is_same = is_same and at < len(blocks) and (type, name, "".join(parts)) == (
                    blocks[at].type, blocks[at].name, blocks[at].content)
        if not is_same and (shown or calls):
            self.run.write(ModelRestartedRow("the final content differs from what was streamed"))
            shown, calls = "", None
            if self._parser is not None:
                self._begin()
        if self._parser is not None:
            self._show = self.run.write
            if not shown:
                self._parser.push(text)
            self._parser.flush()
            calls = {} if calls is None else calls
            for at, block in enumerate(blocks):
                if at not in calls:
                    self._add_piece(calls, at, block.type, block.name, block.content, blocks)
            self._end_last(calls, blocks)
        if prose is None:
            return ParsedResponse(answer)
        incomplete = next((block for block in blocks if _is_open(block)), None)
        return ParsedResponse(answer, [block for block in blocks if not _is_open(block)], incomplete)

    def _begin(self) -> StreamParser:
        from kernai.blocks.stream_parser import StreamParser  # most runs have no listener

        self._parser = parser = StreamParser()
        parser.on("text_chunk", lambda text: self._show(TextChunkRow(text)))
        # blocks do not nest, so the open block is the next one to be completed
        parser.on("block_start", lambda start: self._show(BlockStartRow(*start.values(), block=parser.completed)))
        parser.on("block_content", lambda text: self._show(BlockContentRow(text, block=parser.completed)))
        parser.on("block_complete", lambda one: self._show(BlockEndRow(one.type, one.name, block=parser.completed - 1)))
        return parser
