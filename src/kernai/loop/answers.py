"""Whether an answer is one of the agent's type; see `Agent(output=...)`.

What the model said is read anew in a replay, and gives the same value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernai.errors import LimitReachedError, SkillInputError
from kernai.events import AnswerRejectedRow, FinalRow
from kernai.loop import corrections
from kernai.values.result import StopReason

if TYPE_CHECKING:
    from kernai.loop.decision import Answer
    from kernai.loop.run_state import Run


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
    if run.rejected > run.agent.output_retries:
        times = "once" if run.rejected == 1 else f"{run.rejected} times"
        raise LimitReachedError(
            f"the model answered {times} and never with what Agent(output=...) asks for: {faults}", StopReason.OUTPUT
        )
    run.tell_model(corrections.rejected_answer(error, cut=bool(why_cut)))
