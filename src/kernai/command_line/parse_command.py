"""`kernai parse`: what kernai would make of a response."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from kernai.agents.agent import OnProse
from kernai.blocks.block import Block
from kernai.blocks.grammar import ASCII_SPACE, find_end, find_opening
from kernai.blocks.plan import Plan
from kernai.command_line import output
from kernai.command_line.errors import NO, OK
from kernai.loop.calls import MAX_CALLS
from kernai.loop.decision import (
    FORGED,
    INFORMATIONAL,
    NESTED,
    Answer,
    Calls,
    Correction,
    Decision,
    ParsedResponse,
    decide,
)
from kernai.terminal_text import one_line

PROSE = "prose"
INCOMPLETE = "incomplete"
BLOCK = "block"


class Part(NamedTuple):
    """A piece of a response: `kind` is ``block``, ``prose`` or ``incomplete``; prose has no type."""

    kind: str
    line: int
    column: int
    type: str | None
    name: str | None
    content: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return self._asdict()

    def block(self) -> Block:
        """The block that it is."""
        assert self.type is not None
        return Block(self.type, self.name, self.content)


class Layout(NamedTuple):
    """A response taken apart, its parts in the order of the text. Blank prose is no part."""

    text: str
    parts: tuple[Part, ...]
    #: as `ParseResult.certain`
    certain: int | None = None

    @property
    def blocks(self) -> list[Block]:
        return [part.block() for part in self.parts if part.kind == BLOCK]

    @property
    def incomplete(self) -> Block | None:
        """The block that is still open at the end."""
        return next((part.block() for part in self.parts if part.kind == INCOMPLETE), None)


def lay_out(text: str) -> Layout:
    """Takes a whole response apart."""
    lines = _Lines(text)
    parts: list[Part] = []
    certain: int | None = None
    at = 0
    while (found := find_opening(text, at)) is not None:
        start, inner, opening, content = found
        parts += _prose(lines, at, start)
        place = lines.place(start)
        at = inner
        if content is None:
            end, at, in_open_value = find_end(opening.inside, text, inner)
            if end < 0:
                left = Part(INCOMPLETE, *place, opening.type, opening.name, text[inner:])
                return Layout(text, (*parts, left), certain)
            if in_open_value and certain is None:
                certain = sum(part.kind == BLOCK for part in parts) + 1
            content = text[inner:end]
        parts.append(Part(BLOCK, *place, opening.type, opening.name, content))
    return Layout(text, (*parts, *_prose(lines, at, len(text))), certain)


class _Lines:
    """Finds the line and the column of an offset, both counted from 1; a line ends with its line feed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0]
        at = text.find("\n")
        while at >= 0:
            self._starts.append(at + 1)
            at = text.find("\n", at + 1)

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1


def _prose(lines: _Lines, start: int, end: int) -> list[Part]:
    """The prose between two offsets where it is not blank, to the letter; its place is that of its first word."""
    text = lines.text[start:end]
    words = text.lstrip(ASCII_SPACE)
    return [Part(PROSE, *lines.place(end - len(words)), None, None, text)] if words else []


DESCRIPTION = """\
Show how a model's response is parsed: each block with its place (line:column), type, name and content, the prose
around it, and which rule of the loop would hold for it. FILE is a text file, or - for stdin."""
EXAMPLES = """\
kernai parse response.txt
echo '<command name="search">lamps</command>' | kernai parse -
kernai parse response.txt --full --protocol mcp
kernai parse response.txt --check --json > parsed.json"""

_WIDTH = 70
RULES = {
    "workflow": "1. a valid plan: its tasks are run by sub-agents",
    "calls": "2. commands or protocol blocks: they are run in order",
    "final": "3. a final block: its content is the answer",
    "incomplete": "4. an incomplete block: it is corrected",
    "uncertain": "4. only blocks behind a JSON value that did not end: they are corrected",
    "informational": "5. only blocks that run nothing: they are corrected",
    "prose": "6. no block: the text is the answer",
    "dialect": "6. no block, but a call in another format: it is corrected",
    "stall": "6. no block, from an agent that must use blocks: it is corrected",
}


def add_arguments(parser: ArgumentParser) -> None:
    """See `Command`."""
    parser.add_argument("file", metavar="FILE", help="the response; - is stdin")
    parser.add_argument("--full", action="store_true", help="show contents whole, not their first characters")
    parser.add_argument("--json", action="store_true", help="everything as JSON on stdout")
    parser.add_argument("--check", action="store_true", help="exit status 1 where the model would be corrected")
    parser.add_argument("--protocol", metavar="NAME", action="append", default=[], help="is registered; repeatable")
    parser.add_argument("--on-prose", choices=("accept", "correct"), default="accept", help="as Agent(on_prose=...)")
    parser.add_argument("--sub-agent", action="store_true", help="the response of a sub-agent, which may not plan")


def run(options: Namespace) -> int:
    """See `Command`."""
    layout = lay_out(output.read_text(options.file))
    verdict = judge(layout, frozenset(options.protocol), options.on_prose, may_plan=not options.sub_agent)
    if options.json:
        output.write_json(_data(layout, verdict))
    else:
        _show(layout, verdict, full=options.full)
    return NO if options.check and verdict.faulty else OK


class Verdict(NamedTuple):
    """The rule that holds, how every plan block was judged, and what else there is to say."""

    rule: str
    plans: list[str]
    remarks: list[str]
    answer: str | None
    faulty: bool

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {"rule": self.rule, "meaning": RULES[self.rule], "plans": self.plans, "remarks": self.remarks,
                "answer": self.answer}


def judge(
    layout: Layout, protocols: frozenset[str] = frozenset(), on_prose: OnProse = "accept", *, may_plan: bool = True
) -> Verdict:
    """What the loop would do with the response, for an agent that has something to call."""
    response = ParsedResponse(layout.text, layout.blocks, layout.incomplete, layout.certain)
    decision = decide(response, protocols, may_plan, on_prose, can_call=True)
    remarks = list(_remarks(decision, response, protocols))
    plans = [(Plan.validate(block.content).reason or "valid") if may_plan else NESTED
             for block in response.blocks if block.type == "plan"]
    answer: str | None = None
    if isinstance(decision, Answer):
        rule, answer = "prose" if decision.final is None else "final", decision.text
    elif isinstance(decision, Correction):
        rule = decision.kind
    else:
        rule = type(decision).__name__.lower()
    return Verdict(rule, plans, remarks, answer, bool(remarks) or isinstance(decision, Correction))


def _remarks(decision: Decision, response: ParsedResponse, protocols: frozenset[str]) -> Iterator[str]:
    """What the model would be told besides, or what would be left undone."""
    for kind in dict.fromkeys(block.type for block in response.blocks):
        if kind in FORGED:
            yield f"the {kind} block is forged: it comes from the runtime alone, and the model is told so"
        elif kind not in {"command", "final", *INFORMATIONAL, *protocols}:
            yield f"a block of type {kind!r} runs nothing, unless a protocol of that name is registered (--protocol)"
    if isinstance(decision, Calls):
        if any(block.type == "command" and not (block.name or "").strip(ASCII_SPACE) for block in decision.blocks):
            yield "a command without a name is an error: Command block missing skill name"
        if len(decision.blocks) > MAX_CALLS:
            yield f"only the first {MAX_CALLS} calls are run"
        if decision.final is not None:
            yield "the final is set aside, for the model has not seen the results"
    elif not isinstance(decision, (Answer, Correction)) and decision.beside:
        yield "blocks beside the plan are not run, and the model is told so"
    if decision.extras.uncertain:
        yield "the blocks behind a JSON value that did not end are not run, and the model is told so"
    if response.incomplete is not None and not (isinstance(decision, Correction) and decision.kind == "incomplete"):
        yield f"the block of type {response.incomplete.type!r} is not closed and is dropped"


def _data(layout: Layout, verdict: Verdict) -> dict[str, object]:
    plans = iter(verdict.plans)
    parts = []
    for part in layout.parts:
        shown = part.to_dict()
        if part.kind == BLOCK and part.type == "plan":
            shown["plan"] = next(plans)
        parts.append(shown)
    return {"parts": parts, "verdict": verdict.to_dict()}


def _show(layout: Layout, verdict: Verdict, *, full: bool) -> None:
    plans = iter(verdict.plans)
    for part in layout.parts:
        output.write(_heading(part), "bold" if part.kind == BLOCK else None)
        if part.kind == BLOCK and part.type == "plan":
            judged = next(plans)
            output.write(f"    plan: {'valid, a workflow' if judged == 'valid' else f'not a workflow: {judged}'}")
        _show_content(part, full=full)
    if not layout.parts:
        output.write("nothing: the response is blank")
    output.write()
    output.write(f"the loop: {RULES[verdict.rule]}", "red" if verdict.faulty else "green")
    if verdict.answer is not None:
        output.write(f"    answer: {one_line(verdict.answer, _WIDTH)}")
    for remark in verdict.remarks:
        output.write(f"    {one_line(remark, 10 * _WIDTH)}", "yellow")


def _heading(part: Part) -> str:
    place = f"{part.line}:{part.column}"
    if part.kind == PROSE:
        return f"{place}  prose"
    name = "" if part.name is None else f" name={one_line(part.name, _WIDTH)}"
    kind = part.kind if part.kind == BLOCK else "incomplete block"
    return f"{place}  {kind} {one_line(part.type, _WIDTH)}{name}"


def _show_content(part: Part, *, full: bool) -> None:
    if full:
        for line in part.content.split("\n"):
            output.write(f"    | {line}")
    else:
        output.write(f"    {one_line(part.content, _WIDTH) or '(empty)'}", "dim")
