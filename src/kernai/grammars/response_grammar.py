"""The grammar of a whole response: a final, or correct calls of the available skills and protocols."""

from __future__ import annotations

from collections.abc import Iterable

from kernai.blocks.block import Block
from kernai.errors import SkillInputError
from kernai.grammars.gbnf import ROOT, Rules, literal, one_of, optional, repeated
from kernai.grammars.json_grammar import JsonGrammar, bounds
from kernai.inputs.answer_type import AnswerType
from kernai.inputs.schema import Schema
from kernai.registry.protocol_registry import Protocol
from kernai.registry.skill_definition import Skill

MOST_CALLS = 8
"""In one response: small models repeat themselves, and without a bound some never stop."""

# Text that is not blank, contains no tag (no tag begins like what follows a "<") and does not begin like JSON, in which
# tags would not count; or else a JSON document
_DOCUMENT = {"anyOf": [{"type": "object"}, {"type": "array"}]}
_TEXT_START = r"[^<{\[\x00-\x20]"
_TEXT = r'([^<] | "<" [^<a-zA-Z/])*'
_TEXT_END = r"[^<\x00-\x20]"  # white space around an answer does not count


def response_grammar(
    skills: Iterable[Skill],
    protocols: Iterable[Protocol],
    builtins: Iterable[str] = (),
    answer_type: AnswerType | None = None,
) -> str:
    """GBNF of one `final`, or of one to eight blocks that call `skills`, `protocols` or built-in commands.

    Parameters are one JSON object. A skill whose name must be escaped in a tag is left out, since nobody could call it.
    If there is nothing to call, only a final is allowed. It contains a value of the `answer_type`, or text. Text of
    bounded length has no "<".
    """
    rules = Rules()
    rules.reserve(ROOT)
    text = rules.add("text", f"{JsonGrammar(rules, _DOCUMENT).root('document')} | {_TEXT_START} {_TEXT}")
    calls = [_around(Block("command", name), "") for name in builtins]
    for skill in skills:
        block = Block("command", skill.name)
        if f'name="{skill.name}"' in str(block):
            calls.append(rules.add(f"call-{skill.name}", _around(block, _parameters(rules, skill))))
    for protocol in protocols:
        block = Block(protocol.name)
        if f'type="{protocol.name}"' in str(block):
            calls.append(rules.add(f"request-{protocol.name}", _around(block, text)))
    # as a JSON string a free text could contain a tag that ends the block
    answer = text
    if answer_type is not None and answer_type.is_text:
        answer = _bounded_text(answer_type.schema()) or text
    elif answer_type is not None and not answer_type.takes_any_text:
        answer = JsonGrammar(rules, answer_type.schema()).root("answer")
    final = rules.add("final", _around(Block("final"), answer))
    if calls:
        call = rules.add("call", one_of(calls))
        final = rf'{final} | {call} ("\n"? {call}){{0,{MOST_CALLS - 1}}}'
    rules.fill(ROOT, final)
    return rules.text()


def _parameters(rules: Rules, skill: Skill) -> str:
    schema = skill.schema()
    value = JsonGrammar(rules, schema).root(skill.name)
    if schema.get("required"):
        return value
    try:
        skill.bind(skill.read(""))
    except SkillInputError:
        return value
    return optional(value)


def _bounded_text(schema: Schema) -> str:
    """Text of the length that a schema requires; "" if it requires none."""
    least, most = bounds(schema, "Length")
    if most is None and least <= 1:
        return ""
    if most is not None and most <= 1:  # no answer is empty, whatever its type allows
        return _TEXT_START
    between = None if most is None else most - 2
    rest = _TEXT_END if between == 0 else f"{repeated('[^<]', max(0, least - 2), between)} {_TEXT_END}"
    return f"{_TEXT_START} {rest if least > 1 else optional(rest)}"


def _around(block: Block, content: str) -> str:
    opening, close = str(block).split("></")
    return " ".join(filter(None, [literal(opening + ">"), content, literal("</" + close)]))
