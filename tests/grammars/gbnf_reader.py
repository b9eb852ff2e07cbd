"""A parser for GBNF that tells whether a grammar accepts a text, and generates texts that it accepts."""

from __future__ import annotations

import ast
import random
import re
from typing import Any

Node = tuple[Any, ...]
_TOKEN = re.compile(r"""\s*("(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{\d+,?\d*\}|[a-zA-Z0-9-]+|[()|?*+])""")
_TIMES = {"?": "{0,1}", "*": "{0,}", "+": "{1,}"}
_SAMPLED = [*map(chr, range(1, 128)), *"éß漢字\u2028\x85\U0001f600"] + list("abc 019") * 8


class TooDeepError(Exception):
    """A text would need more rules inside each other than allowed."""


class Grammar:
    """A grammar, parsed from its text."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, Node] = {}
        used = {"root"}
        for line in text.removesuffix("\n").split("\n"):
            name, _, body = line.partition(" ::= ")
            assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9-]*", name), line
            assert name not in self.rules, line
            assert not _TOKEN.sub("", body).strip(), line
            self._tokens = _TOKEN.findall(body)
            used.update(one for one in self._tokens if one[0].isalpha())
            self.rules[name] = self._choice()
            assert not self._tokens, line
        assert used <= self.rules.keys()

    def _choice(self) -> Node:
        ways = [self._sequence()]
        while self._tokens and self._tokens[0] == "|":
            self._tokens.pop(0)
            ways.append(self._sequence())
        return ("choice", *ways)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._tokens and self._tokens[0] not in ("|", ")"):
            parts.append(self._repeated())
        assert parts, "an empty sequence"
        return ("sequence", *parts)

    def _repeated(self) -> Node:
        node, token = (), self._tokens.pop(0)  # type: Node, str
        if token == "(":
            node = self._choice()
            assert self._tokens.pop(0) == ")"
        elif token[0] == '"':
            node = ("literal", ast.literal_eval(token))
        elif token[0] == "[":  # written as Python writes it
            node = ("set", re.compile(token, re.DOTALL))
        else:
            assert token[0].isalpha(), token
            node = ("rule", token)
        while self._tokens and self._tokens[0][0] in "{?*+":
            times = self._tokens.pop(0)
            least, comma, most = _TIMES.get(times, times)[1:-1].partition(",")
            node = ("repeat", node, int(least), int(most) if most else None if comma else int(least))
        return node

    def accepts(self, text: str) -> bool:
        return len(text) in self._ends(("rule", "root"), text, 0, {})

    def _ends(self, node: Node, text: str, at: int, memo: dict[tuple[str, int], set[int]]) -> set[int]:
        """The places where a match of the node that begins at `at` may end."""
        match node:
            case ("literal", word):
                return {at + len(word)} if text.startswith(word, at) else set()
            case ("set", characters):
                return {at + 1} if characters.match(text, at) else set()
            case ("rule", name):
                if (name, at) not in memo:
                    memo[name, at] = self._ends(self.rules[name], text, at, memo)
                return memo[name, at]
            case ("choice", *ways):
                return set().union(*(self._ends(way, text, at, memo) for way in ways))
            case ("sequence", *parts):
                ends = {at}
                for part in parts:
                    ends = {end for start in ends for end in self._ends(part, text, start, memo)}
                return ends
            case ("repeat", inner, least, most):
                found, ends, count = set[int](), {at}, 0
                while ends:
                    if count >= least:
                        found |= ends
                    if count == most:
                        break
                    ends = {end for start in ends for end in self._ends(inner, text, start, memo)} - found
                    count += 1
                return found
        raise AssertionError(node)

    def sample(self, chance: random.Random, depth: int = 24) -> str:
        return self._sampled(("rule", "root"), chance, depth)

    def _sampled(self, node: Node, chance: random.Random, depth: int) -> str:
        match node:
            case ("literal", word):
                return str(word)
            case ("set", characters):
                return str(chance.choice([one for one in _SAMPLED if characters.match(one)]))
            case ("rule", name):
                if depth == 0:
                    raise TooDeepError
                return self._sampled(self.rules[name], chance, depth - 1)
            case ("choice", *ways):
                for way in chance.sample(ways, len(ways)):
                    try:
                        return self._sampled(way, chance, depth)
                    except TooDeepError:
                        continue
                raise TooDeepError
            case ("sequence", *parts):
                return "".join([self._sampled(part, chance, depth) for part in parts])
            case ("repeat", inner, least, most):
                wanted, made = least + int(chance.expovariate(0.5)), list[str]()
                try:
                    while len(made) < wanted and len(made) != most:
                        made.append(self._sampled(inner, chance, depth))
                except TooDeepError:
                    if len(made) < least:
                        raise
                return "".join(made)
        raise AssertionError(node)
