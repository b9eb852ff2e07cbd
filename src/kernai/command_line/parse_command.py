"""`kernai parse`: how a model's response is parsed, and what an agent would do with it."""

from __future__ import annotations

from argparse import Namespace
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_args

from kernai import Agent, LlmResponse, Plan
from kernai._util.redaction import one_line
from kernai.agents.agent import OnProse
from kernai.agents.definition import Rules
from kernai.blocks.grammar import ASCII_SPACE
from kernai.blocks.parser import parts_of
from kernai.command_line import output
from kernai.command_line.program import Command, argument
from kernai.loop import decision as loop
from kernai.loop.calls import MAX_CALLS_PER_RESPONSE
from kernai.loop.model_stream import ParsedResponse
from kernai.values.limits import MODEL_MAX_TASKS

#: numbered as in docs/block-protocol.md
RULES = {
    "workflow": "1. a valid plan: sub-agents run its tasks",
    "calls": "2. commands or protocol blocks: they are run in order",
    "final": "3. a final block: its content is the answer",
    "stray": "3. a final block that contains its own closing tag: it is corrected",
    "prose": "3. no block: the text is the answer",
    "incomplete": "4. an incomplete block: it is corrected",
    "uncertain": "4. only blocks after a JSON value that did not end: they are corrected",
    "informational": "4. only blocks that run nothing: they are corrected",
    "dialect": "4. no block, but a call in another format: it is corrected",
    "stall": "4. no block, from an agent that must use blocks: it is corrected",
}
_WIDTH = 70


def run(options: Namespace) -> int:
    text = output.read_text(options.file)
    verdict = judge(text, frozenset(options.protocol), options.on_prose, may_plan=not options.sub_agent)
    parts = lay_out(text, verdict.plans)
    if options.json:
        output.write_json({"parts": parts, "verdict": verdict._asdict() | {"meaning": RULES[verdict.rule]}})
    else:
        _show(parts, verdict, full=options.full)
    return output.NO if options.check and verdict.faulty else output.OK


def lay_out(text: str, plans: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the parts that the parser finds, in order, each with its position, and plans with the judgement on them.

    The `kind` is ``block``, ``prose`` or ``incomplete``; prose has no type. Blank prose is left out.
    """
    lines = [0, *(at + 1 for at, char in enumerate(text) if char == "\n")]
    parts: list[dict[str, Any]] = []
    judged = iter(plans)
    for start, content, block, is_closed in parts_of(text):
        begin = start if block is not None else start + len(content) - len(content.lstrip(ASCII_SPACE))
        line = bisect_right(lines, begin)
        kind = "prose" if block is None else "block" if is_closed else "incomplete"
        type, name = (None, None) if block is None else (block.type, block.name)
        place = {"line": line, "column": begin - lines[line - 1] + 1}
        parts.append({"kind": kind, **place, "type": type, "name": name, "content": content})
        if (kind, type) == ("block", "plan"):
            parts[-1]["plan"] = next(judged)
    return parts


class Verdict(NamedTuple):
    """What the loop would do: the rule that applies, a judgement on each plan block, and remarks on other effects."""

    rule: str
    plans: list[str]
    remarks: list[str]
    answer: str | None
    faulty: bool


def judge(
    text: str, protocols: frozenset[str] = frozenset(), on_prose: OnProse = "correct_once", *, may_plan: bool = True
) -> Verdict:
    """Returns what the loop would do with the response, for an agent that has skills or protocols to call."""
    response = ParsedResponse(LlmResponse(text))
    rules = Rules.of(Agent(instructions="", on_prose=on_prose))
    decision = loop.decide(response, rules, protocols, may_plan=may_plan, can_call=True)
    remarks = list(_remarks(decision, response, protocols))
    plans = [(Plan.validate(block.content, MODEL_MAX_TASKS).reason or "valid") if may_plan else loop.NESTED
             for block in response.blocks if block.type == "plan"]
    answer: str | None = None
    if isinstance(decision, loop.Answer):
        rule, answer = "prose" if decision.block is None else "final", decision.text
    elif isinstance(decision, loop.Correction):
        rule = decision.kind
    else:
        rule = type(decision).__name__.lower()
    return Verdict(rule, plans, remarks, answer, bool(remarks) or isinstance(decision, loop.Correction))


def _remarks(decision: loop.Decision, response: ParsedResponse, protocols: frozenset[str]) -> Iterator[str]:
    """Yields what else the model would read, and which blocks would not be run."""
    for kind in dict.fromkeys(block.type for block in response.blocks):
        if kind in loop.FORGED:
            yield f"the {kind} block is forged: only the runtime writes those, and the model is informed"
        elif kind not in {"command", "final", *loop.INFORMATIONAL, *protocols}:
            yield f"a block of type {kind!r} runs nothing, unless a protocol of that name is registered (--protocol)"
    if isinstance(decision, loop.Calls):
        if any(block.type == "command" and not (block.name or "").strip(ASCII_SPACE) for block in decision.blocks):
            yield "a command without a name is an error: Command block missing skill name"
        if len(decision.blocks) > MAX_CALLS_PER_RESPONSE:
            yield f"only the first {MAX_CALLS_PER_RESPONSE} calls are run"
        if decision.final is not None:
            yield "the final is set aside, because the model has not seen the results"
    elif not isinstance(decision, (loop.Answer, loop.Correction)) and decision.not_run:
        yield "blocks beside the plan are not run, and the model is informed"
    if decision.extras.uncertain:
        yield "the blocks after a JSON value that did not end are not run, and the model is informed"
    is_corrected = isinstance(decision, loop.Correction) and decision.kind == "incomplete"
    if response.incomplete is not None and not is_corrected:
        yield f"the block of type {response.incomplete.type!r} is not closed and is dropped"


def _show(parts: list[dict[str, Any]], verdict: Verdict, *, full: bool) -> None:
    for part in parts:
        kind = "incomplete block" if part["kind"] == "incomplete" else part["kind"]
        type_ = "" if part["type"] is None else f" {one_line(part['type'], _WIDTH)}"
        name = "" if part["name"] is None else f" name={one_line(part['name'], _WIDTH)}"
        output.write(f"{part['line']}:{part['column']}  {kind}{type_}{name}", "bold" if kind == "block" else None)
        if "plan" in part:
            judged = "valid, a workflow" if part["plan"] == "valid" else f"not a workflow: {part['plan']}"
            output.write(f"    plan: {judged}")
        if full:
            for line in part["content"].split("\n"):
                output.write(f"    | {line}")
        else:
            output.write(f"    {one_line(part['content'], _WIDTH) or '(empty)'}", "dim")
    if not parts:
        output.write("nothing: the response is blank")
    output.write()
    output.write(f"the loop: {RULES[verdict.rule]}", "red" if verdict.faulty else "green")
    if verdict.answer is not None:
        output.write(f"    answer: {one_line(verdict.answer, _WIDTH)}")
    for remark in verdict.remarks:
        output.write(f"    {one_line(remark, 10 * _WIDTH)}", "yellow")


COMMANDS = {"parse": Command(run, (
    argument("FILE", "the response; - is stdin"),
    argument("--full", "show the full content of each block"),
    argument("--json", "everything as JSON on stdout"),
    argument("--check", "exit with status 1 if the model would be corrected"),
    argument("--protocol NAME...", "treat NAME as a registered protocol; repeatable"),
    argument("--on-prose", "as Agent(on_prose=...)", choices=get_args(OnProse), default="correct_once"),
    argument("--sub-agent", "treat it as the response of a sub-agent, which may not plan"),
), """\
Show how a model's response is parsed: each block with its position (line:column), type, name and content, the prose
around it, and which rule of the loop applies. FILE is a text file, or - for stdin.""", """\
kernai parse response.txt
echo '<command name="search">lamps</command>' | kernai parse -
kernai parse response.txt --full --protocol mcp
kernai parse response.txt --check --json > parsed.json""")}
