"""GBNF as text: rules, literals, ranges of numbers.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md; xgrammar reads this format too. Each rule is on
one line. Every expression that a function here takes or returns may be used anywhere in a sequence.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from decimal import Decimal

ROOT = "root"
_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{[0-9,]+\}')
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_ATOM = re.compile(rf"{_NAME.pattern}|\[(?:[^\]\\]|\\.)*\]")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9]+")


class Rules:
    """The rules of one grammar, by name, in the order of their creation."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {ROOT: ""}
        self._names: dict[str, str] = {}  # by body: equal bodies share a rule

    def add(self, wanted: str, body: str) -> str:
        """Adds a rule, unless one with the same body exists. Returns the name of the rule."""
        if body not in self._names:
            name = self.reserve(wanted)
            self.fill(name, body)
        return self._names[body]

    def reserve(self, wanted: str) -> str:
        """Reserves a free name for a rule whose body is set later, since it may contain itself."""
        base = _NOT_IN_A_NAME.sub("-", wanted).strip("-").lower() or "rule"
        name, number = base, 2
        while name in self._bodies:
            name, number = f"{base}-{number}", number + 1
        self._bodies[name] = ""
        return name

    def fill(self, name: str, body: str) -> None:
        self._bodies[name] = body
        self._names.setdefault(body, name)

    def text(self, root: str) -> str:
        """The grammar of `root`, then every rule that it needs, in the order of their use."""
        self._bodies[ROOT] = root
        order, known = [ROOT], {ROOT}
        for name in order:
            needed = dict.fromkeys(_NAME.findall(_QUOTED.sub("", self._bodies[name])))
            order += [one for one in needed if one not in known]
            known.update(needed)
        return "".join(f"{name} ::= {self._bodies[name]}\n" for name in order)


def literal(text: str) -> str:
    """An expression for exactly this text."""
    return '"' + _ESCAPED.sub(lambda found: _NAMED.get(found[0], f"\\x{ord(found[0]):02X}"), text) + '"'


def one_of(expressions: Iterable[str]) -> str:
    """One of several expressions."""
    distinct = list(dict.fromkeys(expressions))
    return distinct[0] if len(distinct) == 1 else "(" + " | ".join(distinct) + ")"


def repeated(expression: str, least: int, most: int | None) -> str:
    """An expression `least` to `most` times."""
    named = {(0, None): "*", (1, None): "+", (0, 1): "?", (least, least): f"{{{least}}}"}
    times = named.get((least, most), f"{{{least},{'' if most is None else most}}}")
    return (expression if _ATOM.fullmatch(expression) else f"({expression})") + times


def optional(expression: str) -> str:
    """An expression, or nothing."""
    return repeated(expression, 0, 1) if expression else ""


def integers(least: int, most: int) -> str:
    """The decimal text of every integer from `least` to `most`, without "-0" and leading zeros."""
    if least < 0:
        negative = f'"-" {integers(max(1, -most), -least)}'
        return one_of([f"({negative})", *([integers(0, most)] if most >= 0 else [])])
    ways = []
    for digits in range(len(str(least)), len(str(most)) + 1):
        low = max(least, 10 ** (digits - 1) if digits > 1 else 0)
        ways.append(_same_length(str(low), str(min(most, 10**digits - 1))))
    return one_of(ways)


_MOST_PLACES = 14  # digits in all: floats with so few are distinct, so a text below a bound is a float below it
_MOST_DIGITS, _ENDLESS = 17, 10**15  # digits after the point, if the upper bound is so high that it does not matter


def decimals(least: Decimal, most: Decimal, *, above: bool, below: bool) -> str:
    """The decimal text of numbers from `least` to `most`. With `above`, excludes `least`; with `below`, `most`.

    If there are no such numbers, returns one that satisfies the lower bound.
    """
    zero = Decimal(0)
    negative = _unsigned(max(-most, zero), max(-least, zero), above=below or most >= 0, below=above)
    positive = _unsigned(max(least, zero), max(most, zero), above=above and least >= 0, below=below or most < 0)
    ways = [*(f'("-" {one})' for one in negative), *positive]
    return one_of(ways) if ways else integers(math.ceil(least), math.ceil(least))


def _unsigned(least: Decimal, most: Decimal, *, above: bool, below: bool) -> list[str]:
    """The ways to write numbers that are not negative."""
    low, high = int(least), int(most)
    if low == high:
        return _fractions(low, least, most, above=above, below=below)
    ways = _fractions(low, least, Decimal(low + 1), above=above, below=True)
    if high - low > 1:
        digits = _MOST_DIGITS if high > _ENDLESS else max(1, _MOST_PLACES - len(str(high)))
        ways.append(f'({integers(low + 1, high - 1)} ("." [0-9]{{1,{digits}}})?)')
    return ways + _fractions(high, Decimal(high), most, above=False, below=below)


def _fractions(whole: int, least: Decimal, most: Decimal, *, above: bool, below: bool) -> list[str]:
    """The ways to write numbers with this integer part."""
    places = max(1, *(-int(one.normalize().as_tuple().exponent) for one in (least, most)))
    low, high = (int((one - whole).scaleb(places)) for one in (least, most))
    more = max(1, _MOST_PLACES - places - len(str(whole)))
    ways = []
    if low == 0 and not above and (high > 0 or not below):
        ways.append(literal(str(whole)))
    if low == 0 and not above and high == 10**places:
        return [f'({ways[0]} ("." {repeated("[0-9]", 1, more)})?)']
    for fewer in range(1, places):
        unit = 10 ** (places - fewer)
        first, last = -(-(low + above) // unit), (high - below) // unit
        if first <= last:
            ways.append(f"({literal(f'{whole}.')} {_same_length(str(first).zfill(fewer), str(last).zfill(fewer))})")
    if low + above < high:
        digits = _same_length(str(low + above).zfill(places), str(high - 1).zfill(places))
        ways.append(f"({literal(f'{whole}.')} {digits} {repeated('[0-9]', 0, more)})")
    if above and low < high:
        ways.append(f"({literal(f'{whole}.{str(low).zfill(places)}')} {repeated('[0-9]', 0, more)} [1-9])")
    if not below and (low < high or not above):
        ways.append(literal(f"{whole}.{str(high).zfill(places)}"))
    return ways


def _same_length(low: str, high: str) -> str:
    """All texts of digits from `low` to `high`, which have the same length."""
    rest = len(low) - 1
    if low == high:
        return literal(low)
    if not rest:
        return f"[{low}-{high}]"
    if set(low) == {"0"} and set(high) == {"9"}:
        return repeated("[0-9]", rest + 1, rest + 1)
    ways: dict[str, str] = {}  # the first digits, by what may follow them
    for digit in map(str, range(int(low[0]), int(high[0]) + 1)):
        after = _same_length(low[1:] if digit == low[0] else "0" * rest, high[1:] if digit == high[0] else "9" * rest)
        ways[after] = ways.get(after, "") + digit
    return one_of(f"({_same_length(first[0], first[-1])} {after})" for after, first in ways.items())

