"""Calls in other formats, written by models that were trained on other protocols.

`DIALECTS` is the table; each row is a pure function from a response without any block to the blocks that its calls
mean. Nothing is guessed: if any part of a call cannot be read, the whole response is a near miss and has no calls. Only
mistakes in JSON are repaired, if nothing is lost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kernai.blocks.block import Block
from kernai.blocks.decodings import QUOTES
from kernai.blocks.grammar import CORE_TYPES, Remembered
from kernai.blocks.parser import parse
from kernai.jsonio.json_data import JsonRefusedError, JsonSyntaxError, dumps, loads, value_in
from kernai.jsonio.tolerant_json import TolerantReader


class Unreadable(ValueError):  # noqa: N818 - a finding, not an error
    """A call begins in the text, but cannot be read to its end. `reached` is how far the text was read."""

    def __init__(self, reached: int = 0) -> None:
        self.reached = reached


class DialectCalls(NamedTuple):
    """The dialect's name, and the calls as blocks. There are no blocks if one of the calls could not be read."""

    dialect: str
    blocks: Sequence[Block]


Recogniser = Callable[[str], Sequence[Block]]


def recognise(text: str) -> DialectCalls | None:
    """Finds the calls in a text, in time linear in its length. Returns no blocks if the calls are in two dialects."""
    found: DialectCalls | None = None
    for name, recogniser in DIALECTS.items():
        try:
            blocks = recogniser(text)
        except Unreadable:
            return DialectCalls(found.dialect if found else name, ())
        if blocks and found is not None:
            return DialectCalls(found.dialect, ())  # to run only one of them would silently lose the other
        if blocks:
            found = DialectCalls(name, blocks)
    return found


# --------------------------------------------------------------------------------------------------- JSON of a call


_SPACE = re.compile(r"\s*+")
_DECODER = json.JSONDecoder()
_WINDOW = 1024  # characters
_OBJECT = re.compile(r"\s*+\{")


def json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value at a place in the text, and its end. Mistakes are repaired if nothing is lost.

    Raises `Unreadable` otherwise. The value is read in growing windows, so that a failure takes no longer than reading
    the text up to the mistake.
    """
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches an empty text too
    size = _WINDOW
    while True:
        window = text[at : at + size]
        try:
            value, end = _json_in(window)
        except (JsonRefusedError, RecursionError) as error:
            raise Unreadable(at + len(window)) from error
        except JsonSyntaxError as error:
            if error.reached < len(window) or at + size >= len(text):
                raise Unreadable(at + error.reached) from error
        else:
            return value, at + end
        size *= 8


def _json_in(window: str) -> tuple[Any, int]:
    try:
        _, end = _DECODER.raw_decode(window)
        return loads(window[:end], unique_keys=True), end
    except JsonRefusedError:
        raise
    except ValueError:
        return TolerantReader(window).read(0)


def named_block(name: object, arguments: object) -> Block:
    """The command for a name and its arguments, which may be a string with JSON, as OpenAI writes them."""
    if isinstance(arguments, str):
        arguments = json_at(arguments, 0)[0] if arguments.strip() else {}
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
        raise Unreadable
    # without arguments, the content is `{}`: if it were empty, a skill with one text input would get an empty text
    return Block("command", name.strip(), dumps(arguments))


def called(value: object) -> Block | None:
    """The command for an object with a name and arguments; None for any other value."""
    if not isinstance(value, dict):
        return None
    inner = value.get("function")
    call: dict[str, Any] = inner if isinstance(inner, dict) else value
    for key in ("input",) if value.get("type") == "tool_use" else ("arguments", "parameters"):
        if isinstance(call.get("name"), str) and isinstance(call.get(key), dict | str):
            return named_block(call["name"], call[key])
    return None


# -------------------------------------------------------------------------------------------------------- the rows

_TOOL_CALL = re.compile(r"<tool_call>(?=\s*(?:\{|\[\s*\{))")
_PREFIX = "(?:antml:)?"  # Claude may write it
_NAME = r"""\s+name\s*=\s*["']([^<>"']+)["']\s*"""
FUNCTION = re.compile(rf"<(?:function=([^<>\s]+)|{_PREFIX}invoke{_NAME})>")
_PARAMETER = re.compile(rf"\s*<{_PREFIX}parameter(?:=([^<>\s]+)|{_NAME})>(.*?)</{_PREFIX}parameter>", re.DOTALL)
_FUNCTION_END = re.compile(rf"\s*</(?:function|{_PREFIX}invoke)>")
_MORE = re.compile(r"\s*+[;,]?\s*+(?=\{|\[\s*\{)")
_REST = re.compile(r"(?:\s|;|<\|\w+\|>|</s>)*\Z")
_PYTHON_TAG = re.compile(r"<\|python_tag\|>(?=\s*(?:\{|\[\s*\{))")
_CALL_ID = r"(?:\[CALL_ID\]\s*+[\w-]++\s*+)?"
MISTRAL = re.compile(rf"\[TOOL_CALLS\](?=\s*(?:[\[{{]|[\w.-]+\s*{_CALL_ID}(?:\[ARGS\]|\{{)))")
MISTRAL_CALL = re.compile(rf"\s*([\w.-]+)\s*{_CALL_ID}(?:\[ARGS\])?(?=\s*\{{)")
_FENCE_END = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```(?i:json|tool_call|tool_code)?[ \t]*\n(?=\s*[\[{])", re.MULTILINE)


def _at_each(tag: re.Pattern[str], read: Callable[[str, re.Match[str]], Iterable[Block]]) -> Recogniser:
    """A recogniser that reads the calls at each place where the pattern matches."""
    return lambda text: [block for found in tag.finditer(text) for block in read(text, found)]


def _objects_at(text: str, at: int) -> tuple[list[Block], int]:
    """The calls at a place, as objects or lists of them, with or without a sign between them; and where they end."""
    value, at = json_at(text, at)
    values = [*_values(value)]
    while (more := _MORE.match(text, at)) is not None:
        value, at = json_at(text, more.end())
        values += _values(value)
    blocks = [*filter(None, map(called, values))]
    if len(blocks) < len(values):
        raise Unreadable
    return blocks, at


def _calls_after(text: str, tag: re.Match[str]) -> list[Block]:
    """The calls after a tag: objects, or one call with its name before its arguments."""
    named = MISTRAL_CALL.match(text, tag.end())
    return _objects_at(text, tag.end())[0] if named is None else [named_at(text, named)]


def named_at(text: str, found: re.Match[str]) -> Block:
    """The call whose name `MISTRAL_CALL` has found."""
    return named_block(found[1], json_at(text, found.end())[0])


def function_at(text: str, tag: re.Match[str]) -> Block:
    """The call that begins with a tag found by `FUNCTION`."""
    at, name = tag.end(), tag[1] or tag[2]
    if _OBJECT.match(text, at):
        return named_block(name, json_at(text, at)[0])
    given: dict[str, object] = {}
    while (one := _PARAMETER.match(text, at)) is not None:
        key = one[1] or one[2]
        if key in given:
            raise Unreadable
        # JSON such as a number or an object, else the text without the line breaks around it
        given[key] = value_in(one[3].removeprefix("\n").removesuffix("\n"))
        at = one.end()
    if not _FUNCTION_END.match(text, at):
        raise Unreadable
    return named_block(name, given)


def _json_objects(text: str) -> Sequence[Block]:
    whole = text.lstrip()[:1] in ("{", "[")
    return [block for given in ([text] if whole else _fenced(text)) for block in _calls_alone(given)]


def _calls_alone(text: str) -> list[Block]:
    """The calls of a text that has nothing else. Empty if it does not begin with a call, since it may be anything."""
    try:
        value, _ = json_at(text, 0)
    except Unreadable:
        return []  # fences contain code of any kind
    if not any(called(one) for one in _values(value)):
        return []
    blocks, at = _objects_at(text, 0)
    if not _REST.match(text, at):
        raise Unreadable
    return blocks


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _fenced(text: str) -> Iterator[str]:
    """The contents of fences that begin like JSON. A "```" inside a line of the first value does not end a fence."""
    at, left = 0, len(text)  # `left`: how many characters may still be read in vain, to keep the time linear
    while (fence := _FENCE.search(text, at)) is not None:
        begin = end = fence.end()
        if left > 0:
            try:
                _, end = json_at(text, begin)
            except Unreadable as error:
                left -= error.reached - begin
            if _FENCE_END.search(text, begin, end):
                end = begin  # the fence ends inside the value
        at = text.find("```", end)
        at = len(text) if at < 0 else at
        yield text[begin:at]
        at += 3


_WORDS = "|".join(("block", *CORE_TYPES))
_NEAR_TAG = re.compile(rf"<\s*+(/?)\s*+({_WORDS})\b([^<>]*)>", re.IGNORECASE)
_PAIR = re.compile(r"""\s([\w-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_KEY = re.compile(r"\b(type|name)(?=\s*=)", re.IGNORECASE)
_BARE_VALUE = re.compile(r"""\"[^"]*"|'[^']*'|(\s[\w-]+\s*=\s*)([^\s"'=<>]+?)(?=\s|/?\Z)""")
_CORE_TYPE = re.compile(rf"""(?<=\stype=["'])(?:{'|'.join(CORE_TYPES)})(?=["'])""", re.IGNORECASE)


def corrected_tags(text: str) -> str:
    """Corrects the tags in a text that are nearly right."""
    return _NEAR_TAG.sub(lambda tag: _corrected(tag[0]), text)


def _corrected_tag(markup: str) -> str:
    slash, word, attributes = _NEAR_TAG.fullmatch(markup).groups()  # type: ignore[union-attr]  # it has matched before
    word, attributes = word.lower(), attributes.translate(QUOTES)
    attributes = _BARE_VALUE.sub(lambda one: f'{one[1]}"{one[2]}"' if one[1] else one[0], attributes)
    attributes = _KEY.sub(lambda key: key[1].lower(), attributes)
    attributes = _CORE_TYPE.sub(lambda kind: kind[0].lower(), attributes)
    is_call = word == "command"
    given = {key: value_in(one or other) for key, one, other in _PAIR.findall(attributes)}
    if word == "block" and "name" in given and "type" not in given:
        attributes, is_call = ' type="command"' + attributes, True
    if is_call and attributes.endswith("/"):
        params = {key: one for key, one in given.items() if key != "name" and (key, one) != ("type", "command")}
        return f"<command{attributes[:-1]}>{dumps(params) if params else ''}</command>"
    return f"<{slash}{word}{attributes}>"


_corrected = Remembered(_corrected_tag).__getitem__


def _near_tags(text: str) -> Sequence[Block]:
    found = parse(corrected_tags(text))
    if found.incomplete is not None and found.incomplete.type == "command":
        raise Unreadable
    return [block for block in found.blocks if block.type == "final" or (block.type == "command" and block.name)]


DIALECTS: dict[str, Recogniser] = {
    # `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen
    "hermes": _at_each(_TOOL_CALL, _calls_after),
    # `<function=name>{…}</function>`: Llama; with a tag for each parameter: Qwen's coders; `<invoke name="…">`: Claude
    "function_tag": _at_each(FUNCTION, lambda text, tag: [function_at(text, tag)]),
    # `<|python_tag|>{"name": …, "parameters": …}`: Llama; several are separated by `;`
    "python_tag": _at_each(_PYTHON_TAG, _calls_after),
    # `[TOOL_CALLS] [{"name": …, "arguments": …}]`, or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, where everything but the
    # name and the arguments is optional
    "mistral": _at_each(MISTRAL, _calls_after),
    # tags in capitals, with other quotes or none, self-closing, or with only a name: `<block name="search">`
    "near_tag": _near_tags,
    # objects with `name` and `arguments` or `parameters`, or a list of them, in a fence or as the whole text
    "json": _json_objects,
}
"""Each dialect's recogniser, in the order in which they are tried."""
