"""A grammar compiled from skills accepts valid calls and nothing else."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import random
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pydantic
import pytest
from annotated_types import Ge, Gt, Le, Lt, MaxLen

import kernai
from kernai import Agent, Block, Input, Media, MockProvider, Model, Protocol, Skill, execute, isolated, parse, skills
from kernai.grammars.gbnf import Rules, decimals, integers
from kernai.grammars.response_grammar import JsonGrammar
from kernai.inputs.answer_type import AnswerType
from kernai.middleware import fallback
from tests.grammars.gbnf_reader import Grammar
from tests.properties import assert_linear

#: how many random agents are tried; for a thorough test, set `KERNAI_SAMPLES=10000`
SAMPLES = int(os.environ.get("KERNAI_SAMPLES", "60"))


class Colour(enum.Enum):
    RED = "red"
    TWO = 2
    TAG = "</block>"


class Contact(TypedDict):
    mail: str
    phone: NotRequired[str]


@dataclasses.dataclass
class Tree:
    label: str
    children: list[Tree] = dataclasses.field(default_factory=list)
    mark: Colour = Colour.RED


@dataclasses.dataclass
class Root:
    label: str


class Item(pydantic.BaseModel):
    name: str = pydantic.Field(min_length=2, max_length=5)
    count: int = pydantic.Field(ge=-17, lt=250)
    price: float = pydantic.Field(gt=0, le=9.5)
    tags: list[str] = pydantic.Field(default=["a<b"], min_length=1, max_length=3)
    made: datetime = datetime.fromisoformat("2024-02-29T01:02:03")
    inner: Item | None = None


class Meeting(pydantic.BaseModel):
    at: pydantic.AwareDatetime


PLAIN: list[Any] = [
    str, int, float, bool, None, date, datetime, time, Decimal, UUID, list, dict, Any, Colour, Contact, Tree, Item,
    Literal["a", 'say "hi" \\', "<b>", 3, True, None], tuple[()], tuple[int, str],
]  # fmt: skip
DEFAULTS: dict[Any, list[Any]] = {
    str: ["", "it's </block>", "\n\x00é\u2028"], int: [0, -5, 10**30], float: [1e300, -0.5, 5e-324], bool: [True],
    date: [date(2024, 2, 29)], Colour: [Colour.TAG], list: [[], [1, {"a": None}]], Decimal: [Decimal("1E+3")],
}  # fmt: skip


def some_type(chance: random.Random, depth: int = 2) -> Any:
    kind = chance.choice(["plain", "plain", "list", "dict", "union", "tuple"] if depth else ["plain"])
    if kind == "plain":
        return chance.choice(PLAIN)
    inside = [some_type(chance, depth - 1) for _ in range(2)]
    made: dict[str, Any] = {
        "list": list[inside[0]], "dict": dict[str, inside[0]], "tuple": tuple[inside[0], inside[1]],  # type: ignore[valid-type]
    }  # fmt: skip
    return made.get(kind) or Annotated[inside[0] | inside[1] if all(inside) else inside[0], "described"]


def some_skill(chance: random.Random, name: str) -> Skill:
    inputs = {}
    for key in chance.sample(["query", "a b", 'say "x"', "</block>", "limit", "é", "type"], chance.randint(0, 4)):
        kind = some_type(chance)
        default = {"default": chance.choice(DEFAULTS.get(kind, [None]) if kind.__hash__ else [None])} if chance.random() < 0.4 else {}
        inputs[key] = Input(kind, **default)
    return Skill(name, execute=lambda **given: "done", inputs=inputs)


def some_agent(seed: int) -> Agent:
    chance = random.Random(seed)
    some = [some_skill(chance, name) for name in ("search", "a skill's", "Umlaut-ü")[: chance.randint(0, 3)]]
    protocols = [Protocol(name, lambda block, ctx: "") for name in ("mcp", "sql 2")[: chance.randint(0, 2)]]
    return Agent(instructions="", skills=some or None, protocols=protocols, list_skills=chance.random() < 0.5)


def skills_of(agent: Agent) -> dict[str, Skill]:
    return {one.name: one for one in agent.skills or () if isinstance(one, Skill)}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_grammar_accepts_usage_lines_and_nothing_but_answers_and_valid_calls(part: int) -> None:
    for seed in range(part, SAMPLES, 4):
        agent = some_agent(seed)
        grammar = Grammar(agent.grammar())
        for number in range(3):
            text = grammar.sample(random.Random(seed * 10 + number))
            check_response(agent, text)
            if len(text) < 300:
                assert grammar.accepts(text), (seed, text)
        for one in skills_of(agent).values():
            (shown,) = parse(one.usage()).blocks
            try:
                one.bind(one.read(shown.content))
            except kernai.SkillInputError:
                continue  # the usage line of a model class with its own bounds may be invalid
            assert grammar.accepts(one.usage()), (seed, one.usage())
            assert one.usage() in one.describe()


def check_response(agent: Agent, text: str) -> None:
    found = parse(text)
    assert (found.text_segments, found.incomplete, found.certain) == ([], None, None), text
    assert found.blocks
    known = skills_of(agent)
    for block in found.blocks:
        if block.type == "final":
            assert len(found.blocks) == 1
            assert block.content.strip(" \t\n\r\f\v")
        elif block.type == "command" and block.name in known:
            params = known[block.name].read(block.content)
            if isinstance(getattr(params, "refused", ""), str) and "twice" in getattr(params, "refused", ""):
                continue  # free keys, which a grammar cannot count
            known[block.name].bind(params)
        else:
            assert block.name in ("/skills", "/protocols") or block.type in ("mcp", "sql 2"), text


def grammar_of(inputs: dict[str, Any]) -> Grammar:
    return Grammar(Agent(instructions="", skills=[Skill("go", execute=lambda **given: "", inputs=inputs)], protocols=[]).grammar())


def go(content: str) -> str:
    return str(Block("command", "go", content))


def final(content: str) -> str:
    return str(Block("final", None, content))


TEXTS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({}, ["", "{}"], ["x", " ", '{"a": 1}']),
    ({"a": str}, ['{"a": "x"}', '{"a":"</block>"}', '{"a": "\\u00e9\\n"}'], ["", "{}", "x", '{"a": 1}', '{"a": "\n"}', '{"a": "\\ud800"}', '{"a": "x"} ', '{"b": "x"}', '{"a": "x", "a": "x"}']),
    ({"a": int}, ['{"a": -12}', '{"a": 0}'], ['{"a": 01}', '{"a": 1.0}', '{"a": "1"}', '{"a": true}']),
    ({"a": Annotated[int, Ge(0)]}, [f'{{"a": {10**18 - 1}}}'], [f'{{"a": {10**18}}}', '{"a": -1}']),
    ({"a": float}, ['{"a": 1}', '{"a": -1.5e10}'], ['{"a": 1.}', '{"a": NaN}', '{"a": 9e999}', '{"a": .5}']),
    ({"a": Input(int, default=1), "b": Input(int, default=2)}, ["", "{}", '{"a": 1}', '{"b": 1}', '{"a": 1, "b": 2}'], ['{"b": 2, "a": 1}', '{, "b": 2}', '{"a": 1,}']),
    ({"a": Input(int, default=1), "b": int}, ['{"b": 1}', '{"a": 1, "b": 2}'], ["", "{}", '{"a": 1}']),
    ({"a": Literal["x", 2]}, ['{"a": "x"}', '{"a": 2}'], ['{"a": "y"}', '{"a": "2"}']),
    ({"a": list[int]}, ['{"a": []}', '{"a": [1, 2,3]}'], ['{"a": [1,]}', '{"a": ["1"]}', '{"a": 1}']),
    ({"a": dict[str, int]}, ['{"a": {}}', '{"a": {"k": 1, "l": 2}}'], ['{"a": {"k": "1"}}', '{"a": []}']),
    ({"a": Annotated[dict[str, int], MaxLen(0)]}, ['{"a": {}}'], ['{"a": {"k": 1}}', '{"a": }']),
    ({"a": Annotated[list[int], MaxLen(0)]}, ['{"a": []}'], ['{"a": [1]}']),
    ({"a": date}, ['{"a": "2024-01-31"}'], ['{"a": "2024-02-30"}', '{"a": "today"}', '{"a": "0000-01-01"}']),
    ({"a": time}, ['{"a": "12:00:00"}', '{"a": "12:00:00Z"}', '{"a": "12:00:00-03:30"}'], ['{"a": "12:00:00+24:00"}', '{"a": "12:00:00z"}', '{"a": "12:00:00 CET"}']),
    ({"a": datetime}, ['{"a": "2024-01-31T12:00:00"}'], ['{"a": "2024-01-31"}', '{"a": "2024-01-31Z"}', '{"a": "2024-01-31T12:00:00+1:00"}']),
    ({"a": Meeting}, ['{"a": {"at": "2024-01-31T12:00:00Z"}}', '{"a": {"at": "2024-01-31T12:00:00+01:00"}}'], ['{"a": {"at": "2024-01-31"}}']),
    ({"a": Media}, ['{"a": "media_0a1b2c3d4e5f"}'], ['{"a": "/etc/passwd"}']),
    ({"a": int | None}, ['{"a": null}', '{"a": 3}'], ['{"a": "x"}']),
    ({"a": Tree}, ['{"a": {"label": "x"}}', '{"a": {"label": "x", "children": [{"label": "y"}], "mark": 2}}'], ['{"a": {}}', '{"a": {"label": "x", "mark": 3}}']),
    ({"a": Root}, ['{"a": {"label": "x"}}'], ['{"a": {}}']),
    ({"a": Any}, ['{"a": [{"b": [null, 1.5, "x"]}, true]}'], ['{"a": undefined}']),
]


@pytest.mark.parametrize("inputs, right, wrong", TEXTS, ids=lambda row: str(row)[:40])
def test_a_call_is_its_tags_around_a_value_that_is_valid_for_its_schema(inputs: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    grammar = grammar_of(inputs)
    assert [content for content in (*right, *wrong) if grammar.accepts(go(content))] == right


INTEGER: dict[str, Any] = {"type": "integer"}
#: schemas as model classes and servers have them, JSON that is valid for each, and JSON that is not
SCHEMAS: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"anyOf": [{"type": "string", "pattern": "^odd$"}, INTEGER]}, ["1"], ['"odd"']),
    ({"anyOf": [{"type": "string", "pattern": "^odd$"}]}, ['"x"'], ["1"]),
    ({"allOf": [INTEGER, {"minimum": 5}], "maximum": 9}, ["5", "9"], ["4", "10"]),
    ({"type": ["integer", "null"]}, ["1", "null"], ['"x"']),
    ({"properties": {"a": INTEGER}, "required": ["a"]}, ['{"a": 1}'], ["{}", "[]", "1"]),
    ({"properties": {"a": INTEGER, "b": INTEGER}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a": 1}', '{"b": 1}'], ["{}", "1"]),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a": 1}']),
    ({"type": "object", "additionalProperties": True}, ["{}", '{"a": [1]}'], ["[]"]),
    ({**INTEGER, "exclusiveMinimum": 3, "exclusiveMaximum": 6}, ["4", "5"], ["2", "3", "6", "7"]),
    ({**INTEGER, "minimum": 2.5, "maximum": 4.5}, ["3", "4"], ["2", "5"]),
    ({**INTEGER, "minimum": 3, "exclusiveMinimum": True, "maximum": 5}, ["4", "5"], ["3", "6"]),
    ({"type": "boolean", "enum": []}, ["true"], ["1"]),  # the check of the call refuses it
    ({"type": "array", "items": INTEGER, "minItems": 2.0, "maxItems": 3.0}, ["[1, 2]", "[1, 2, 3]"], ["[]", "[1]", "[1, 2, 3, 4]"]),
    ({"type": "array", "items": INTEGER, "minItems": 1}, ["[1]", "[1, 2]"], ["[]"]),
    ({"type": "array", "items": INTEGER, "maxItems": 2}, ["[]", "[1]", "[1, 2]"], ["[1, 2, 3]"]),
    ({"type": "object", "minProperties": 1, "maxProperties": 1}, ['{"a": 1}'], ["{}", '{"a": 1, "b": 2}']),
]


@pytest.mark.parametrize("schema, right, wrong", SCHEMAS, ids=str)
def test_the_grammar_of_a_schema_accepts_only_valid_json(schema: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    rules = Rules()
    grammar = Grammar(rules.text(JsonGrammar(rules).rule(schema, "it")))
    assert [text for text in (*right, *wrong) if grammar.accepts(text)] == right


@pytest.mark.parametrize("accepted, texts", [
    (True, [final("It is 2 < 3, <3 and a & b."), final('{"a": "</block>"}'), go("") + "\n" + go(""), go("") * 8]),
    (False, [
        final(""), final(" "), final('{"a": "'), final("a") + final("b"), final('a <block type="command" name="go">'), "It is 42.",
        go("") + " " + go(""), go("") * 9, go("") + final("b"),
        *(str(Block("command", name)) for name in ("/skills", "/tasks", "other")),
    ]),
])
def test_a_response_is_an_answer_or_some_calls(accepted: bool, texts: list[str]) -> None:
    assert [text for text in texts if grammar_of({}).accepts(text) is not accepted] == []


@pytest.mark.parametrize("bounds, right, wrong", [
    ({"max_length": 5}, ["a", "ab", "it is", "2 + 2"], ["", " ", "it is 4", "2 < 3", "it is ", " it is"]),
    ({"max_length": 0}, [], ["", "ab"]),
    ({"max_length": 1}, ["a"], ["", "ab", "<"]),
    ({"max_length": 2}, ["a", "ab"], ["", "abc"]),
    ({"min_length": 1}, ["a", "It is 2 < 3."], [""]),
    ({"min_length": 2}, ["ab"], ["", "a"]),
    ({"min_length": 3}, ["abc", "it is 42"], ["ab", "a  ", "</block>"]),
    ({"min_length": 2, "max_length": 3}, ["ab", "a b"], ["a", "a ", "abcd"]),
    ({"max_length": 1000}, ["It is 5."], ["It is 2 < 3."]),
    ({"max_length": 1001}, ["It is 2 < 3."], [""]),
])
def test_an_answer_of_bounded_length_is_within_its_bounds(bounds: dict[str, int], right: list[str], wrong: list[str]) -> None:
    output = Annotated[str, pydantic.Field(**bounds)]
    grammar = Grammar(Agent(instructions="", skills=None, protocols=[], output=output).grammar())
    assert [text for text in (*right, *wrong) if grammar.accepts(final(text))] == right
    for text in right:
        assert AnswerType(output).read(parse(final(text)).blocks[0].content)


def test_the_grammar_has_the_skills_that_the_agent_may_call_with_its_model() -> None:
    seeing = Skill("look", execute=lambda: "", requires="vision", inputs={})
    agent = Agent(instructions="", skills=[seeing], protocols=[Protocol("sql", lambda block, ctx: "")])
    look, ask = str(Block("command", "look")), '<block type="sql">select 1</block>'
    assert [Grammar(agent.grammar()).accepts(text) for text in (look, ask)] == [False, True]
    with_vision = agent.replace(model=Model("eyes", ("text", "vision")), protocols=[])
    assert [Grammar(with_vision.grammar()).accepts(text) for text in (look, ask)] == [True, False]
    assert Grammar(with_vision.replace(list_skills=False).grammar()).accepts(str(Block("command", "/skills")))
    assert not Grammar(agent.replace(skills=None, protocols=[]).grammar()).accepts(str(Block("command", "/skills")))


def test_rules_are_named_after_their_skills() -> None:
    inputs: dict[str, dict[str, Any]] = {"a b": {}, "a-b": {}, "A B": {}, "é": {"é": str}}
    some = [Skill(name, execute=lambda **given: "", inputs=one) for name, one in inputs.items()]
    names = [line.partition(" ::= ")[0] for line in Agent(instructions="", skills=some, protocols=[]).grammar().splitlines()]
    assert names[:8] == ["root", "final", "call-2", "text", "call-a-b", "call-a-b-2", "call-a-b-3", "call"]
    assert "rule" in names


def test_a_grammar_is_written_in_time_linear_in_its_rules() -> None:
    def write(size: int) -> None:
        rules = Rules()
        for number in range(1, size // 4):
            rules.fill(rules.reserve(f"r{number}"), f"r{number + 1}")
        rules.fill(rules.reserve(f"r{size // 4}"), '"x"')
        assert rules.text("r1").count("\n") == size // 4 + 1

    assert_linear(write)


def test_a_grammar_is_compiled_again_when_a_skill_is_added() -> None:
    with isolated():
        agent = Agent(instructions="", skills="all", protocols=[])
        before = agent.grammar()
        assert agent.grammar() is before
        skills.register(Skill("go", execute=lambda: "", inputs={}))
        assert Grammar(agent.grammar()).accepts(go(""))


@pytest.mark.parametrize("least, most", [(0, 0), (0, 9), (3, 7), (0, 10), (7, 123), (100, 199), (99, 1001), (-5, 5), (-120, -7), (-1, 0), (1, 255), (19, 20)])
def test_a_range_of_integers_accepts_only_integers_within_it(least: int, most: int) -> None:
    grammar = Grammar(f"root ::= {integers(least, most)}\n")
    near = {*range(-130, 260), *range(990, 1010)}
    assert {number for number in near if grammar.accepts(str(number))} == near & {*range(least, most + 1)}
    assert not any(grammar.accepts(text) for text in ("", "00", "007", "-", "-0", "+1", " 1"))


@pytest.mark.parametrize("least, most", [
    (0, 0), (0, 1), (0, 2), (0, 12), (-1, 0), (-1, 1), (-3, -2), ("0", "0.1"), ("0.02", "0.98"), ("0.25", "0.75"), ("0.5", "0.5"),
    ("-0.5", "0.05"), ("-2.5", "-2.45"), ("1.05", "3"), ("0.099", "10.001"), ("7.3", "8"), ("0.1", "0.101"), ("9.99", "10"),
])  # fmt: skip
def test_a_range_of_decimals_accepts_only_decimals_within_it(least: str, most: str) -> None:
    low, high = Decimal(least), Decimal(most)
    steps = (Decimal(step).scaleb(-places) for step in range(-21, 22) for places in range(4))
    near = {f"{(edge + step).normalize():f}" for step in steps for edge in (low, high, (low + high) / 2)}
    for above, below in itertools.product([False, True], repeat=2):
        if low == high and (above or below):
            continue
        grammar = Grammar(f"root ::= {decimals(low, high, above=above, below=below)}\n")
        for text in near:
            outside = [*([low] * above), *([high] * below)]
            assert grammar.accepts(text) == (low <= Decimal(text) <= high and Decimal(text) not in outside), text
        assert not grammar.accepts("-0")


def test_if_no_number_is_within_the_bounds_the_grammar_accepts_one_above_the_lower_bound() -> None:
    grammar = Grammar(f"root ::= {decimals(Decimal('0.5'), Decimal('0.5'), above=True, below=False)}\n")
    assert [text for text in ("0", "0.5", "0.51", "1", "2") if grammar.accepts(text)] == ["1"]


@pytest.mark.parametrize("bounds, right, wrong", [
    ([Gt(0), Lt(1)], ["0.5", "0.001", "0.99"], ["0", "1", "0.0", "1.0", "-0.5", ".5"]),
    ([Ge(-90), Le(90)], ["-33.87", "90", "-90.0", "0", "0.25", "-0.5"], ["90.1", "-91", "090"]),
    ([Le(-2.5)], ["-2.5", "-3", "-10.75"], ["-2.4", "0", "2.5"]),
    ([Ge(0.25), Le(0.75)], ["0.25", "0.5", "0.75", "0.6"], ["0.2", "0.76", "0", "1"]),
    ([Gt(0)], ["19.99", "0.01", "3.14159265"], ["0", "0.00", "-1"]),
    ([Ge(5), Ge(7)], ["7", "8.5"], ["5", "6.9"]),
    # as many digits as a float distinguishes
    ([Ge(0), Le(2)], [f"0.{'1' * 12}", f"1.{'1' * 13}"], [f"0.{'1' * 13}", f"1.{'1' * 14}"]),
    ([Ge(0.25), Le(0.75)], [f"0.3{'1' * 12}"], [f"0.3{'1' * 13}"]), ([Ge(1), Le(1000)], [f"5.{'1' * 10}"], [f"5.{'1' * 11}"]),
    ([Ge(12345678.000001), Le(12345678.9)], ["12345678.0000011"], ["12345678.00000111"]),
    ([Ge(1), Le(10**15)], ["5.1"], ["5.12"]), ([Ge(1), Le(10**15 + 1)], [f"5.{'1' * 17}"], [f"5.{'1' * 18}"]),
])  # fmt: skip
def test_a_number_with_bounds_accepts_every_number_within_them_and_no_other(bounds: list[Any], right: list[str], wrong: list[str]) -> None:
    grammar = Grammar(Agent(instructions="", output=Annotated[float, *bounds]).grammar())
    assert [text for text in (*right, *wrong) if grammar.accepts(final(text))] == right


def test_a_grammar_accepts_no_number_outside_its_bounds() -> None:
    chance = random.Random(5)
    for _ in range(SAMPLES):
        least = chance.choice([0, -0.001, 99.99, chance.randint(-2000, 2000) / chance.choice([1, 2, 10, 100])])
        most = least + chance.choice([1, 0.25, 0.01, 90, 1e20])
        kind = Annotated[float, chance.choice([Ge, Gt])(least), chance.choice([Le, Lt])(most)]
        grammar = Grammar(Agent(instructions="", output=kind).grammar())
        for _ in range(3):
            AnswerType(kind).read(parse(grammar.sample(chance)).blocks[0].content)


# -------------------------------------------------------------------------------------- agents constrained by a grammar


class Server(MockProvider):
    grammar_field = "structured.grammar"


def sent_at(server: MockProvider, step: int) -> kernai.GenerationOptions:
    return server.calls[step].generation


def test_a_constrained_agent_sends_its_grammar_in_the_providers_field() -> None:
    one = Skill("go", execute=lambda: "", inputs={})
    agent = Agent(instructions="", skills=[one], constrain=True, generation={"temperature": 0.5, "extra": {"a": 1}})
    server = Server(go(""), "<final>done</final>")
    assert execute(agent, "Go.", provider=server).text == "done"
    grammar = {"a": 1, "structured": {"grammar": agent.grammar()}}
    for step in range(2):
        assert (sent_at(server, step).temperature, sent_at(server, step).extra) == (0.5, grammar)
    for field, extra in (None, {"a": 1}), ("b", {"a": 1, "b": agent.grammar()}):
        other = MockProvider("<final>done</final>")
        other.grammar_field = field
        assert execute(agent.replace(middleware=[fallback(other)]), "Go.", provider=Server().fail_on_step(0)).text == "done"
        assert sent_at(other, 0).extra == extra
    changed: dict[str, Any] = {"generation": {"extra": {"b": 2}}}  # a middleware may take the grammar away
    own: dict[str, Any] = {"structured": {"grammar": "root ::= x"}}
    for runs, provider, changes, left in (
        (agent, None, {}, grammar), (agent.replace(calls="native"), None, {}, {"a": 1}), (agent, Server(), changed, {"b": 2}),
        (agent.replace(calls="native"), None, {}, grammar),  # of a provider that does not call natively
        *((agent, its, {"generation": {"extra": own}}, own) for its in (None, Server())),
    ):
        chosen = Server("<final>done</final>")
        chosen.calls_natively = left != grammar
        choose = [lambda effect, to=chosen, more=changes: (yield effect.replace(provider=to, **more))]
        assert execute(runs.replace(middleware=choose), "Go.", provider=provider).steps == 1
        assert sent_at(chosen, 0).extra == left


def test_a_sub_agent_is_constrained_by_its_own_grammar() -> None:
    inner = Agent(instructions="inner", skills=None, protocols=[], constrain=True, name="inner")
    outer = Agent(instructions="", skills=[inner.as_skill("ask", "Asks.")], protocols=[])
    server = Server(str(Block("command", "ask", "x")), "<final>in</final>", "<final>out</final>")
    assert execute(outer, "Go.", provider=server).text == "out"
    assert sent_at(server, 0).extra == {}
    assert sent_at(server, 1).extra == {"structured": {"grammar": inner.grammar()}}


def test_a_provider_without_support_for_grammars_is_an_error_at_the_start() -> None:
    mock = MockProvider("<final>x</final>")
    with pytest.raises(ValueError, match=r"constrain=True\) needs a provider that accepts a grammar, and MockProvider .*local/"):
        execute(Agent(instructions="", constrain=True), "Go.", provider=mock)
    assert mock.call_count == 0
    with pytest.raises(TypeError, match="constrain must be True or False"):
        Agent(instructions="", constrain="yes")  # type: ignore[arg-type]
