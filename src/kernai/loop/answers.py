"""What becomes of an answer: whether it is whole, and of the agent's type; see `Agent(output=...)`.

A call that the vendor cut off is never run, and the model reads why (`corrections`). An answer that was cut off is the
caller's to judge: `Agent.on_truncated` says whether it is accepted, continued or an error. An empty response is no
answer, and so a model call that failed. What the model said is read again in a replay, and gives the same value.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.parser import parse
from kernai.errors import LimitReachedError, ProviderError, SkillInputError
from kernai.events import AnswerRejectedRow, FinalRow
from kernai.loop import corrections
from kernai.loop.decision import Answer, Correction, Decision, ParsedResponse, decide
from kernai.values.llm_response import CUT
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.loop.run_state import Run
    from kernai.values.llm_response import LlmResponse

_WHY = {
    "length": "the response reached its limit of tokens: raise generation.max_tokens, which counts thinking too",
    "context": "the model's context window is full: send less, or take a model with a larger one",
    "content_filter": "the vendor's content filter stopped the response",
    "refusal": "the model refused",
}


def check_not_empty(answer: LlmResponse) -> None:
    """`ProviderError` for a response that was broken off before it said anything; its code is the finish reason."""
    reason = answer.finish_reason
    if reason in CUT and not answer.content.strip():
        said = why_ended(answer)
        raise ProviderError(f"the answer is empty, because {_WHY[reason]}{said and f': {said}'}", code=reason)


def why_ended(answer: LlmResponse) -> str:
    """What the model or the vendor said of why the response ended, if anything."""
    said = answer.metadata.get("refusal") or answer.metadata.get("finish_message")
    return said if isinstance(said, str) else ""


def is_continued(run: Run, response: ParsedResponse) -> bool:
    """Whether the model is asked to go on with an answer that was cut off; `ProviderError` where the agent fails."""
    reason = response.finish_reason or ""
    rule = run.gate.rules(run).on_truncated
    if rule == "fail":
        raise ProviderError(f"the answer was cut off, because {_WHY[reason]}", code=reason)
    if rule != "continue" or reason != "length":
        return False
    run.unfinished = response.content
    run.inject(corrections.go_on())
    return True


def why_cut(answer: Answer, response: ParsedResponse) -> str:
    """Why the vendor broke an answer off; empty where it did not."""
    return _WHY[response.finish_reason or ""] if answer.cut else ""


def decided(run: Run, response: ParsedResponse) -> tuple[ParsedResponse, Decision]:
    """What a response asks for; one that goes on with an unfinished answer is read together with it.

    A model that begins again instead, with a block of its own, is taken at its word.
    """
    is_typed = None if run.answer_type is None else partial(is_answer, run)
    setup = run.setup
    rules = run.gate.rules(run)
    on_prose = rules.on_prose
    if on_prose == "correct" and (response.blocks or not setup.has_calls()):
        on_prose = "accept"
    decision = decide(
        response, run.protocols, run.may_plan, on_prose, setup.can_call(), is_typed,
        rules.dialects, rules.answers,
    )
    if response.is_unfinished and rules.answers > 1:
        _correct_once(run)
    if not run.unfinished:
        return response, decision
    before, run.unfinished = run.unfinished, ""
    if isinstance(decision, Correction) or (isinstance(decision, Answer) and decision.final is None):
        parsed = parse(before + response.content)
        response, decision = decided(run, ParsedResponse(
            before + response.content, parsed.blocks, parsed.incomplete, parsed.certain, response.finish_reason))
        open_block = response.incomplete
        if isinstance(decision, Correction) and open_block is not None and open_block.type == "final":
            # the model has ended its answer, and forgot only that a tag was open two responses ago
            decision = Answer(open_block.content.strip(ASCII_SPACE), open_block, decision.extras)
    return response, decision


def _correct_once(run: Run) -> None:
    """A model that says nothing and does not end its turn is corrected once a turn, where it can call something."""
    if run.was_silent or not run.setup.can_call():
        reason, said = run.ended_by
        raise ProviderError(
            f"the answer is empty, and the model had not ended its turn: the vendor's reason is {reason!r}"
            f"{said and f' ({said})'}",
            code=reason,
        )
    run.was_silent = True


def is_answer(run: Run, prose: str) -> bool:
    """Whether prose is a value of the agent's type as it stands, and so no mistake, whatever prose else means."""
    kind = run.answer_type
    return kind is not None and kind.is_surely(prose, run.context.media_store, repair=run.root.repair)


def is_accepted(run: Run, answer: Answer, why_cut: str) -> bool:
    """Takes the answer, where it is one of the agent's type. If not, the model is told what is wrong with it.

    `why_cut` says why the vendor broke it off, where it did. `LimitReachedError` where the model may not try again.
    """
    run.output, run.repairs = answer.text, ()
    if run.answer_type is not None:
        try:
            run.output, run.repairs = run.answer_type.repaired(
                answer.text, run.context.media_store, repair=run.root.repair
            )
        except SkillInputError as error:
            _reject(run, error, why_cut)
            return False
    run.truncated = bool(why_cut)
    if why_cut:
        run.root.warn("answer.truncated", run_id=run.root.run_id, agent=run.agent.name, reason=why_cut)
    if answer.final is not None:
        run.write(FinalRow(answer.text))
    return True


def _reject(run: Run, error: SkillInputError, why_cut: str) -> None:
    faults = "\n".join(f"{path}: {message}" if path else message for path, message in error.faults)
    if why_cut:
        faults = f"the answer was cut off, because {why_cut}\n{faults}"
    run.rejected += 1
    run.write(AnswerRejectedRow(faults, run.rejected))
    if run.rejected > run.gate.rules(run).output_retries:
        times = "once" if run.rejected == 1 else f"{run.rejected} times"
        raise LimitReachedError(
            f"the model answered {times} and never with what Agent(output=...) asks for: {faults}", StopReason.OUTPUT
        )
    run.inject(corrections.rejected_answer(error, cut=bool(why_cut)))
