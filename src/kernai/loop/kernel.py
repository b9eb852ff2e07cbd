"""The loop. It decides; drivers act.

`run_loop` is a generator: it yields effects (`effects`), is sent what came of them, fills the run's outbox with events
and returns the `Result`. It does no I/O, starts no thread and reads no clock but the one it was given, so the same
outcomes always lead to the same decisions: that is what makes a recording a checkpoint.

One step::

    system message → messages_sent → CallModel → llm_response, blocks_parsed → the conversation
      → decide, and the first that holds is carried out:
        1. Workflow    a valid plan: its tasks are sub-runs
        2. Calls       commands and protocol blocks: one message of the runtime each
        3. Answer      a final's content, or prose
        4. Correction  what the model is told that asked for nothing

Where a new thing goes: a built-in command into `builtin_commands.BUILTINS`; a block type that calls something into
`calls`; what a response may ask for into `decision`; a stop reason into `result.StopReason`, raised as a
`LimitReachedError`; a sink is any object with `record`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, assert_never

from kernai.errors import LimitReachedError, MaxStepsReachedError, ProviderError, RunCancelledError, copied, error_text
from kernai.loop import corrections
from kernai.loop.calls import run_calls
from kernai.loop.decision import NOTHING, Answer, Aside, Calls, Correction, Response, Workflow, decide
from kernai.loop.effects import CallModel, Cancelled, Effect, SubRun, Work, alone
from kernai.loop.model_stream import ModelStream
from kernai.loop.outbox import Outbox
from kernai.loop.run_state import Run, input_summary
from kernai.loop.workflow import run_workflow
from kernai.values.conversation import ConversationView, MessageDicts
from kernai.values.limits import CHARACTERS_PER_TOKEN
from kernai.values.llm_response import LlmResponse
from kernai.values.message import Message, Part
from kernai.values.result import Result, StopReason

if TYPE_CHECKING:
    from kernai.loop.root import Root

PROSE_PREVIEW = 400
NO_PROVIDER = (
    "no provider is set: pass run(..., provider=...), or Agent(provider=...), or configure(default_provider=...)"
)


def run_loop(run: Run, content: tuple[Part, ...]) -> Generator[Effect, Any, Result]:
    """One run or sub-run from its input to its `Result`. Yields effects; see `effects` for what they are answered with.

    A limit, a cancellation and a provider's failure end in a `Result`. Any other exception passes through, after the
    `result` event has told how the run ended.
    """
    try:
        _begin(run, content)
        text = yield from _steps(run)
        return run.finish(StopReason.FINAL, text)
    except LimitReachedError as error:
        return run.finish(StopReason(error.reason), error=error)
    except ProviderError as error:
        return run.finish(StopReason.ERROR, error=error)
    except Cancelled:
        stopped = run.root.cancellation.error()
        reason = StopReason(stopped.reason) if isinstance(stopped, LimitReachedError) else StopReason.CANCELLED
        return run.finish(reason, error=stopped)
    except Exception as error:
        # the host's own code failed (instructions, say): the recording ends properly, the caller gets the exception
        run.finish(StopReason.ERROR, error=ProviderError(f"{type(error).__name__}: {error_text(error)}"))
        raise
    except GeneratorExit:
        raise  # the driver has let go of the run: nobody would hear how it ended
    except BaseException:
        run.finish(StopReason.CANCELLED, error=RunCancelledError("the run was interrupted"))
        raise


def work_of(root: Root, what: Effect) -> tuple[Work, Outbox]:
    """What a driver drives for an effect that is work of its own: a sub-run's loop, or a call by itself."""
    if isinstance(what, SubRun):
        run = root.runs[what.scope]
        return run_loop(run, what.input), run.outbox
    return alone(what), root.runs[""].outbox.beside()  # a call tells nothing by itself: its parent speaks for it


def _begin(run: Run, content: tuple[Part, ...]) -> None:
    root = run.root
    message = Message("user", content)
    run.emit("run_start", {
        "run_id": root.run_id,
        "input": input_summary(content),
        "model": run.model.id,
        "agent": run.agent.name,
        "metadata": dict(run.metadata),
    })
    root.budget.check_depth(run.depth)
    root.budget.limits.check_model(run.model)
    run.agent.check_provider(run.provider)
    for media in message.media:
        run.context.media_store.put(media)
    run.conversation.append(message)


def _steps(run: Run) -> Generator[Effect, Any, str]:
    most = run.agent.max_steps
    for step in range(most):
        run.step = step
        run.steps = step + 1
        response = yield from _ask(run)
        decision = decide(response, run.protocols, run.may_plan, run.on_prose, run.can_call)
        if decision.aside is not NOTHING:
            _tell_aside(run, decision.aside)
        if isinstance(decision, Calls):
            yield from run_calls(run, decision.blocks)
        elif isinstance(decision, Answer):
            if decision.final is not None:
                run.emit("final", decision.text)
            return decision.text
        elif isinstance(decision, Workflow):
            yield from run_workflow(run, decision.plan, decision.beside)
        elif isinstance(decision, Correction):
            _correct(run, decision, response)
        else:
            assert_never(decision)
    raise MaxStepsReachedError(
        f"the agent used all its {most} steps without a final answer: raise Agent(max_steps=...), or go on with "
        "history=result.messages"
    )


def _ask(run: Run) -> Generator[Effect, Any, Response]:
    """One model call, from the system message to the parsed response in the conversation."""
    root = run.root
    root.cancellation.check()
    sent = run.conversation.view(
        run.agent.system_message(run.context, run.model, run.skills, run.protocols, workflows=run.may_plan)
    )
    root.budget.spend_call()
    if run.provider is None:
        raise ProviderError(NO_PROVIDER)
    run.emit("messages_sent", MessageDicts(sent))
    generation = run.agent.constrained(run.generation, run.provider, run.model, run.skills, run.protocols)
    stream = run.stream = ModelStream(run)
    started = run.clock.monotonic()
    try:
        answer = yield CallModel(run.scope, run.step, sent, run.model, generation)
    except Exception as error:
        root.cancellation.check()
        failure = _provider_error(run, error)
        if failure is error:
            raise  # with the cause that the provider gave it
        raise failure from error
    root.cancellation.check()
    if not isinstance(answer, LlmResponse):
        raise ProviderError(f"{type(run.provider).__name__} returned {type(answer).__name__}, not an LlmResponse")
    measured_ms = int((run.clock.monotonic() - started) * 1000)
    # first, because it may still show pieces: live ones come before the event that holds them all
    response = stream.response(answer.content)
    _account(run, answer, sent, measured_ms)
    run.emit("blocks_parsed", [block.to_dict() for block in response.blocks])
    run.conversation.append(Message("assistant", answer.content))
    return response


def _account(run: Run, answer: LlmResponse, sent: ConversationView, measured_ms: int) -> None:
    """Tells the response and counts what it used."""
    cost = run.meter.count(answer, run.model)
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
    run.emit("llm_response", told)
    budget = run.root.budget
    if budget.needs_tokens:
        characters = run.conversation.characters + len(sent.system.text) + len(answer.content)
        estimate = -(-characters // CHARACTERS_PER_TOKEN)
        if budget.spend_tokens(answer.total_tokens, cost, run.model, estimate):
            run.root.warn("usage.estimated", run_id=run.root.run_id, model=run.model.id,
                          reason="the vendor reports no usage: limits count one token per four characters")


def _tell_aside(run: Run, aside: Aside) -> None:
    """Tells what a response holds beside what it asks for."""
    for block, reason in aside.rejected:
        run.emit("plan_rejected", {"reason": reason, "raw": block.content})
    for block in aside.told:
        if block.type in ("plan", "json"):
            run.emit(block.type, block.content)
        else:
            run.emit("forged_block", block.to_dict())
    if aside.forged:
        run.warnings.append(corrections.forged(aside.forged))
    if aside.incomplete is not None:
        run.emit("block_incomplete", aside.incomplete.to_dict())
    if aside.uncertain:
        run.warnings.append(corrections.uncertain(aside.uncertain))


def _correct(run: Run, correction: Correction, response: Response) -> None:
    """Tells the model what was wrong with a response that asked for nothing."""
    if correction.kind == "incomplete" and response.incomplete is not None:
        run.tell_model(corrections.incomplete(response.incomplete))
    elif correction.kind == "uncertain":
        run.tell_warnings()  # which say it
    elif correction.kind == "dialect" and correction.calls is not None:
        run.tell_model(corrections.dialect(correction.calls))
    elif correction.kind == "informational":
        run.emit("informational_only", {"kinds": correction.kinds})
        run.tell_model(corrections.informational(correction.kinds))
    else:
        run.emit("no_blocks_stall", {"prose_preview": response.content[:PROSE_PREVIEW]})
        run.tell_model(corrections.stall())


def _provider_error(run: Run, error: Exception) -> ProviderError:
    if isinstance(error, ProviderError):
        # a run hangs its result on the error that ends it: one instance raised in two runs must not mix them up
        return error if error.result is None else copied(error)
    return ProviderError(f"{type(run.provider).__name__} raised {type(error).__name__}: {error_text(error)}")
