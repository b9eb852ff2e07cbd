"""The grammar of a whole response: a final, or correct calls of the available skills and protocols.

`JsonGrammar` makes GBNF of a JSON Schema, for the JSON texts of the values that the schema describes. A grammar cannot
count keys and has no regular expressions, so it accepts less than the schema: the fields of a record must be in their
declared order, numbers have a bounded length, and of several types, those with a `pattern` that is unknown here are
left out. In other respects it accepts more, which the check of the call rejects: if the only type has an unknown
`pattern`, any text is accepted, and `uniqueItems` and duplicate free keys are not checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import reduce
from typing import Any

from kernai.blocks.block import Block
from kernai.grammars.gbnf import Rules, decimals, integers, literal, one_of, optional, repeated
from kernai.inputs.answer_type import AnswerType
from kernai.inputs.schema import Definition, Schema, alternatives, merged, resolved
from kernai.inputs.types import DECIMAL_PATTERN, MEDIA_PATTERN
from kernai.registry.protocol_registry import Protocol
from kernai.registry.skill_definition import Skill

MOST_CALLS = 8
"""The calls that one response may have: small models repeat themselves, and without a limit some never stop."""

# Free text: either a JSON document; or text that is not blank, contains no tags (what may follow a "<" begins none),
# and does not begin like JSON, in which tags would not count.
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

    Parameters are one JSON object. If there is nothing to call, only a final is allowed. It contains a value of the
    `answer_type`, or text. Text with a bounded length has no "<".
    """
    rules = Rules()
    json_grammar = JsonGrammar(rules)
    text = rules.add("text", f"{json_grammar.rule(_DOCUMENT, 'document')} | {_TEXT_START} {_TEXT}")
    calls = [_around(Block("command", name), "") for name in builtins]
    calls += [
        rules.add(f"call-{one.name}", _around(Block("command", one.name), _parameters(json_grammar, one)))
        for one in skills
    ]
    calls += [rules.add(f"request-{one.name}", _around(Block(one.name), text)) for one in protocols]
    # a free text is not written as a JSON string, in which a tag could end the block
    answer = text
    if answer_type is not None and answer_type.is_text:
        answer = _bounded_text(answer_type.whole) or text
    elif answer_type is not None and not answer_type.takes_any_text:
        answer = json_grammar.rule(answer_type.whole, "answer")
    final = rules.add("final", _around(Block("final"), answer))
    if calls:
        call = rules.add("call", one_of(calls))
        final = rf'{final} | {call} ("\n"? {call}){{0,{MOST_CALLS - 1}}}'
    return rules.text(final)


def _parameters(json_grammar: JsonGrammar, skill: Skill) -> str:
    schema = skill.table.whole
    value = json_grammar.rule(schema, skill.name)
    return value if schema.get("required") else optional(value)


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


# ------------------------------------------------------------------------------------------------ JSON Schema to GBNF

_SPACE = '" "?'
_COMMA = f'"," {_SPACE}'
_MOST_DIGITS = 18
_TOP = 10**_MOST_DIGITS - 1
_WIDEST, _FINEST = Decimal(_TOP), Decimal("0.000001")  # bounds on numbers are limited and rounded to these
_LONGEST_COUNTED = 1000  # characters or items: servers refuse more repetitions, so larger bounds are left out

_CHARACTER = (
    r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
)
_DATE = (
    r'[1-9] [0-9]{3} "-" (("01" | "03" | "05" | "07" | "08" | "10" | "12") "-" ("0" [1-9] | [12] [0-9] | "3" [01])'
    r' | ("04" | "06" | "09" | "11") "-" ("0" [1-9] | [12] [0-9] | "30") | "02-" ("0" [1-9] | "1" [0-9] | "2" [0-8]))'
)
_TIME = r'("0" [0-9] | "1" [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9]'
_ZONE = '("Z" | [+-] ("0" [0-9] | "1" [0-9] | "2" [0-3]) ":" [0-5] [0-9])?'
_HEX = "[0-9a-fA-F]"
#: the texts of a `format`, or of one of our own patterns
_TEXTS = {
    "date": _DATE,
    "time": f"{_TIME} {_ZONE}",
    "date-time": f'{_DATE} "T" {_TIME} {_ZONE}',
    "uuid": f'{_HEX}{{8}} "-" ({_HEX}{{4}} "-"){{3}} {_HEX}{{12}}',
    MEDIA_PATTERN: '"media_" [0-9a-f]{12}',
    DECIMAL_PATTERN: '"-"? [0-9]{1,18} ("." [0-9]{1,18})?',
}
# never infinite: an exponent of at most 299 follows at most 8 digits; small numbers may become 0
_NUMBER = (
    '"-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]{1,17})?'
    ' | "-"? ("0" | [1-9] [0-9]{0,7}) ("." [0-9]{1,17})? [eE] ("+"? ([0-9]{1,2} | [12] [0-9]{2}) | "-" [0-9]{1,3})'
)


_KINDS = ("string", "number", "boolean", "null", "object", "array")
_ANY = Definition("json", lambda: {"anyOf": [{"type": kind} for kind in _KINDS]})


class JsonGrammar:
    """Adds the rules for values of JSON Schemas, in the form of `kernai.inputs.schema`, to a grammar."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._named: dict[Definition, str] = {}

    def rule(self, schema: Any, name: str) -> str:
        """The expression for a value of the schema; its rules are named after `name`."""
        definition, found = resolved(schema)
        made = self._typed(found, name) if definition is None else self._reference(definition)
        return one_of([made, *([_json(found["default"])] if "default" in found else [])])

    def _typed(self, schema: Schema, name: str) -> str:
        if "const" in schema or schema.get("enum"):
            return one_of(_json(one) for one in schema.get("enum") or [schema["const"]])
        if "anyOf" in schema:
            members = alternatives(schema)  # without texts that have an unknown pattern, if there are others
            known = [one for one in members if not isinstance(one, dict) or one.get("pattern") in (None, *_TEXTS)]
            return one_of(self.rule(one, f"{name}-{at}") for at, one in enumerate(known or members))
        if "allOf" in schema:
            others = {key: one for key, one in schema.items() if key != "allOf"}
            return self.rule(reduce(merged, [*schema["allOf"], others]), name)
        kind = str(schema.get("type", "object" if "properties" in schema else ""))
        make = {"object": self._object, "array": self._array, "string": self._string, "integer": self._integer,
                "number": self._number}.get(kind)
        if make is not None:
            return make(schema, name)
        return {"boolean": '("true" | "false")', "null": '"null"'}.get(kind) or self._reference(_ANY)

    def _reference(self, definition: Definition) -> str:
        if definition not in self._named:
            self._named[definition] = name = self._rules.reserve(definition.name)
            self._rules.fill(name, self.rule({**definition.full()}, definition.name))
        return self._named[definition]

    def _object(self, schema: Schema, name: str) -> str:
        if "properties" not in schema and schema.get("additionalProperties") is not False:
            free = schema.get("additionalProperties", {})
            value = self.rule(free, name)
            pair = self._rules.add(f"{name}-pair", f'{self._string({}, "string")} ":" {_SPACE} {value}')
            return _sequence('"{"', _list_of(pair, schema, "Properties"), '"}"')
        return _sequence('"{"', self._fields(schema, name), '"}"')

    def _fields(self, schema: Schema, name: str) -> str:
        """The declared fields in order. Each has two rules for itself and those after it: with a comma, or first."""
        required = schema.get("required", ())
        rest = {True: "", False: ""}  # by whether another field comes before
        for key, one in reversed(schema.get("properties", {}).items()):
            pair = self._rules.add(f"{name}-{key}", f'{_json(key)} ":" {_SPACE} {self.rule(one, f"{name}-{key}")}')
            with_it = {before: _sequence(_COMMA if before else "", pair, rest[True]) for before in rest}
            if key not in required:
                with_it = {
                    before: one_of([with_it[before], rest[before]]) if rest[before] else optional(with_it[before])
                    for before in rest
                }
            rest = {before: self._rules.add(f"{name}-from-{key}", body) for before, body in with_it.items()}
        return rest[False]

    def _array(self, schema: Schema, name: str) -> str:
        if "prefixItems" in schema:
            items = [self.rule(one, f"{name}-{at}") for at, one in enumerate(schema["prefixItems"])]
            return f'("[" {f" {_COMMA} ".join(items)} "]")'
        item = self._rules.add(f"{name}-item", self.rule(schema.get("items", {}), name))
        return _sequence('"["', _list_of(item, schema, "Items"), '"]"')

    def _string(self, schema: Schema, name: str) -> str:
        text = _TEXTS.get(str(schema.get("pattern", schema.get("format"))))
        if text is not None:
            return self._rules.add(name, rf'"\"" ({text}) "\""')
        character = self._rules.add("character", _CHARACTER)
        least, most = bounds(schema, "Length")
        return self._rules.add("string", rf'"\"" {repeated(character, least, most)} "\""')

    def _integer(self, schema: Schema, name: str) -> str:
        (low, above), (high, below) = _edges(schema)
        least = math.floor(low) + 1 if above else math.ceil(low)
        most = max(least, math.ceil(high) - 1 if below else math.floor(high))
        if least == -most == -_TOP:
            return self._rules.add("integer", f'"-"? ("0" | [1-9] [0-9]{{0,{_MOST_DIGITS - 1}}})')
        return self._rules.add(name, integers(least, most))

    def _number(self, schema: Schema, name: str) -> str:
        if not any(key.lower().endswith(("minimum", "maximum")) for key in schema):
            return self._rules.add("number", _NUMBER)
        (low, above), (high, below) = _edges(schema)
        low, high = (min(max(one, -_WIDEST), _WIDEST) for one in (low, high))
        least, most = low.quantize(_FINEST, ROUND_CEILING), high.quantize(_FINEST, ROUND_FLOOR)
        body = decimals(least, most, above=above and least == low, below=below and most == high)
        return self._rules.add(name, body)


def _edges(schema: Schema) -> tuple[tuple[Decimal, bool], tuple[Decimal, bool]]:
    """The bounds of a number, and whether each is exclusive."""
    found = []
    for side, inside, narrower in (("Minimum", -_TOP, max), ("Maximum", _TOP, min)):
        given, exclusive = schema.get(side.lower()), schema.get(f"exclusive{side}")
        is_flag = isinstance(exclusive, bool)  # as in older drafts
        written = [(inside, False), (given, exclusive is True), (None if is_flag else exclusive, True)]
        edges = [(Decimal(str(one)), is_out) for one, is_out in written if one is not None]
        edge = narrower(one for one, _ in edges)
        found.append((edge, (edge, True) in edges))
    return found[0], found[1]


def bounds(schema: Schema, of: str) -> tuple[int, int | None]:
    """The length that a schema allows. The upper bound is None if there is none, or one that servers refuse."""
    least, most = schema.get(f"min{of}", 0), schema.get(f"max{of}")
    # JSON Schema takes 2.0 for an integer
    return int(min(least, _LONGEST_COUNTED)), None if most is None or most > _LONGEST_COUNTED else int(most)


def _list_of(item: str, schema: Schema, of: str) -> str:
    """Items with commas between them, as many as the schema allows."""
    least, most = bounds(schema, of)
    if most == 0:
        return ""
    more = repeated(f"{_COMMA} {item}", max(0, least - 1), None if most is None else most - 1)
    return f"{item} {more}" if least else f"({item} {more})?"


def _json(value: object) -> str:
    """The JSON text of a value, unchanged or with each `<` escaped, as in usage lines."""
    text = json.dumps(value, ensure_ascii=False)
    return one_of([literal(text), literal(text.replace("<", "\\u003c"))])


def _sequence(*expressions: str) -> str:
    parts: Sequence[str] = [one for one in expressions if one]
    return " ".join(parts) if len(parts) == 1 else f"({' '.join(parts)})"
