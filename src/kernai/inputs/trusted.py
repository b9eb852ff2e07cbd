"""Values that must come from the user: how an input is marked, and how a value is found in the user's texts.

`Trusted[T]` marks an input, an item or a field. The mark is in the JSON Schema as ``"x-trusted": true``, and `leaves`
finds it there. So one traversal works for records, lists, pydantic models and the schemas of MCP servers. Texts are
searched for the converted value, not for what the model wrote. docs/security.md has the rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from itertools import product
from typing import Annotated, Any, NamedTuple, TypeVar
from unicodedata import category
from uuid import UUID

from kernai._util.api import Once
from kernai._util.redaction import normalized
from kernai.inputs.containers import DictType, ListType, UnionType
from kernai.inputs.schema import MARK, WORDS, Schema, label_of, marks_of, resolved
from kernai.inputs.types import ANY, NULL, ChoiceType, InputType, MediaType, WrapperType, underlying
from kernai.jsonio.json_data import jsonable
from kernai.values.media import Media

T = TypeVar("T")
_WORDS = "whose value is in the user's own words"


class TrustedMark:
    """The metadata that `Trusted` adds to an annotation."""

    def __repr__(self) -> str:
        return "Trusted"

    def __get_pydantic_json_schema__(self, core: Any, handler: Any) -> dict[str, Any]:
        """For a field of a pydantic model."""
        return {**handler(core), MARK: True}


Trusted = Annotated[T, TrustedMark()]
"""An input whose whole value must occur in the words of the user or the host; see docs/security.md."""
# for a field of a pydantic model that is written as `Annotated[str, Trusted]`
vars(Trusted)["__get_pydantic_json_schema__"] = TrustedMark().__get_pydantic_json_schema__


class TrustedType(WrapperType):
    """A type whose values must be trusted. The source of a value is checked when a call is made, not here."""

    def __init__(self, inner: InputType) -> None:
        reason = _why_not(inner)
        if reason:
            raise TypeError(f"Trusted cannot be a type of {inner.label}: {reason}")
        super().__init__(inner)

    @Once
    def schema(self) -> Schema:
        return marked(self.inner.schema)


def marked(schema: Schema) -> Schema:
    """The schema of a value that must be trusted."""
    return {**schema, MARK: True, WORDS: f"{label_of(schema)}, {_WORDS}"}


_CLOSED = "the model can only choose from a closed set, so there is nothing to look for"
_OPEN = "a value of any shape has no text to look for; write the type"


def _why_not(kind: InputType, inside: tuple[InputType, ...] = ()) -> str:
    kind = underlying(kind)
    if kind in inside:  # it contains itself, and has no other values than the others in it
        return _CLOSED
    if isinstance(kind, UnionType):
        reasons = [_why_not(one, (*inside, kind)) for one in kind.members if one is not NULL]
        return next(filter(None, reasons), "") if all(reasons) or _OPEN in reasons else ""
    if isinstance(kind, (ListType, DictType)) and kind.item is not ANY:
        return _why_not(kind.item, (*inside, kind))
    if isinstance(kind, ChoiceType) or kind is NULL or kind.exact is bool:
        return _CLOSED
    if isinstance(kind, MediaType):
        return "media are named by ids that the user never writes"
    return _OPEN if kind is ANY else ""


class Leaf(NamedTuple):
    """A value in a call that contains no others: a text, a number, a date. `path` is written as in faults."""

    path: str
    value: Any
    trusted: bool


def leaves(
    schemas: Iterable[object], sent: object, value: object, path: str = "", *, trusted: bool = False
) -> Iterator[Leaf]:
    """The leaves of a value that all `schemas` describe; `sent` is what the model wrote before it was converted.

    Omits defaults, even if the model has sent them, and members of closed sets: enums, booleans, None. A mark in one of
    the schemas is enough to make a part trusted.
    """
    value = _opened(value)
    found = _all_of(schemas, value)
    # a mark in a keyword that is not followed counts for the whole value, since it may concern any part
    others = ({key: part for key, part in one.items() if key not in _FOLLOWED} for one in found)
    trusted = trusted or any(True for one in others for _ in marks_of(one))
    if isinstance(value, (bool, Enum, Media)) or value is None or any(
        value in one.get("enum", ()) or ("const" in one and value == one["const"]) for one in found
    ):  # nothing that a text could hold, or a member of a closed set
        return
    if isinstance(value, dict):
        yield from _in_object(found, sent, value, path, trusted=trusted)
    elif isinstance(value, list):
        # a set has no order, and `__post_init__` may sort a list: then items cannot be matched with what was sent
        alike = _is_as_sent(sent, value)
        for at, one in enumerate(value):
            places = [(each.get("prefixItems", ()), each.get("items")) for each in found]
            items = [prefix[at] if at < len(prefix) else rest for prefix, rest in places]
            given = sent[at] if alike else one  # type: ignore[index]  # `alike` says that it is a list
            yield from leaves(items, given, one, f"{path}[{at}]", trusted=trusted)
    elif isinstance(sent, (dict, list, str)) and not isinstance(value, _SEARCHABLE):  # a class of the author's own
        yield from leaves(schemas, sent, sent, path, trusted=trusted)
    else:
        yield Leaf(path, value, trusted)


def _is_as_sent(sent: object, value: object) -> bool:
    """Whether each part of a value equals what the model sent at its place. Ignores fields that were not sent."""
    value = _opened(value)
    if isinstance(value, dict):
        return isinstance(sent, Mapping) and all(key in value and _is_as_sent(sent[key], value[key]) for key in sent)
    if isinstance(value, list):
        is_list = isinstance(sent, (list, tuple)) and len(sent) == len(value)
        return is_list and all(map(_is_as_sent, sent, value))  # type: ignore[call-overload]  # `is_list` says so
    return sent == value or str(sent) == str(jsonable(value))


#: classes whose values can be searched for in texts
_SEARCHABLE = (str, int, float, Decimal, date, time, UUID)
#: classes whose values can be compared with any default in a schema; other values only with an empty one
_COMPARED = (str, int, float, Decimal, list, tuple)


def _in_object(
    schemas: Sequence[Schema], sent: object, value: dict[Any, Any], path: str, *, trusted: bool
) -> Iterator[Leaf]:
    # if names differ, defaults cannot be recognised: everything counts as sent
    given = sent if isinstance(sent, Mapping) and sent.keys() <= value.keys() else value
    listed = {key for each in schemas for key in each.get("properties", ())}
    # a field that the schema does not list may be a marked one under another name
    hides_marks = not value.keys() <= listed and any(True for each in schemas for _ in marks_of(each))
    for key, one in value.items():
        here = f"{path}.{key}" if path else str(key)
        inside = [each["properties"][key] for each in schemas if key in each.get("properties", ())]
        defaults = [found["default"] for found in _all_of(inside, one) if "default" in found]
        # a validator or `__post_init__` may have replaced a default by what the model wrote in another field
        can_compare = isinstance(one, _COMPARED) or (defaults and not any(defaults))
        is_replaced = can_compare and defaults and not any(_is_as_sent(each, one) for each in defaults)
        if not is_replaced and (key not in given or given[key] in defaults):
            continue
        if key not in listed:
            yield Leaf(here, key, trusted)  # the model has written this key
            inside = [one for each in schemas for one in each.get("patternProperties", {}).values()]
            inside += [each["additionalProperties"] for each in schemas if each.get("additionalProperties")]
        yield from leaves(inside, given.get(key, one), one, here, trusted=trusted or (hides_marks and not inside))


def _all_of(schemas: Iterable[object], value: object) -> list[Schema]:
    """The schemas, and the schemas in them: all that are in ``allOf``, and the alternatives that fit the value."""
    found: list[Schema] = []
    waiting, seen = list(schemas), set[int]()
    while waiting:
        given = waiting.pop()
        if id(given) in seen:
            continue
        seen.add(id(given))
        schema = resolved(given)[1]
        found.append(schema)
        waiting += schema.get("allOf", ())
        members = schema.get("anyOf", [])
        waiting += [one for one in members if _fits(resolved(one)[1], value)] or members
    return found


#: the keywords whose schemas are followed, together with the part of the value that each describes
_FOLLOWED = frozenset({
    "properties", "additionalProperties", "patternProperties", "items", "prefixItems", "allOf", "anyOf", "oneOf",
})


_KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float, Decimal)}


def _fits(schema: Schema, value: object) -> bool:
    if isinstance(value, dict):
        for key, one in schema.get("properties", {}).items():
            wanted, given = resolved(one)[1].get("const"), value.get(key)
            if isinstance(wanted, str) and isinstance(given, str) and wanted != given:
                return False  # the value belongs to another alternative
    kind = schema.get("type")
    if kind is None or not isinstance(value, (dict, list, str, int, float)):
        return kind not in ("object", "array", "null", "boolean")  # a date or a Decimal is sent as text
    return isinstance(value, _KINDS.get(kind, ()))


def _opened(value: object) -> object:
    """A record as a dict with the names in its schema, any other container as a list, other values unchanged."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value) and not isinstance(value, type):
        return value if isinstance(value, Media) else {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(of_model := getattr(type(value), "model_fields", None), Mapping):  # pydantic
        if getattr(value, "__pydantic_root_model__", False):
            return _opened(getattr(value, "root"))  # noqa: B009 - no type of ours has it
        # not `model_dump`, which leaves out excluded fields and converts others with their serializers
        own = {}
        for name, one in of_model.items():
            aliases = [alias for alias in (one.validation_alias, one.alias) if isinstance(alias, str)]
            own[next(iter(aliases), name)] = getattr(value, name)
        return {**own, **(getattr(value, "model_extra", None) or {})}
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else value


# ----------------------------------------------------------------------------------- searching texts for a value


class SourcedText(NamedTuple):
    """A text in which the value of a call may occur, and its source."""

    text: str
    source: str


#: a value of at least this many characters may be recognised inside a word
_SHORTEST_IN_A_WORD = 4


class SourcedTexts:
    """Finds in which of several texts a value occurs."""

    def __init__(self, texts: Iterable[SourcedText]) -> None:
        self._texts = [(folded(one.text), one.source) for one in texts]

    def source_of(self, value: object) -> str | None:
        """The source of a text in which the whole `value` occurs; None if there is none."""
        if isinstance(value, (int, float, Decimal)):
            number = Decimal(str(value))
            return self._numbers.get(number) if number.is_finite() else None
        return next((source for text, source in self._texts if _holds(text, value)), None)

    def source_of_mention(self, value: object) -> str | None:
        """Like `source_of`, but if no text has the whole value, a long value may also be part of a word."""
        whole, wanted = self.source_of(value), folded(str(value))
        if whole is not None or len(wanted) < _SHORTEST_IN_A_WORD:
            return whole
        return next((source for text, source in self._texts if wanted in text), None)

    def source_of_contact(self, contact: Contact) -> str | None:
        """Like `source_of`, for a contact from another text, even if its digits are grouped differently."""
        return self.source_of(contact.text) if contact.digits is None else self._digits.get(contact.digits)

    @Once
    def _numbers(self) -> dict[Decimal, str]:
        runs = ((run[0], source) for text, source in self._texts for run in _RUN.finditer(text.replace("\u2212", "-")))
        return _firsts((number_in(run), source) for run, source in runs)

    @Once
    def _digits(self) -> dict[str, str]:
        return _firsts((one.digits, source) for text, source in self._texts for one in contacts(text))


def _firsts(pairs: Iterable[tuple[T | None, str]]) -> dict[T, str]:
    """The source of the first occurrence of each key."""
    return {key: source for key, source in reversed([*pairs]) if key is not None}


def folded(text: str) -> str:
    """A text in the form in which texts are compared: normalised (NFC), with one space for any white space."""
    return " ".join(normalized("NFC", text).split())


def _holds(text: str, value: object) -> bool:
    forms = _forms_of(value)
    if isinstance(value, (UUID, date, time)):  # users also write "3 march" and "2 PM"
        text, forms = text.lower(), map(str.lower, forms)
    if any(_occurs_in(form, text) for form in forms):
        return True
    if not isinstance(value, datetime) or value.tzinfo is not None:
        return False
    return _holds(text, value.date()) and (value.time() == time() or _holds(text, value.time()))


def _forms_of(value: object) -> Iterable[str]:
    """The usual ways to write a value."""
    if isinstance(value, datetime):
        return value.isoformat(), value.isoformat(" "), value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return _forms_of_date(value)
    return _forms_of_time(value) if isinstance(value, time) else (folded(str(value)),)


CONNECTORS = ".-+/\\@_%\u2010\u2011"
_TOGETHER = (  # Thai, Hangul, Kana and Han: scripts that put no space between words
    "\u0e00-\u0e7f\u1100-\u11ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_WRITTEN_TOGETHER = re.compile(f"[{_TOGETHER}]")


#: in characters. Beyond this, a value does not occur: one that is repeated inside words would take quadratic time
_MOST_COMPARED = 10_000_000


def _occurs_in(value: str, text: str) -> bool:
    if not value or _is_invisible(value[0]):
        return False
    at, left = text.find(value), _MOST_COMPARED
    while at >= 0 and left > 0:
        left -= len(value)
        if _begins_at(text, at, value[0]) and _ends_at(text, at + len(value), value[-1]):
            return True
        at = text.find(value, at + 1)
    return False


def _begins_at(text: str, at: int, first: str) -> bool:
    """Whether an occurrence begins here, not inside a longer word: ``mary-john@x.org`` does not have `john@x.org`."""
    while at and _is_invisible(text[at - 1]):
        at -= 1
    before = text[at - 1 : at]
    return not before or not (before in CONNECTORS or _is_joined(before, first))


def _ends_at(text: str, end: int, last: str) -> bool:
    """Whether an occurrence ends here, not inside a longer word. A connector alone may follow: ``Pay bob@x.org.``"""
    rest, is_connected = end, False
    while (after := text[rest : rest + 1]) and (after in CONNECTORS or _is_invisible(after)):
        is_connected = is_connected or after in CONNECTORS
        rest += 1
    return not after or not (_is_word_character(after) if is_connected else _is_joined(after, last))


def _is_joined(other: str, edge: str) -> bool:
    return _is_word_character(other) and not (edge.isascii() and _WRITTEN_TOGETHER.match(other))


def _is_invisible(character: str) -> bool:
    """Whether a character is invisible and so ends no word: a soft hyphen, a zero-width space, a direction mark."""
    return not character.isascii() and category(character) == "Cf"


def _is_word_character(character: str) -> bool:
    return character.isalnum() or category(character)[0] == "M"


_RUN = re.compile(rf"(?:(?![{_TOGETHER}])[\w{re.escape(CONNECTORS)},'’])+")  # noqa: RUF001 - groups digits in Swiss amounts
_PLAIN = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:([,'’])[0-9]{3})(?:\1[0-9]{3})*(?:\.[0-9]+)?")  # noqa: RUF001 - see above
_EUROPEAN = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]+|[0-9]+,[0-9]{1,2})")


def number_in(run: str) -> Decimal | None:
    """The number that this run of letters, digits and connectors means to a user; None if it is not a number."""
    run = run.rstrip(CONNECTORS + ",'’")  # noqa: RUF001 - see above
    if _PLAIN.fullmatch(run):
        return Decimal(run)
    if _GROUPED.fullmatch(run):
        return Decimal(re.sub("[,'’]", "", run))  # noqa: RUF001 - see above
    if _EUROPEAN.fullmatch(run):
        return Decimal(run.replace(".", "").replace(",", "."))
    return None


_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)


#: formats that are clear only if the day and the month cannot be exchanged are separate
_NUMERIC, _EITHER_ORDER = ["{d}.{m}.{y}"], ["{d}/{m}/{y}", "{m}/{d}/{y}"]
_SPELLED = ["{d} {m} {y}", "{d} of {m} {y}", "{d}. {m} {y}", "{m} {d}, {y}", "{m} {d} {y}"]


def _forms_of_date(day: date) -> Iterator[str]:
    """The usual ways to write a date, without those that could mean another date (03/04/2026)."""
    year, month, number = day.year, day.month, day.day
    days, months, name = {f"{number}", f"{number:02}"}, {f"{month}", f"{month:02}"}, _MONTHS[month - 1]
    is_clear = number > 12 or number == month  # noqa: PLR2004 - months of a year
    suffix = "th" if 10 < number < 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")  # noqa: PLR2004 - English
    names = {name, name[:3], name[:4] if month == 9 else name}  # noqa: PLR2004 - Sept
    yield day.isoformat()
    yield f"{year}/{month:02}/{number:02}"
    for forms, each_day, each_month in (
        (_NUMERIC + _EITHER_ORDER if is_clear else _NUMERIC, days, months),
        (_SPELLED, {*days, f"{number}{suffix}"}, names),
    ):
        yield from (form.format(d=d, m=m, y=year) for form, d, m in product(forms, each_day, each_month))


def _forms_of_time(at: time) -> Iterator[str]:
    yield at.isoformat()
    if at.tzinfo is not None or at.second or at.microsecond:
        return
    yield f"{at.hour:02}:{at.minute:02}"
    yield f"{at.hour}:{at.minute:02}"
    half, hour = ("am", "pm")[at.hour >= 12], at.hour % 12 or 12  # noqa: PLR2004 - the clock
    for shown in (half, f" {half}"):
        yield f"{hour}:{at.minute:02}{shown}"
        if not at.minute:
            yield f"{hour}{shown}"


# ------------------------------------------------------------------- contacts: what reaches others, in any free text


class Contact(NamedTuple):
    """A link, mail address, IBAN or long number in a text. `digits` is what a number is compared by."""

    text: str
    digits: str | None


_LONG = 8  # digits
_DATES = re.compile(
    r"\b(?:[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2})?)?|[0-9]{1,2}([./])[0-9]{1,2}\1[0-9]{4})\b"
)
#: what must be trusted in the free text of a skill that acts; no other place lists these
CONTACTS = {
    # a match begins only where a run of its characters begins: trying each position in a run would be quadratic
    "link": re.compile(r"(?:(?<![A-Za-z0-9+.-])[A-Za-z0-9+.-]++://|(?<![A-Za-z0-9])www\.)[^\s<>\"']+"),
    "mail address": re.compile(r"(?<![^\s@<>()\[\],;:\"'])[^\s@<>()\[\],;:\"']++@[^\s@<>()\[\],;:\"']+"),
    "IBAN": re.compile(r"\b[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{2,4}){3,8}\b"),
    "number": re.compile(rf"(?:[0-9][ ()/.-]{{0,2}}){{{_LONG - 1},}}[0-9]"),
}


def contacts(text: str) -> Iterator[Contact]:
    """Every match of `CONTACTS`. Dates do not count as numbers."""
    text = folded(text)
    for kind, pattern in CONTACTS.items():
        is_number = kind in ("IBAN", "number")
        for found in pattern.finditer(_DATES.sub("|", text) if is_number else text):
            digits = re.sub(r"[^0-9A-Z]", "", found[0]) if is_number else None
            yield Contact(found[0].rstrip(".,;:!?)]}"), digits)
