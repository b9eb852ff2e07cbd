"""The loop. It decides; drivers act.

`run_loop` is a generator: it yields effects (`effects`), is sent their outcomes, fills the run's outbox with rows and
returns the `Result`. It does no I/O, starts no thread and reads only the clock it was given. So the same outcomes
always lead to the same decisions, which is why a recording can serve as a checkpoint.

One step::

    system message → messages_sent → CallModel → llm_response, blocks_parsed → the conversation
      → decide, and the first of these that applies is carried out:
        1. Workflow    a valid plan: its tasks are sub-runs
        2. Calls       commands and protocol blocks: one message of the runtime each
        3. Answer      a final's content, or prose
        4. Correction  for a response that asks for nothing
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, NoReturn

from kernai.blocks.block import Block, final_block
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.parser import text_with_stray_close
from kernai.errors import (
    INTERRUPTED,
    KernaiError,
    LimitReachedError,
    MaxStepsReachedError,
    Pause,
    ProviderError,
    RunCancelledError,
    Stop,
    copied,
    described,
    error_text,
)
from kernai.events import (
    RECORDING_FORMAT,
    BlockIncompleteRow,
    BlocksParsedRow,
    DialectCallRow,
    ForgedBlockRow,
    InformationalOnlyRow,
    InputAddedRow,
    JsonRow,
    LlmResponseRow,
    MessagesSentRow,
    ModelFailedRow,
    NoBlocksStallRow,
    PlanRejectedRow,
    PlanRow,
    RunStartRow,
    StrayCloseRow,
)
from kernai.loop import corrections
from kernai.loop.answers import accepts, asks_to_continue, check_not_empty, decided
from kernai.loop.calls import failed, plain_call, refuse_quoted, run_calls
from kernai.loop.decision import NOTHING, Answer, Calls, Correction, Decision, Workflow
from kernai.loop.effects import (
    CallModel,
    CallProtocol,
    CallSkill,
    Cancelled,
    Effect,
    LimitStop,
    NotPerformed,
    SubRun,
    Work,
    alone,
)
from kernai.loop.model_stream import ModelStream, ParsedResponse
from kernai.loop.quoted_calls import TRANSLATED_ANSWERS, are_asked, passed_on, record_untrusted_history
from kernai.loop.root import Outbox, Root
from kernai.loop.run_state import Run, input_message, recorded_parts
from kernai.values.limits import usage_of
from kernai.values.llm_response import CUT, LlmResponse
from kernai.values.message import ConversationView, InputPart, Message
from kernai.values.result import Result, Usage

PROSE_PREVIEW = 400
#: the rows of blocks that only inform
_NOTES: dict[str, type[PlanRow | JsonRow]] = {"plan": PlanRow, "json": JsonRow}


def run_loop(run: Run, content: tuple[InputPart, ...], *, again: bool = False) -> Generator[Effect, Any, Result[Any]]:
    """Runs a run or sub-run from its input to its `Result`. Yields effects; see `effects` for what is sent back.

    With `again`, a run that has ended is continued: `content` is added to its conversation.

    A limit, a cancellation, a `Stop` and a failed provider end in a `Result`. Any other exception is raised, after the
    `result` event has recorded how the run ended.
    """
    # an error before the first row, such as a second Ctrl-C, leaves no record: a lone `result` could not be resumed
    (_record_input if again else record_start)(run, content)
    try:
        take_input(run, content, again=again)
        if run.given_plan is not None and not again:
            from kernai.loop.workflow import run_given_plan  # most runs have no workflow

            return run.finish((yield from run_given_plan(run, run.given_plan)))
        for step in run.gate.steps(run):
            effect = _call_model(run, step)
            try:
                started, answer = run.clock.monotonic(), None
                try:
                    answer = yield effect
                    is_plain = type(answer) is LlmResponse and answer.finish_reason not in CUT
                    if not (is_plain and run.root.cancellation.is_quiet):
                        _check_answer(run, answer)
                except (GeneratorExit, NotPerformed):
                    raise
                except BaseException as error:  # noqa: BLE001 - raised again
                    _fail(run, error, answer)
                response = _receive(run, answer, started)
                call = plain_call(run, response)
                if call is not None:
                    try:
                        value = yield call.effect
                    except BaseException as error:  # noqa: BLE001 - raised again unless it is the call's own
                        run.inject(failed(call, error, response.only), response.only, by="tool")
                    else:
                        run.inject(call.end(value), response.only, by="tool")
                    del call, response  # not needed while the next model call is waited for
                    continue
                accepted = yield from _act(run, response)
            except Stop as stop:
                accepted = _finished(run, stop)
            if accepted is not None:
                return run.finish(accepted.text)
        run.gate.check()  # as at the start of a step: the last one may have been broken off
        # the error of a sub-run is read by another model, which can do neither
        advice = "" if run.scope else ": raise Agent(max_steps=...), or continue with history=result.messages"
        used = run.steps - run.first_step
        raise MaxStepsReachedError(f"the agent used all its {used} steps without a final answer{advice}")
    except GeneratorExit:
        raise  # the driver has abandoned the run: nobody would read its result
    except BaseException as error:  # noqa: BLE001 - raised again unless a run may end that way
        return _ended(run, error)


def _finished(run: Run, stop: Stop) -> Answer | None:
    """Returns the answer with which a call ended the run; None if it must be corrected. Raises a `stop` without one."""
    if not stop.is_final:
        raise stop
    run.gate.check()  # as after a model's answer: calls beside it may have been broken off
    answer = Answer(stop.message, Block("final", None, stop.message), NOTHING)
    run.messages.append(Message("assistant", final_block(stop.message)))
    return answer if accepts(run, answer) else None


def _ended(run: Run, error: BaseException) -> Result[Any]:
    """Returns the result of a run that `error` has ended, or raises the error again if it is meant for the caller."""
    try:
        if isinstance(error, (LimitReachedError, ProviderError)):
            # an error that has ended another run keeps that run's result
            return run.finish(error=error if error.result is None else copied(error))
        if isinstance(error, Stop) and not error.is_final:
            ended = LimitReachedError(error.message, error.reason)
            return run.finish(error=ended, raised=not isinstance(error, LimitStop))
        if isinstance(error, Cancelled):
            return run.finish(error=run.gate.why_stopped())
        if isinstance(error, (Pause, Stop)):
            misplaced = KernaiError(
                "only a call can raise Pause or Stop('final', ...): a skill, a protocol's handler or a middleware")
            run.finish(error=misplaced)
            raise misplaced from error
        if isinstance(error, Exception):  # the user's own code failed, such as an instructions function
            run.finish(error=KernaiError(f"{type(error).__name__}: {error_text(error)}"))
        else:
            if not isinstance(error, SystemExit):  # in a task, that is only the task's failure
                run.root.cancellation.set()
            run.finish(error=RunCancelledError(INTERRUPTED))
        raise error
    finally:
        del error  # its traceback refers to this frame; without the cycle, a run is freed without garbage collection


def work_of(root: Root, what: CallSkill | CallProtocol | SubRun) -> tuple[Work, Outbox]:
    """Returns the work of a sub-run or a spawned call, for a driver, with the outbox of its rows."""
    run = root.runs[what.scope]
    if isinstance(what, SubRun):
        work, outbox = run_loop(run, what.input), run.outbox
    else:
        # a call itself writes no rows; its parent does
        work, outbox = alone(what), Outbox(root.runs[""].outbox.delivery)
    return root.wrap(run, what, work), outbox


def record_start(run: Run, content: tuple[InputPart, ...]) -> None:
    """Records the start of a run."""
    root, plan = run.root, run.given_plan
    if plan is not None:
        root.budget.begin_input(is_plan=True)
    row = RunStartRow(
        root.run_id, recorded_parts(content), [one.to_dict() for one in run.messages], run.model.id,
        run.agent.name, run.metadata, format=RECORDING_FORMAT, plan=None if plan is None else plan.to_dict(),
        agents=None if plan is None else sorted(run.task_agents),
        rules={**run.setup.recorded_rules, "repair": root.configured_repair},
        trusted=None if run.trust is None else run.trust.at_start() or None,
        definition=None if run.scope else run.definition(),
    )
    if run.metadata:
        row.seal()
    run.put(row)


def _record_input(run: Run, content: tuple[InputPart, ...]) -> None:
    """Begins another turn of a run that has ended, and records its input."""
    run.begin_turn()
    run.root.budget.begin_input()
    run.write(InputAddedRow(recorded_parts(content)))


def take_input(run: Run, content: tuple[InputPart, ...], *, again: bool = False) -> None:
    """Adds the input to the conversation, and its media to the store. Call it after the input has been recorded."""
    if not again:
        for earlier in run.messages:
            record_untrusted_history(run, earlier)
    run.keep(input_message(content, "model" if run.scope else "user"))
    if run.depth and not again:  # for the root run, the request has checked all this
        if not run.gate.is_decided():
            run.root.budget.check_depth(run.depth)
        run.root.budget.limits.check_model(run.model)
        run.agent.check_provider(run.provider)


def _act(run: Run, response: ParsedResponse) -> Generator[Effect, Any, Answer | None]:
    """Decides what a response asks for and does it; returns the answer if it ends the run."""
    response, decision = decided(run, response)
    if decision.extras is not NOTHING:
        _write_extras(run, decision, response)
    translated = decision if isinstance(decision, (Calls, Answer)) and decision.dialect is not None else None
    if not run.quoted.knows_none:
        is_old = isinstance(decision, Answer) and run.gate.rules(run).quotes < TRANSLATED_ANSWERS
        meant = response.blocks if translated is None or is_old else translated.blocks
        run.quoted.begin_response(confirms=partial(are_asked, run, meant if response.incomplete is None else ()))
    if translated is not None:
        for block in translated.blocks:
            run.write(DialectCallRow(translated.dialect, block.name))
    if isinstance(decision, Calls):
        yield from run_calls(run, decision.blocks)
    elif isinstance(decision, Correction):
        _correct(run, decision, response)
    elif isinstance(decision, Answer) and decision.cut and asks_to_continue(run, decision, response):
        pass
    elif decision.block is not None and (quoted := refuse_quoted(run, decision.block)) is not None:
        run.inject(quoted, decision.block)
    elif isinstance(decision, Workflow):
        from kernai.loop.workflow import run_workflow  # most runs have no workflow

        yield from run_workflow(run, decision.plan, decision.not_run, decision.block)
    elif accepts(run, decision, response.answer):
        return decision
    return None


def _call_model(run: Run, step: int) -> CallModel:
    """Begins a step: records its model call, and returns the call for the loop to yield."""
    run.begin_step(step)
    run.steps = step + 1
    run.gate.spend_call()
    system = run.gate.system(run)
    if system is not run.system:
        run.system = system
        if system.may_quote:
            run.quoted.record_untrusted("the instructions", passed_on(system.message.text))
    sent = ConversationView(system.message, run.messages)
    if run.provider is None:
        run.require_provider()
    if run.trust is not None:
        run.trust.note_instructions()
    run.put(MessagesSentRow(sent))
    run.stream = ModelStream(run)
    generation, tools = run.generation, None
    if run.setup.is_native:
        tools = run.setup.tools(system, run.agent.instructions_read, run.context)
    elif run.setup.constrains:
        generation = run.setup.constrained(generation, run.provider)
    return CallModel(run.scope, step, sent, run.model, generation, tools)


def _check_answer(run: Run, answer: object) -> None:
    run.gate.check()
    if not isinstance(answer, LlmResponse):
        raise ProviderError(f"a middleware returned {type(answer).__name__}, not an LlmResponse")
    check_not_empty(answer)


def _fail(run: Run, error: BaseException, answer: object) -> NoReturn:
    """Records a failed model call: why it failed, the text so far, and its usage, if known. Raises what ends the run.

    There is an `answer` if the run was cancelled just after the call had ended, or if the answer is empty.
    """
    failure, cancelled = _failure_of(run, error), isinstance(error, Cancelled)
    whole, stream = answer if isinstance(answer, LlmResponse) else None, run.stream
    assert stream is not None
    try:
        if whole is not None:
            stream.give_up(usage_of(whole, run.model))
        stream.settle(whole)
        used = stream.given_up or Usage()
        run.stops(failure)
        row = ModelFailedRow(
            error_text(run.gate.why_stopped() if cancelled else failure),
            None if cancelled else type(error).__name__,
            "".join(stream.pieces) if whole is None else whole.content,
            used.prompt_tokens, used.completion_tokens,
            cached_tokens=used.cached_tokens, cache_write_tokens=used.cache_write_tokens, cost=used.cost,
            model_calls=used.model_calls if used.model_calls > 1 else None,
            stop_reason=error.reason if isinstance(error, Stop) else None,
        )
        counted = row.usage()  # readers of the recording count the same
        if counted is not None:
            run.meter.add(counted)
        run.write(row)
        if isinstance(failure, ProviderError):
            run.gate.check()
        if failure is error:
            raise error  # keeps the provider's `__cause__`
        raise failure from error
    finally:
        del error, failure  # their tracebacks refer to this frame


def _receive(run: Run, answer: LlmResponse, started: float) -> ParsedResponse:
    """Records the response, counts its usage, and adds it to the conversation."""
    measured_ms = int((run.clock.monotonic() - started) * 1000)
    stream = run.stream
    assert stream is not None
    # first, because this may still write streamed pieces, which come before the row with the complete text
    response = stream.response(answer)
    run.finish_reason = answer.finish_reason
    model = run.model
    cost = answer.cost if model.cost is None else answer.cost_at(model)
    run.meter.count(answer, cost)
    row = LlmResponseRow(
        answer.content, answer.latency_ms or measured_ms, answer.prompt_tokens, answer.completion_tokens,
        answer.total_tokens, answer.finish_reason, answer.metadata, answer.cached_tokens,
        answer.cache_write_tokens, cost, answer.model,
    )
    row.ends_turn, run.native_calls = answer.ends_turn, ()
    if answer.blocks is not None and answer.prose is not None:
        row.blocks = [block.to_dict() for block in answer.blocks]
        run.native_calls = answer.blocks
    elif answer.blocks:  # a middleware may drop calls on purpose, a provider does not
        run.root.warn("native_calls.dropped", calls=len(answer.blocks),
                      reason="the content of the response does not end with their markup")
    if answer is not stream.answer or stream.earlier:
        stream.settle(answer)
    if stream.given_up is not None:  # usage of earlier attempts
        run.meter.add(stream.given_up)
        row.given_up = stream.given_up.to_dict()
    if answer.metadata:
        row.seal()
    if run.root.budget.needs_tokens and not stream.earlier:  # otherwise its tokens are counted already
        stream.spend(answer, cost)
    run.put(row, BlocksParsedRow(response.blocks))
    run.messages.append(answer.message())
    return response


def _write_extras(run: Run, decision: Decision, response: ParsedResponse) -> None:
    """Records what a response contains besides its request; the runtime's next message warns the model about it."""
    extras = decision.extras
    rejected = extras.rejected if run.agent.workflows else ()
    for block, reason in rejected:
        run.write(PlanRejectedRow(reason, block.content))
    if isinstance(decision, Correction):  # after calls, the model continues with their results instead
        most = run.gate.rules(run).max_tasks
        run.warnings += tuple([
            corrections.rejected_plan(reason, most) for block, reason in rejected
            if block.content.lstrip(ASCII_SPACE).startswith(("{", "[", "```"))  # other plans are meant as notes
        ])
    for block in extras.others:
        note = _NOTES.get(block.type)
        run.write(ForgedBlockRow(block.type, block.name, block.content) if note is None else note(block.content))
    if forged := [block for block in extras.others if block.type not in _NOTES]:
        run.warnings += (corrections.forged(forged),)
    open_block = response.incomplete
    if open_block is not None:
        run.write(BlockIncompleteRow(open_block.type, open_block.name, open_block.content))
        if isinstance(decision, (Calls, Workflow)):
            run.warnings += (corrections.incomplete(open_block, cut=response.cut),)
    if extras.uncertain:
        run.warnings += (corrections.uncertain(extras.uncertain),)


def _correct(run: Run, correction: Correction, response: ParsedResponse) -> None:
    if correction.kind == "incomplete" and response.incomplete is not None:
        run.inject(corrections.incomplete(response.incomplete, cut=response.cut))
    elif correction.kind == "uncertain":
        run.inject_warnings()  # the warnings say why
    elif correction.kind == "dialect" and correction.calls is not None:
        run.inject(corrections.dialect(correction.calls))
    elif correction.kind == "stray":
        run.write(StrayCloseRow((text_with_stray_close(response.content) or "")[:PROSE_PREVIEW]))
        run.inject(corrections.stray_close())
    elif correction.kind == "informational":
        run.write(InformationalOnlyRow(correction.kinds))
        run.inject(corrections.informational(correction.kinds, can_call=run.setup.can_call))
    else:
        run.write(NoBlocksStallRow(response.content[:PROSE_PREVIEW]))
        run.inject(corrections.stall(cut=response.cut))


def _failure_of(run: Run, error: BaseException) -> BaseException:
    """Returns the error that ends the run if a model call raises `error`."""
    if isinstance(error, ProviderError) or not isinstance(error, Exception):
        return error
    if run.gate.is_on_record():
        return ProviderError(error_text(error))  # the recorded text already names the provider
    asked = run.stream.asked if run.stream is not None and run.stream.failure is error else None
    is_own = asked is None and run.middleware
    who = "a middleware" if is_own else type(run.provider if asked is None else asked).__name__
    return ProviderError(f"{who} raised {described(error)}")
