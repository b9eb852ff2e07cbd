"""Calls in other formats are recognised, and never guessed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Block, parse
from kernai.blocks.dialects import DIALECTS, recognise
from tests.blocks.parser_cases import TEXTS
from tests.properties import assert_linear

ARGUMENTS = '{"query": "the \\"old\\" </tool_call> lamps", "limit": 3}'
OBJECT = f'{{"name": "search", "arguments": {ARGUMENTS}}}'
LLAMA = OBJECT.replace("arguments", "parameters")
SEARCH = ("search", json.loads(ARGUMENTS))
STOP: tuple[str, object] = ("stop", {})

RECOGNISED = [
    ("hermes", f"<tool_call>{OBJECT}</tool_call>", [SEARCH]),
    ("hermes", f"I will look.\n<tool_call>\n{OBJECT}\n</tool_call>\nWait.", [SEARCH]),
    ("hermes", f'<tool_call>{OBJECT}</tool_call><tool_call>{{"name": "stop", "arguments": {{}}}}</tool_call>', [SEARCH, STOP]),
    ("hermes", f'<tool_call>{{"name": "search", "arguments": {json.dumps(ARGUMENTS)}}}</tool_call>', [SEARCH]),
    ("hermes", f'<tool_call>{{"type": "function", "function": {OBJECT}}}</tool_call>', [SEARCH]),
    ("hermes", '<tool_call>{"name": "stop", "arguments": ""}</tool_call>', [STOP]),
    ("hermes", '<tool_call>{"name": "stop", "arguments": {"a": "' + "\\u00e9" * 300 + "x" * 9000 + '",}}', [("stop", {"a": "é" * 300 + "x" * 9000})]),
    ("function_tag", f"<function=search>\n{ARGUMENTS}\n</function><|eom_id|>", [SEARCH]),
    ("function_tag", "<tool_call>\n<function=search>\n<parameter=query>\na < b\n</parameter>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>", [("search", {"query": "a < b", "limit": 3})]),
    ("function_tag", "<function=stop></function>", [STOP]),
    ("function_tag", '<function=a><parameter=b>{"c": 1, "c": 2}</parameter></function>', [("a", {"b": '{"c": 1, "c": 2}'})]),
    *(
        ("function_tag", text.replace("ns:", prefix), [("search", {"query": "lamps", "limit": 3})])
        for prefix in ("", "antml:") for text in (
            '<ns:invoke name="search">\n<ns:parameter name="query">lamps</ns:parameter>\n<ns:parameter name="limit">3</ns:parameter>\n</ns:invoke>',
            "<function_calls><ns:invoke name='search'><ns:parameter name='query'>lamps</ns:parameter><ns:parameter name='limit'>3</ns:parameter></ns:invoke></function_calls>",
        )
    ),
    ("function_tag", '<invoke name="stop"></invoke>', [STOP]),
    ("json", f'{{"type": "tool_use", "id": "toolu_1", "name": "search", "input": {ARGUMENTS}}}', [SEARCH]),
    ("json", f'```json\n[{{"type": "tool_use", "name": "search", "input": {ARGUMENTS}}}]\n```', [SEARCH]),
    ("python_tag", f"<|python_tag|>{LLAMA}<|eom_id|>", [SEARCH]),
    ("python_tag", f'<|python_tag|>{LLAMA}; {{"name": "stop", "parameters": {{}}}}', [SEARCH, STOP]),
    ("mistral", f"[TOOL_CALLS] [{OBJECT}]", [SEARCH]),
    ("mistral", f'[TOOL_CALLS][{OBJECT}, {{"name": "stop", "arguments": {{}}}}]', [SEARCH, STOP]),
    ("mistral", f"[TOOL_CALLS] {OBJECT}", [SEARCH]), ("mistral", f"[TOOL_CALLS]{OBJECT}\n{OBJECT}</s>", [SEARCH, SEARCH]),
    ("mistral", f"[TOOL_CALLS]search[ARGS]{ARGUMENTS}", [SEARCH]),
    ("mistral", f"[TOOL_CALLS]search{ARGUMENTS}", [SEARCH]),
    ("json", f"```json\n{OBJECT}\n```", [SEARCH]), ("json", f"```json\n{OBJECT}\n```\n{OBJECT}", [SEARCH]),
    ("json", f"So:\n\n```\n{LLAMA}\n```\n", [SEARCH]),
    ("json", f"```JSON\n[{OBJECT}, {OBJECT}]\n```", [SEARCH, SEARCH]),
    ("json", f"\n{LLAMA}\n", [SEARCH]),
    ("json", f'{OBJECT}\n{{"name": "stop", "arguments": {{}}}}', [SEARCH, STOP]),
    ("json", f"{OBJECT}; {OBJECT};", [SEARCH, SEARCH]),
    ("json", f"```json\n{OBJECT}\n{OBJECT}\n```\nand\n```json\n{LLAMA}\n```", [SEARCH, SEARCH, SEARCH]),
    ("json", f"{OBJECT}<|im_end|>\n", [SEARCH]),
    ("hermes", f"<tool_call>{OBJECT}\n{OBJECT}</tool_call>", [SEARCH, SEARCH]), ("hermes", f"<tool_call>{OBJECT}, {OBJECT}</tool_call>", [SEARCH, SEARCH]),
    ("hermes", f"<tool_call>\n[{OBJECT}, {OBJECT}]\n</tool_call>", [SEARCH, SEARCH]),
    ("python_tag", f"<|python_tag|>[{LLAMA}]", [SEARCH]),
    ("mistral", f"[TOOL_CALLS]search[CALL_ID]a1B2c3D4e[ARGS]{ARGUMENTS}", [SEARCH]),
    ("json", '```json\n{"name": "write", "arguments": {"text": "Run:\\n```sh\\nmake\\n```\\n"}}\n```', [("write", {"text": "Run:\n```sh\nmake\n```\n"})]),
    ("json", f"```json\n[1, 2\n```\n```json\n{OBJECT}\n```", [SEARCH]),
    ("json", f'```json\n{{"a": "b\n```\nand lacked "}}. I call it:\n```json\n{OBJECT}\n```', [SEARCH]),
    ("hermes", f"<tool_call>{OBJECT}\n[end of turn]", [SEARCH]),
    ("python_tag", f"<|python_tag|>{LLAMA} [/INST]", [SEARCH]),
    ("near_tag", f'<block name="search">{ARGUMENTS}</block>', [SEARCH]),
    ("near_tag", '<block name="mutation_type.find">{}</block>', [("mutation_type.find", {})]),
    ("near_tag", f'<BLOCK TYPE="command" NAME="search">{ARGUMENTS}</BLOCK>', [SEARCH]),
    ("near_tag", f'<BLOCK TYPE="COMMAND" NAME="search">{ARGUMENTS}</BLOCK>', [SEARCH]),
    ("near_tag", f"<block type=command name=search>{ARGUMENTS}</block>", [SEARCH]),
    ("near_tag", f"<command name=search note='a b=c'>{ARGUMENTS}</command>", [SEARCH]),
    ("near_tag", '<command name="/skills"/>', [("/skills", None)]),
    ("near_tag", "Now: <command name=stock.list />", [("stock.list", None)]), ("near_tag", '<block name="a" x="b c" Y=\'3\' z=true/>', [("a", {"x": "b c", "Y": 3, "z": True})]), ("near_tag", '<command name="a" type="b"/>', [("a", {"type": "b"})]),
    ("near_tag", f"<block type=“command” name=”search”>{ARGUMENTS}</block>", [SEARCH]),
    ("near_tag", f"<command name=\u2018search\u2019>{ARGUMENTS}</command>", [SEARCH]),
]  # fmt: skip

NEAR_MISSES = [
    ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "lam'),
    ("hermes", '<tool_call>{"name": "search", "arguments": {"query": "a",,}}</tool_call>'),
    ("hermes", "<tool_call>{'name': 'search', 'arguments': {}</tool_call>"),
    ("hermes", '<tool_call>{"name": "search"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "search", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": " ", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"name": "search", "arguments": {"a": 1, "a": 2}}</tool_call>'),
    ("hermes", f'<tool_call>{OBJECT}</tool_call><tool_call>{{"name": "stop", "argum'),
    ("hermes", '<tool_call>{"a":' + "[" * 100_000),
    ("function_tag", '<function=search>{"query": "lam'),
    ("function_tag", "<function=search><parameter=a>1</parameter><parameter=a>2</parameter></function>"),
    ("function_tag", "<function=search><parameter=query>cut off"),
    ("function_tag", '<invoke name="search"><parameter name="query">cut off'),
    ("json", '{"type": "tool_use", "name": "search", "input": {}} {"type": "tool_use", "name": "search", "input": [1]}'),
    ("python_tag", '<|python_tag|>{"name": "search", "parameters": {'),
    ("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "lam'),
    ("mistral", "[TOOL_CALLS] [1]"),
    ("mistral", "[TOOL_CALLS]1[ARGS]x"),
    ("mistral", "[TOOL_CALLS]search[CALL_ID]a1B2c3D4e[ARGS]{"),
    ("hermes", f"<tool_call>[{OBJECT}, 1]</tool_call>"),
    ("mistral", "[TOOL_CALLS]null[ARGS]{"),
    ("mistral", "[TOOL_CALLS]true[ARGS]"),
    ("mistral", '[TOOL_CALLS]{"name": "search"}'),
    ("near_tag", '<block name="search">{"query": "lam'),
    ("json", f"{OBJECT} I call it."),
    ("json", f'{OBJECT} {{"name": "Ada"}}'),
    ("json", f"```json\n{OBJECT}\nsearch()\n```"),
    ("json", '{"name": " ", "arguments": {}}'),
    ("hermes", f"<tool_call>{OBJECT} {{</tool_call>"),
    ("hermes", f"<tool_call>{OBJECT}</tool_call><function=search>{ARGUMENTS}</function>"),
    ("hermes", f"<tool_call>{OBJECT}</tool_call>\n```json\n{OBJECT}\n```"),
    ("function_tag", f"<function=search>{ARGUMENTS}</function> [TOOL_CALLS] ["),
]  # fmt: skip

PROSE = [
    "",
    "It is 42.",
    "Hermes writes <tool_call> and Llama <|python_tag|>; Mistral writes [TOOL_CALLS].",
    "Close it with </tool_call>.", '{"name": "Ada", "age": 36}', '```json\n{"name": "Ada"}\n```',
    "```json\n{not json\n```", "```python\nsearch(arguments={})\n```", "a <block> tag, a <Block tag and <b>bold</b>",
    "[1, 2]",
    "It writes <tool_call>[name] and [TOOL_CALLS]name[CALL_ID].",
    '{"name": "x", "arguments": 3}',
    '<result name="x"/>', "<FINAL>It is 42.", "<COMMAND>x</COMMAND>", '<BLOCK TYPE="mcp" NAME="x">y</BLOCK>',
]  # fmt: skip


@pytest.mark.parametrize("dialect, text, calls", RECOGNISED)
def test_a_call_in_a_dialect_is_recognised(dialect: str, text: str, calls: list[tuple[str, object]]) -> None:
    assert parse(text).blocks == []
    found = recognise(text)
    assert found is not None
    assert found.dialect == dialect
    read = [(block.name, json.loads(block.content) if block.content else None) for block in found.blocks]
    assert read == calls
    assert parse("".join(map(str, found.blocks))).blocks == list(found.blocks)


@pytest.mark.parametrize("dialect, text", NEAR_MISSES, ids=lambda one: one[:60])
def test_a_call_that_cannot_be_read_is_a_near_miss_and_never_guessed(dialect: str, text: str) -> None:
    assert recognise(text) == (dialect, ())


@pytest.mark.parametrize("text", PROSE)
def test_text_that_only_mentions_a_dialect_is_prose(text: str) -> None:
    assert recognise(text) is None


def test_a_final_with_a_tag_in_capitals_is_a_final() -> None:
    assert recognise("<FINAL>42</FINAL>") == ("near_tag", [Block("final", None, "42")])


TOKENS = [
    "<tool_call>", "</tool_call>", "<function=a>", "</function>", "<parameter=b>", "</parameter>", "<|python_tag|>",
    "[TOOL_CALLS]", "[ARGS]", "```json\n", "```", '<block name="a">', "<BLOCK ", "{", "}", "[", "]", ":", ",", ";", " ",
    "\n", "1", "-1e9", "null", "true", '"x"', "'", '"name": "a"', '"arguments": {}', '"parameters"', '"\\ud800"', OBJECT,
]  # fmt: skip


@given(
    TEXTS | st.lists(st.sampled_from(TOKENS), max_size=8).map("".join)
    | st.lists(st.sampled_from([row[1] for row in RECOGNISED] + [row[1][:30] for row in NEAR_MISSES]), max_size=3).map("".join)
)
def test_any_text_is_read_without_an_error(text: str) -> None:
    found = recognise(text)
    assert found is None or found.dialect in DIALECTS


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["<tool_call>{", "<function=a>", "<function=a><parameter=b>", "<|python_tag|>{", "[TOOL_CALLS][", "```\n{\n", "```json\n[", "```\n[1\n```\n", OBJECT, OBJECT + "<|a|>", "[]", "<tool_call>" + OBJECT, "<function=a>{}", "<function=a><parameter=b>1", '<block name="a">', "<BLOCK "])
def test_a_text_with_many_unfinished_calls_is_read_quickly(piece: str) -> None:
    assert_linear(lambda size: recognise(piece * (size // len(piece))))
