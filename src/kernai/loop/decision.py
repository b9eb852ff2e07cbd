"""`decide`, the pure function that says what a response asks for. The loop and `kernai parse` share it.

It emits nothing and changes nothing. The loop (`kernel`) carries out the decision and records the events.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from kernai.agents.definition import CHECKED_CLOSE, Rules
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.parser import parse, text_with_stray_close

if TYPE_CHECKING:
    from kernai.blocks.block import Block
    from kernai.blocks.dialects import DialectCalls
    from kernai.blocks.plan import Plan
    from kernai.loop.model_stream import ParsedResponse

#: blocks that only the runtime may write; if a model writes one, it is forged
FORGED = frozenset({"result", "error", "media"})
#: blocks that only inform
INFORMATIONAL = frozenset({"plan", "json"})
NESTED = "nested"


class Extras(NamedTuple):
    """What a response contains besides its request and an open block. None of it is run."""

    #: `plan` blocks that cannot be run, each with a reason of the `plan_rejected` event
    rejected: Sequence[tuple[Block, str]] = ()
    #: plans that are only notes, `json` blocks and forged blocks, in source order
    others: Sequence[Block] = ()
    #: blocks after an unterminated JSON value, with which the block before them begins
    uncertain: Sequence[Block] = ()


NOTHING = Extras()


class Workflow(NamedTuple):
    """A plan to run, and its block. `not_run`: blocks that are not run because of the plan."""

    plan: Plan
    not_run: Sequence[Block]
    extras: Extras
    block: Block


class Calls(NamedTuple):
    """Commands and protocol blocks to run, in source order. A `final` in the same response is not the answer.

    `dialect`: the format of the calls if they were not written as blocks.
    """

    blocks: Sequence[Block]
    final: Block | None
    extras: Extras
    dialect: str | None = None


class Answer(NamedTuple):
    """The answer: the content of `block`, a final, or prose. `cut` as in `ParsedResponse`; `dialect` as in `Calls`."""

    text: str
    block: Block | None
    extras: Extras
    cut: str = ""
    dialect: str | None = None

    @property
    def blocks(self) -> Sequence[Block]:
        return () if self.block is None else (self.block,)


class Correction(NamedTuple):
    """A response that asks for nothing and is not an answer. `kind` decides how the model is corrected.

    `incomplete`: the response ends in an open block. `informational`: it has only blocks that run nothing, of the types
    in `kinds`. `stall`: it has no block at all, but the agent must use blocks. `uncertain`: its requests follow an
    unterminated JSON value. `dialect`: it has calls in another format; `calls` has the same calls as blocks. `stray`:
    its final contains its own closing tag.
    """

    kind: Literal["incomplete", "informational", "stall", "uncertain", "dialect", "stray"]
    extras: Extras
    kinds: Sequence[str] = ()
    calls: DialectCalls | None = None


Decision = Workflow | Calls | Answer | Correction


def decide(
    response: ParsedResponse, rules: Rules, callable_types: Container[str],
    is_answer: Callable[[str], bool] | None = None, *, may_plan: bool, can_call: bool, corrects_prose: bool = True,
    checks_close: bool = True, was_corrected: bool = False,
) -> Decision:
    """Returns the first of these that applies: a workflow, calls, an answer, a correction.

    - `callable_types`: the block types that protocols handle. `may_plan`: whether plans are run: only in the root run.
    - `is_answer`: recognises prose that is an answer in any case, because it is a value of the agent's output type.
    - `can_call`: whether the agent has anything to call. If not, its text is the answer, including any tags that it
      mentions, unless it has only plans and drafts (`Rules.answers`).
    - `corrects_prose`, `checks_close`: whether prose, or a final that contains its own closing tag, may be corrected if
      the rules say so. If not, it is the answer.
    - `was_corrected`: the previous response was corrected for being prose or only a draft; another one is the answer.
    """
    calls: list[Block] = []
    not_run: list[Block] = []  # beside a workflow
    others: list[Block] = []
    final: Block | None = None
    rejected: list[tuple[Block, str]] = []
    workflow: tuple[Plan, Block] | None = None
    blocks = response.blocks[:response.certain]
    uncertain = response.blocks[len(blocks):]
    for block in blocks:
        kind = block._type  # noqa: SLF001 - the property costs a call
        if kind == "plan":
            from kernai.blocks.plan import Plan  # few responses hold one

            plan, why = Plan.validate(block.content, rules.max_tasks) if may_plan else (None, NESTED)
            if plan is not None and workflow is None:
                workflow = plan, block
                continue
            others.append(block)
            if plan is not None:
                not_run.append(block)  # a second workflow
            elif workflow is None:
                rejected.append((block, str(why)))
        elif kind == "json" or kind in FORGED:
            others.append(block)
        elif kind == "final":
            final = final or block
            not_run.append(block)
        elif kind == "command" or kind in callable_types:
            calls.append(block)
            not_run.append(block)
    has_extras = others or rejected or response.incomplete or uncertain
    extras = Extras(rejected, others, uncertain) if has_extras else NOTHING
    if workflow is not None:
        return Workflow(workflow[0], not_run, extras, workflow[1])
    if calls:
        return Calls(calls, final, extras)
    if final is not None:
        checks_close = checks_close and rules.on_prose != "accept" and rules.answers >= CHECKED_CLOSE
        # a final at the end of a response may continue after its first closing tag
        is_end = final is response.blocks[-1] and response.incomplete is None and not response.cut
        is_stray = checks_close and is_end and text_with_stray_close(response.content) is not None
        return Correction("stray", extras) if is_stray else Answer(final.content.strip(ASCII_SPACE), final, extras)
    if is_answer is not None and not response.blocks and response.incomplete is None and is_answer(response.content):
        return Answer(response.content, None, extras, cut=response.cut)
    return _without_a_request(response, extras, rules, can_call, corrects_prose, was_corrected)


def _without_a_request(
    response: ParsedResponse, extras: Extras, rules: Rules, can_call: bool, corrects_prose: bool, was_corrected: bool
) -> Calls | Answer | Correction:
    """Decides on a response with nothing to run and no complete final."""
    if extras.uncertain and can_call:
        return Correction("uncertain", extras)
    incomplete = response.incomplete
    if incomplete is not None and incomplete.type == "final" and response.cut:
        return Answer(incomplete.content.strip(ASCII_SPACE), incomplete, extras, cut=response.cut)
    if incomplete is not None and (can_call or incomplete.type not in (*INFORMATIONAL, *FORGED)):
        return Correction("incomplete", extras)
    if response.blocks and (can_call or (rules.answers > 1 and not was_corrected and _is_only_a_draft(response))):
        return Correction("informational", extras, list(dict.fromkeys(block.type for block in response.blocks)))
    if response.answer.ends_turn and not response.blocks and response.content.strip(ASCII_SPACE):
        return Answer(response.content, None, extras, cut=response.cut)
    if can_call and not response.blocks:
        from kernai.blocks.dialects import recognise  # most responses have blocks

        found = recognise(response.content)
        if found is not None:
            if rules.dialects == "run" and found.blocks:
                return _translated(found)
            return Correction("dialect", extras, calls=found)
    is_over = rules.on_prose == "correct_once" and (was_corrected or response.cut)
    corrects_prose = corrects_prose and rules.on_prose != "accept" and not is_over
    if (corrects_prose or response.is_unfinished) and can_call:
        return Correction("stall", extras)
    return Answer(response.content, None, extras, cut=response.cut)


def _is_only_a_draft(response: ParsedResponse) -> bool:
    """Whether a response has nothing but plans and drafts, apart from white space."""
    if response.incomplete is not None or any(block.type not in INFORMATIONAL for block in response.blocks):
        return False
    return not parse(response.content).text_segments


def _translated(found: DialectCalls) -> Calls | Answer:
    """Decides on calls in a dialect, which has only commands and a final."""
    calls = [block for block in found.blocks if block.type == "command"]
    final = next((block for block in found.blocks if block.type == "final"), None)
    if final is not None and not calls:
        return Answer(final.content.strip(ASCII_SPACE), final, NOTHING, dialect=found.dialect)
    return Calls(calls, final, NOTHING, found.dialect)
