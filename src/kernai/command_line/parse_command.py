"""`kernai parse`: what a model's response consists of, and what the loop would do with it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from kernai.command_line import exit_codes, output
from kernai.command_line.response_layout import BLOCK, PROSE, Layout, Part, lay_out
from kernai.command_line.response_verdict import RULES, Reader, Verdict, judge
from kernai.values.terminal_text import one_line

DESCRIPTION = """\
Show how a model's response is parsed: each block with its place (line:column), type, name and content, the prose
around it, and which rule of the loop would hold for it. FILE is a text file, or - for stdin."""
EXAMPLES = """\
kernai parse response.txt
echo '<command name="search">lamps</command>' | kernai parse -
kernai parse response.txt --full --protocol mcp
kernai parse response.txt --check --json > parsed.json"""

_WIDTH = 70


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
    reader = Reader(frozenset(options.protocol), options.on_prose, not options.sub_agent)
    verdict = judge(layout, reader)
    if options.json:
        output.write_json(_data(layout, verdict))
    else:
        _show(layout, verdict, full=options.full)
    return exit_codes.NO if options.check and verdict.faulty else exit_codes.OK


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
