"""Checks answers: whether they are complete and of the agent's output type, see `Agent(output=...)`.

A call that the vendor cut off is never run, and the model reads why (`corrections`). For an answer that was cut off,
`Agent.on_truncated` decides whether it is accepted, continued or an error. An empty response is a failed model call. A
replay reads the recorded text again and gets the same value.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING

from kernai.agents.definition import CHECKED_FIELDS
from kernai.blocks.grammar import ASCII_SPACE
from kernai.errors import LimitReachedError, ProviderError, SkillInputError
from kernai.events import AnswerRejectedRow, FinalRow
from kernai.loop import corrections
from kernai.loop.decision import Answer, Correction, Decision, decide
from kernai.loop.model_stream import ParsedResponse
from kernai.values.llm_response import CUT, LlmResponse
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.inputs.answer_type import Unknown
    from kernai.loop.run_state import Run

_WHY = {
    "length": "the response reached its limit of tokens: raise generation.max_tokens, which counts thinking too",
    "context": "the model's context window is full: send less, or take a model with a larger one",
    "content_filter": "the vendor's content filter stopped the response",
    "refusal": "the model refused",
}


def check_not_empty(answer: LlmResponse) -> None:
    """Raises `ProviderError`, with the finish reason as its code, if a response was cut off before it had any text."""
    reason = answer.finish_reason
    if reason in CUT and not answer.content.strip():
        raise ProviderError(f"the answer is empty, because {_why_cut(answer)}", code=reason)


def _why_cut(answer: LlmResponse) -> str:
    """Returns why a response was cut off."""
    said = _why_ended(answer)
    return f"{_WHY[answer.finish_reason or '']}{said and f': {said}'}"


def _why_ended(answer: LlmResponse) -> str:
    """Returns what the model or the vendor says about why the response ended, or an empty string."""
    said = answer.metadata.get("refusal") or answer.metadata.get("finish_message")
    return said if isinstance(said, str) else ""


def asks_to_continue(run: Run, answer: Answer, response: ParsedResponse) -> bool:
    """Asks the model to continue an answer that was cut off, if the agent's `on_truncated` wants that; returns whether.

    Raises `ProviderError` with ``on_truncated="fail"``.
    """
    rule = run.gate.rules(run).on_truncated
    if rule == "fail":
        raise ProviderError(f"the answer was cut off, because {_why_cut(response.answer)}", code=answer.cut)
    if rule != "continue" or answer.cut != "length":
        return False
    run.unfinished = response.content
    run.inject(corrections.continue_answer())
    return True


def decided(run: Run, response: ParsedResponse) -> tuple[ParsedResponse, Decision]:
    """Decides what a response asks for, reading a continuation together with the unfinished answer before it.

    If the model does not continue but sends a complete block, only that block counts.
    """
    decision = _decided(run, response)
    unfinished, run.unfinished = run.unfinished, ""
    if unfinished and (isinstance(decision, Correction) or (isinstance(decision, Answer) and decision.block is None)):
        answer = copy(response.answer)  # not `replace`: a subclass may have a constructor of its own
        answer.content = unfinished + response.content
        response = ParsedResponse(answer)
        decision, incomplete = _decided(run, response), response.incomplete
        if isinstance(decision, Correction) and incomplete is not None and incomplete.type == "final":
            # the answer is complete: the model only forgot to close the tag that it opened in the earlier response
            decision = Answer(incomplete.content.strip(ASCII_SPACE), incomplete, decision.extras)
    # `was_corrected` stays as it is after an answer that is rejected or continued, and a call in another format
    if isinstance(decision, Correction):
        run.was_stray |= decision.kind == "stray"
        if decision.kind != "dialect":
            is_draft = decision.kind == "informational" and not run.setup.can_call
            run.was_corrected = is_draft or decision.kind == "stall"
    elif not isinstance(decision, Answer):
        run.was_corrected = False
    return response, decision


def _decided(run: Run, response: ParsedResponse) -> Decision:
    setup, rules, kind = run.setup, run.gate.rules(run), run.answer_type
    is_typed = None  # whether prose is already a value of the output type, and so an answer whatever `on_prose` says
    if kind is not None:
        is_typed = partial(kind.is_surely, media_store=run.context.media_store, repair=run.gate.repair(run))
    is_once, is_last = rules.on_prose == "correct_once", run.step + 1 >= run.first_step + rules.max_steps
    decision = decide(
        response, rules, run.protocols, is_typed, may_plan=run.may_plan, can_call=setup.can_call,
        # not in a step that leaves the model no other; a stray tag is corrected once per turn
        corrects_prose=setup.has_calls and not (is_once and is_last),
        checks_close=not (run.was_stray or is_last), was_corrected=run.was_corrected and is_once,
    )
    if response.is_unfinished and rules.answers > 1:  # corrected once per turn, if the model can call something
        if run.was_silent or not setup.can_call:
            answer = response.answer
            reason, said = answer.metadata.get("finish_reason") or answer.finish_reason, _why_ended(answer)
            raise ProviderError(
                f"the answer is empty, and the model had not ended its turn: the vendor's reason is {reason!r}"
                f"{said and f' ({said})'}",
                code=reason,
            )
        run.was_silent = True
    return decision


def accepts(run: Run, answer: Answer, response: LlmResponse | None = None) -> bool:
    """Returns whether an answer is of the agent's output type and passes `output_check`; otherwise asks for another.

    Raises `LimitReachedError` if the model may not try again.
    """
    why_cut = _why_cut(response) if response is not None and answer.cut else ""
    run.output, run.repairs = answer.text, ()
    if run.answer_type is not None:
        rules = run.gate.rules(run)
        unknown: Unknown = "ignore"
        if rules.answers >= CHECKED_FIELDS:  # a misspelled field is worth a correction, but not the whole run
            unknown = "check" if run.rejected < rules.output_retries else "note"
        try:
            run.output, run.repairs = run.answer_type.repaired(
                answer.text, run.context.media_store, repair=run.gate.repair(run), unknown=unknown
            )
        except SkillInputError as error:
            faults = "\n".join(f"{path}: {message}" if path else message for path, message in error.faults)
            _reject(run, faults, why_cut, corrections.rejected_answer(error, cut=answer.cut), answer)
            return False
    why = None if run.output_check is None else run.gate.output_check(run, run.output)
    if why is not None:
        _reject(run, why, "", corrections.refused_answer(why), answer)
        return False
    run.truncated = bool(answer.cut)
    if why_cut:
        run.root.warn("answer.truncated", agent=run.agent.name, reason=why_cut)
    if answer.block is not None:
        run.put(FinalRow(answer.text))
    return True


def _reject(run: Run, faults: str, why_cut: str, correction: str, answer: Answer) -> None:
    if why_cut:
        faults = f"the answer was cut off, because {why_cut}\n{faults}"
    run.rejected += 1
    run.write(AnswerRejectedRow(faults, run.rejected))
    if run.rejected > run.gate.rules(run).output_retries:
        times = "once" if run.rejected == 1 else f"{run.rejected} times"
        raise LimitReachedError(
            f"the model answered {times} and never with what Agent(output=..., output_check=...) asks for: {faults}",
            StopReason.OUTPUT,
        )
    run.inject(correction, answer.block)
