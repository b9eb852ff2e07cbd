"""A parser for GBNF that tells whether a grammar accepts a text, and generates texts that it accepts."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

Node = tuple[object, ...]
_TOKEN = re.compile(
    r"""\s*(?: (?P<literal>"(?:[^"\\]|\\.)*") | (?P<set>\[(?:[^\]\\]|\\.)*\]) | (?P<repeat>\{\d+,?\d*\}) | (?P<name>[a-zA-Z0-9-]+)
    | (?P<mark>[()|?*+]) )""",
    re.VERBOSE,
)
_CHARACTER = re.compile(r"\\x([0-9A-Fa-f]{2})|\\(.)|(.)", re.DOTALL)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_SAMPLED = [*map(chr, range(1, 128)), *"éß漢字\u2028\x85\U0001f600"] + list("abc 019") * 8


def _characters(text: str) -> Iterator[str]:
    for code, escaped, plain in _CHARACTER.findall(text):
        yield chr(int(code, 16)) if code else _NAMED.get(escaped, escaped) if escaped else plain


class Grammar:
    """A grammar, parsed from its text."""

    def __init__(self, text: str) -> None:
        self.rules: dict[str, Node] = {}
        for line in text.removesuffix("\n").split("\n"):
            name, _, body = line.partition(" ::= ")
            assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9-]*", name), line
            assert name not in self.rules, line
            self._tokens = self._scan(body)
            self.rules[name] = self._choice()
            assert not self._tokens, line
        assert all(name in self.rules for node in self.rules.values() for name in _names(node))
        self._depths = self._shortest()

    @staticmethod
    def _scan(body: str) -> list[tuple[str, str]]:
        tokens, at = [], 0
        while body[at:].strip():
            token = _TOKEN.match(body, at)
            assert token is not None, body[at:]
            tokens.append((str(token.lastgroup), token[token.lastgroup or 0]))
            at = token.end()
        return tokens

    def _choice(self) -> Node:
        ways = [self._sequence()]
        while self._tokens and self._tokens[0][1] == "|":
            self._tokens.pop(0)
            ways.append(self._sequence())
        return ways[0] if len(ways) == 1 else ("choice", *ways)

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._tokens and self._tokens[0] not in (("mark", "|"), ("mark", ")")):
            parts.append(self._repeated(self._single()))
        assert parts, "an empty sequence"
        return ("sequence", *parts)

    def _single(self) -> Node:
        kind, text = self._tokens.pop(0)
        if kind == "literal":
            return ("literal", "".join(_characters(text[1:-1])))
        if kind == "set":
            inner = text[1:-1]
            negated = inner.startswith("^")
            given = list(_characters(inner.removeprefix("^")))
            raw = [found[0] for found in _CHARACTER.finditer(inner.removeprefix("^"))]
            spans, at = [], 0
            while at < len(given):
                wide = at + 2 < len(given) and raw[at + 1] == "-"
                spans.append((given[at], given[at + 2 if wide else at]))
                at += 3 if wide else 1
            return ("set", negated, tuple(spans))
        if kind == "name":
            return ("rule", text)
        assert (kind, text) == ("mark", "("), text
        inside = self._choice()
        assert self._tokens.pop(0) == ("mark", ")")
        return inside

    def _repeated(self, node: Node) -> Node:
        while self._tokens and (self._tokens[0][0] == "repeat" or self._tokens[0][1] in ("?", "*", "+")):
            text = self._tokens.pop(0)[1]
            least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(text, (0, 0))
            if text[0] == "{":
                low, comma, high = text[1:-1].partition(",")
                least, most = int(low), int(high) if high else None if comma else int(low)
            node = ("repeat", node, least, most)
        return node

    # ------------------------------------------------------------------------------------------------- matching

    def accepts(self, text: str) -> bool:
        memo: dict[tuple[int, int], frozenset[int]] = {}
        return len(text) in self._ends(("rule", "root"), text, 0, memo)

    def _ends(self, node: Node, text: str, at: int, memo: dict[tuple[int, int], frozenset[int]]) -> frozenset[int]:
        match node:
            case ("literal", str(word)):
                return frozenset([at + len(word)] if text.startswith(word, at) else [])
            case ("set", bool(negated), tuple(spans)):
                inside = at < len(text) and any(low <= text[at] <= high for low, high in spans)
                return frozenset([at + 1] if at < len(text) and inside != negated else [])
            case ("rule", str(name)):
                place = (id(self.rules[name]), at)
                if place not in memo:
                    memo[place] = self._ends(self.rules[name], text, at, memo)
                return memo[place]
            case ("choice", *ways):
                return frozenset().union(*(self._ends(way, text, at, memo) for way in ways))  # type: ignore[arg-type]
            case ("sequence", *parts):
                ends = {at}
                for part in parts:
                    ends = {end for start in ends for end in self._ends(part, text, start, memo)}  # type: ignore[arg-type]
                return frozenset(ends)
            case ("repeat", inner, int(least), most):
                found, ends, count = set(), {at}, 0
                while ends:
                    if count >= least:
                        found |= ends
                    if count == most:
                        break
                    ends = {end for start in ends for end in self._ends(inner, text, start, memo)} - found  # type: ignore[arg-type]
                    count += 1
                return frozenset(found)
        raise AssertionError(node)

    # -------------------------------------------------------------------------------------------------- sampling

    def _shortest(self) -> dict[str, int]:
        """Return for each rule the smallest depth of rules that a text of it needs."""
        depths = dict.fromkeys(self.rules, 10**6)
        for _ in self.rules:
            for name, node in self.rules.items():
                depths[name] = min(depths[name], 1 + self._depth(node, depths))
        return depths

    def _depth(self, node: Node, depths: dict[str, int]) -> int:
        match node:
            case ("rule", str(name)):
                return depths[name]
            case ("choice", *ways):
                return min(self._depth(way, depths) for way in ways)  # type: ignore[arg-type]
            case ("sequence", *parts):
                return max(self._depth(part, depths) for part in parts)  # type: ignore[arg-type]
            case ("repeat", inner, int(least), _):
                return self._depth(inner, depths) if least else 0  # type: ignore[arg-type]
        return 0

    def sample(self, chance: random.Random, depth: int = 24) -> str:
        """Generate a text that the grammar accepts."""
        return self._sampled(("rule", "root"), chance, depth)

    def _sampled(self, node: Node, chance: random.Random, depth: int) -> str:
        match node:
            case ("literal", str(word)):
                return str(word)
            case ("set", bool(negated), tuple(spans)):
                if negated:
                    return str(chance.choice([c for c in _SAMPLED if not any(low <= c <= high for low, high in spans)]))
                low, high = chance.choice(spans)
                return chr(chance.randint(ord(low), ord(high)))
            case ("rule", str(name)):
                return self._sampled(self.rules[name], chance, depth - 1)
            case ("choice", *ways):
                within = [way for way in ways if self._depth(way, self._depths) < depth]  # type: ignore[arg-type]
                least = min(ways, key=lambda way: self._depth(way, self._depths))  # type: ignore[arg-type]
                return self._sampled(chance.choice(within or [least]), chance, depth)  # type: ignore[arg-type]
            case ("sequence", *parts):
                return "".join(self._sampled(part, chance, depth) for part in parts)  # type: ignore[arg-type]
            case ("repeat", inner, int(least), most):
                more = 0 if self._depth(inner, self._depths) >= depth else int(chance.expovariate(0.5))  # type: ignore[arg-type]
                count = min(least + more, most) if isinstance(most, int) else least + more
                return "".join(self._sampled(inner, chance, depth) for _ in range(count))  # type: ignore[arg-type]
        raise AssertionError(node)


def _names(node: Node) -> Iterator[str]:
    if node[0] == "rule":
        yield str(node[1])
    for part in node[1:]:
        if isinstance(part, tuple) and part and isinstance(part[0], str) and node[0] != "set":
            yield from _names(part)
