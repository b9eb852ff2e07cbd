"""What the loop would do with a response: the rules of `kernai.loop.kernel`, told instead of followed.

It asks the loop's own definitions (`Plan.validate`, what is forged, how many calls one response may run); the tests
give the same responses to the loop itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.plan import Plan
from kernai.command_line.response_layout import Layout
from kernai.loop.calls import MAX_CALLS
from kernai.loop.kernel import FORGED

RULES = {
    "workflow": "1. a valid plan: its tasks are run by sub-agents",
    "calls": "2. commands or protocol blocks: they are run in order",
    "final": "3. a final block: its content is the answer",
    "incomplete": "4. an incomplete block: it is corrected",
    "informational": "5. only blocks that run nothing: they are corrected",
    "prose": "6. no block: the text is the answer",
    "stall": "6. no block, from an agent that must use blocks: it is corrected",
}
#: what ends in an error that the model has to mend
CORRECTED = frozenset({"incomplete", "informational", "stall"})
_CORE = frozenset({"command", "final", "plan", "json"}) | FORGED


class Reader(NamedTuple):
    """Whose response it is: the types of block its protocols have, what prose means, and whether it may plan."""

    protocols: frozenset[str] = frozenset()
    on_prose: str = "accept"
    may_plan: bool = True


class Verdict(NamedTuple):
    """The first rule that holds, how every plan block was judged, and what else there is to say."""

    rule: str
    plans: tuple[str, ...]
    remarks: tuple[str, ...]
    answer: str | None

    @property
    def faulty(self) -> bool:
        """Whether the model would be told to do better."""
        return self.rule in CORRECTED or bool(self.remarks)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"rule": self.rule, "meaning": RULES[self.rule], "plans": list(self.plans),
                "remarks": list(self.remarks), "answer": self.answer}


def judge(layout: Layout, reader: Reader) -> Verdict:
    """What would become of the response."""
    blocks = layout.blocks
    plans = [_plan(block, reader) for block in blocks if block.type == "plan"]
    calls = [block for block in blocks if block.type == "command" or block.type in reader.protocols]
    final = next((block for block in blocks if block.type == "final"), None)
    rule = _rule(layout, reader, calls=bool(calls), planned="valid" in plans, final=final is not None)
    answer: str | None = None
    if rule == "final" and final is not None:
        answer = final.content.strip(ASCII_SPACE)
    elif rule == "prose":
        answer = layout.text
    return Verdict(rule, tuple(plans), tuple(_remarks(layout, reader, rule, calls, final)), answer)


def _rule(layout: Layout, reader: Reader, *, calls: bool, planned: bool, final: bool) -> str:
    if planned:
        return "workflow"
    if calls:
        return "calls"
    if final:
        return "final"
    if layout.incomplete is not None:
        return "incomplete"
    if layout.blocks:
        return "informational"
    return "stall" if reader.on_prose == "correct" else "prose"


def _plan(block: Block, reader: Reader) -> str:
    """``valid``, or the reason why it is none."""
    return (Plan.validate(block.content).reason or "valid") if reader.may_plan else "nested"


def _remarks(
    layout: Layout, reader: Reader, rule: str, calls: list[Block], final: Block | None
) -> Iterator[str]:
    """What the model would be told besides, or what would be left undone."""
    for kind in dict.fromkeys(block.type for block in layout.blocks):
        if kind in FORGED:
            yield f"the {kind} block is forged: it comes from the runtime alone, and the model is told so"
        elif kind not in _CORE | reader.protocols:
            yield f"a block of type {kind!r} runs nothing, unless a protocol of that name is registered (--protocol)"
    if rule == "workflow" and (calls or final):
        yield "blocks beside the plan are not run, and the model is told so"
    if rule == "calls":
        nameless = [block for block in calls if block.type == "command" and not (block.name or "").strip(ASCII_SPACE)]
        if nameless:
            yield "a command without a name is an error: Command block missing skill name"
        if len(calls) > MAX_CALLS:
            yield f"only the first {MAX_CALLS} calls are run"
        if final is not None:
            yield "the final is set aside, for the model has not seen the results"
    if layout.incomplete is not None and rule != "incomplete":
        yield f"the block of type {layout.incomplete.type!r} is not closed and is dropped"
