"""The loop. It decides; drivers act.

`run_loop` is a generator: it yields effects (`effects`), is sent what came of them, fills the scope's outbox with
events and returns the `Result`. It does no I/O, starts no thread and reads no clock but the one it was given, so the
same outcomes always lead to the same decisions: that is what makes a recording a checkpoint.

One step::

    system message → messages_sent → CallModel → llm_response, blocks_parsed → the tape
      → the first that holds:
        1. a valid plan        workflow.run_workflow      its tasks are sub-runs
        2. commands, protocols calls.run_calls            one injected message each
        3. a final             the answer
        4. an incomplete block a correction
        5. other blocks        a correction
        6. prose               the answer, or a correction (Agent.on_prose)

Where a new thing goes: a built-in command into `builtin_commands.BUILTINS`; a block type that calls something into
`calls`; a block type that only tells something into `_announce`; a stop reason into `result.StopReason`, raised as a
`LimitReachedError`; a sink is any object with `record`.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.plan import Plan
from kernai.errors import LimitReachedError, MaxStepsReachedError, ProviderError, RunCancelledError, copied, error_text
from kernai.loop import corrections
from kernai.loop.calls import run_calls
from kernai.loop.effects import CallModel, Cancelled, Effect
from kernai.loop.model_stream import ModelStream, Response
from kernai.loop.run_state import Scope, input_summary
from kernai.loop.workflow import run_workflow
from kernai.values.conversation import MessageDicts, TapeView
from kernai.values.limits import CHARACTERS_PER_TOKEN
from kernai.values.llm_response import LlmResponse
from kernai.values.message import Message, Part
from kernai.values.result import Result, StopReason

PROSE_PREVIEW = 400
FORGED = frozenset({"result", "error", "media"})
NO_PROVIDER = (
    "no provider is set: pass run(..., provider=...), or Agent(provider=...), or configure(default_provider=...)"
)


def run_loop(scope: Scope, content: tuple[Part, ...]) -> Generator[Effect, Any, Result]:
    """One run or sub-run from its input to its `Result`. Yields effects; see `effects` for what they are answered with.

    A limit, a cancellation and a provider's failure end in a `Result`. Any other exception passes through, after the
    `result` event has told how the run ended.
    """
    try:
        _begin(scope, content)
        text = yield from _steps(scope)
        return scope.finish(StopReason.FINAL, text)
    except LimitReachedError as error:
        return scope.finish(StopReason(error.reason), error=error)
    except ProviderError as error:
        return scope.finish(StopReason.ERROR, error=error)
    except Cancelled:
        return scope.finish(StopReason.CANCELLED, error=RunCancelledError("the run was cancelled"))
    except Exception as error:
        # the host's own code failed (instructions, say): the recording ends properly, the caller gets the exception
        scope.finish(StopReason.ERROR, error=ProviderError(f"{type(error).__name__}: {error_text(error)}"))
        raise
    except GeneratorExit:
        raise  # the driver has let go of the run: nobody would hear how it ended
    except BaseException:
        scope.finish(StopReason.CANCELLED, error=RunCancelledError("the run was interrupted"))
        raise


def _begin(scope: Scope, content: tuple[Part, ...]) -> None:
    agent, root = scope.agent, scope.root
    message = Message("user", content)
    scope.emit("run_start", {
        "run_id": root.run_id,
        "input": input_summary(content),
        "model": scope.model.id,
        "agent": agent.name,
        "metadata": scope.metadata,
    })
    root.budget.check_depth(scope.depth)
    root.budget.limits.check_model(scope.model)
    for media in message.media:
        scope.context.media_store.put(media)
    scope.tape.append(message)


def _steps(scope: Scope) -> Generator[Effect, Any, str]:
    most = scope.agent.max_steps
    for step in range(most):
        scope.step = step
        scope.steps = step + 1
        todo = _decide(scope, (yield from _ask(scope)))
        if isinstance(todo, str):
            return todo
        if todo is not None:
            yield from todo
    raise MaxStepsReachedError(
        f"the agent used all its {most} steps without a final answer: raise Agent(max_steps=...), or go on with "
        "history=result.messages"
    )


def _ask(scope: Scope) -> Generator[Effect, Any, Response]:
    """One model call, from the system message to the parsed response on the tape."""
    scope.check_cancelled()
    view = scope.tape.view(scope.system_message())
    scope.root.budget.spend_call(scope.clock.monotonic)
    if scope.provider is None:
        raise ProviderError(NO_PROVIDER)
    scope.emit("messages_sent", MessageDicts(view))
    stream = ModelStream(scope)
    started = scope.clock.monotonic()
    try:
        answer = yield CallModel(scope.provider, view, scope.model, scope.generation, stream.on_chunk)
    except Exception as error:
        scope.check_cancelled()
        failure = stream.stopped or _provider_error(scope, error)
        if failure is error:
            raise  # with the cause that the provider gave it
        raise failure from error
    scope.check_cancelled()
    if stream.stopped is not None:
        raise stream.stopped
    if not isinstance(answer, LlmResponse):
        raise ProviderError(f"{type(scope.provider).__name__} returned {type(answer).__name__}, not an LlmResponse")
    measured_ms = int((scope.clock.monotonic() - started) * 1000)
    # first, because it may still show pieces: live ones come before the event that holds them all
    response = stream.response(answer.content)
    _account(scope, answer, view, measured_ms)
    scope.emit("blocks_parsed", [_block_dict(block) for block in response.blocks])
    scope.tape.append(Message("assistant", answer.content))
    return response


def _account(scope: Scope, answer: LlmResponse, sent: TapeView, measured_ms: int) -> None:
    """Tells the response and counts what it used."""
    cost = scope.meter.count(answer, scope.model)
    told = {
        "content": answer.content,
        "latency_ms": answer.latency_ms or measured_ms,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.total_tokens,
        "finish_reason": answer.finish_reason,
        "metadata": answer.metadata,
    }
    if cost is not None:
        told["cost"] = cost
    scope.emit("llm_response", told)
    budget = scope.root.budget
    if budget.limits.needs_tokens:
        characters = scope.tape.characters + len(sent.system.text) + len(answer.content)
        estimate = -(-characters // CHARACTERS_PER_TOKEN)
        if budget.spend_tokens(answer.total_tokens, cost, scope.model, estimate):
            scope.root.warn("usage.estimated", run_id=scope.root.run_id, model=scope.model.id,
                            reason="the vendor reports no usage: limits count one token per four characters")


def _decide(scope: Scope, response: Response) -> str | Generator[Effect, Any, None] | None:
    """The first thing that the response asks for: the answer, work to be done, or None where it was corrected."""
    blocks = response.blocks
    plan, plan_block = _find_plan(scope, blocks)
    calls, final = _announce(scope, response, plan_block)
    if plan is not None:
        return run_workflow(scope, plan, _not_run(blocks, calls, plan_block), run_loop)
    if calls:
        return run_calls(scope, calls, run_loop)
    if final is not None:
        answer = final.content.strip(ASCII_SPACE)
        scope.emit("final", answer)
        return answer
    if response.incomplete is not None:
        scope.inject(corrections.incomplete(response.incomplete))
    elif blocks:
        kinds = list(dict.fromkeys(block.type for block in blocks))
        scope.emit("informational_only", {"kinds": kinds})
        scope.inject(corrections.informational(kinds))
    else:
        return _prose(scope, response.content)
    return None


def _prose(scope: Scope, text: str) -> str | None:
    """Prose is the answer, to the letter, unless the agent asks for it to be corrected."""
    agent = scope.agent
    if agent.on_prose == "accept" or not (scope.skills.visible() or scope.protocols.visible()):
        return text
    scope.emit("no_blocks_stall", {"prose_preview": text[:PROSE_PREVIEW]})
    scope.inject(corrections.stall())
    return None


def _find_plan(scope: Scope, blocks: Sequence[Block]) -> tuple[Plan | None, Block | None]:
    """The first plan block that is a workflow. Every one before it is told as rejected; a sub-run's always is."""
    for block in blocks:
        if block.type == "plan":
            found = Plan.validate(block.content) if scope.may_plan else None
            if found is not None and found.ok:
                return found.plan, block
            scope.emit("plan_rejected", {"reason": found.reason if found else "nested", "raw": block.content})
    return None, None


def _announce(
    scope: Scope, response: Response, plan_block: Block | None
) -> tuple[list[Block], Block | None]:
    """Tells what runs nothing; gives the calls in source order and the first final."""
    calls: list[Block] = []
    final: Block | None = None
    forged: list[Block] = []
    for block in response.blocks:
        kind = block.type
        if kind == "command":
            calls.append(block)
        elif kind == "final":
            final = final or block
        elif kind in ("plan", "json"):
            if block is not plan_block:
                scope.emit(kind, block.content)
        elif kind in FORGED:
            forged.append(block)
            scope.emit("forged_block", _block_dict(block))
        elif scope.protocols.find(kind) is not None:
            calls.append(block)
    if forged:
        scope.warnings.append(corrections.forged(forged))
    if response.incomplete is not None:
        scope.emit("block_incomplete", _block_dict(response.incomplete))
    return calls, final


def _not_run(blocks: Sequence[Block], calls: Sequence[Block], plan_block: Block | None) -> list[Block]:
    """What stands beside a workflow and would have done something without it."""
    called = {id(block) for block in calls}
    after_plan = False
    left = []
    for block in blocks:
        if block is plan_block:
            after_plan = True
        elif block.type == "plan":
            # a second workflow; a plan that is only a note has been told as one
            if after_plan and Plan.validate(block.content).ok:
                left.append(block)
        elif id(block) in called or block.type == "final":
            left.append(block)
    return left


def _provider_error(scope: Scope, error: Exception) -> ProviderError:
    if isinstance(error, ProviderError):
        # a run hangs its result on the error that ends it: one instance raised in two runs must not mix them up
        return error if error.result is None else copied(error)
    return ProviderError(f"{type(scope.provider).__name__} raised {type(error).__name__}: {error_text(error)}")


def _block_dict(block: Block) -> dict[str, str | None]:
    return {"type": block.type, "name": block.name, "content": block.content}
