"""What counts as a value in a user's text, and which values of a call are checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, AliasPath, BaseModel, Field, HttpUrl, RootModel, StringConstraints, field_serializer
from typing_extensions import TypeAliasType

from kernai import Media, Skill
from kernai.inputs.schema import MARK, Schema
from kernai.inputs.trusted import SourcedText, SourcedTexts, Trusted, contacts, folded, leaves
from tests.properties import assert_linear


def words(*texts: str) -> SourcedTexts:
    return SourcedTexts(SourcedText(text, "said") for text in texts)


@pytest.mark.parametrize("value, text", [
    *(("bob@x.org", text) for text in ("Pay bob@x.org.", "(bob@x.org)", "请付款给bob@x.org吧", "to \u202abob@x.org\u202c")),
    ("New York", "to New\n  York today"),
    ("café", "the cafe\u0301 at the corner"),
    ("a.b", "see a.b... and c"),
    ("/srv/x/", "in /srv/x/ please"),
    (r"C:\ann\x", r"delete C:\ann\x, please"),
    ("王伟", "付给 王伟 吧"),
    *((50, text) for text in ("pay $50 now", "pay 50% of it", "支付50元")),
    (1000, "1,000.00 dollars"),
    (Decimal("1234567.5"), "1'234'567.50 Franken"),
    (Decimal("1234.5"), "1.234,50 €"),
    (12.5, "12,50 Euro"),
    *((-3, text) for text in ("set it to -3.", "set it to \u22123.")),
    (1000, "1e3"), (42, "id 0042"),
    *((date(2026, 11, 24), f"on {day}") for day in ("2026-11-24", "24.11.2026", "11/24/2026", "november 24th, 2026")),
    *((date(2026, 9, 3), f"3 {month} 2026") for month in ("Sept", "sep", "SEPTEMBER")),
    (time(14, 30), "at 2:30 pm"), (time(14, 0), "at 2Pm"), (time(12, 0), "at 12 PM"), (date(2026, 9, 11), "11th of September 2026"),
    (datetime.fromisoformat("2026-11-24T14:30"), "2026-11-24 14:30:00"),
    (datetime.fromisoformat("2026-11-24T14:30"), "24 November 2026, 2:30 pm"),
    (UUID(int=7), "id 00000000-0000-0000-0000-000000000007"),
])
def test_a_value_that_is_a_whole_word_or_phrase_of_the_user_is_trusted(value: Any, text: str) -> None:
    assert words(text).source_of(value)


@pytest.mark.parametrize("value, text", [
    ("john@gmail.com", "mary-john@gmail.com"),
    *(("bob@x.org", longer) for longer in ("bob@x.org.uk", "bob@x.or\u200bg", "bob@x.org\u200b.evil")),
    ("bob", "bob@x.org"),
    ("x.org", "bob@x.org"),
    ("Bob", "bob"),
    ("ob", "bob"),
    ("cafe", "cafe\u0301s"),
    ("a", "a-b"),
    (r"C:\ann", r"delete C:\ann\x"),
    ("ann", r"delete C:\ann"),
    ("伟", "付给王伟吧"),
    ("john@x.org", "mary\u2011john@x.org"),
    ("", "anything"),
    (" ", "two words"),
    *((50, text) for text in ("-50", "\u221250", "50kg")),
    ("bob", "bob\u00adby"),
    ("by", "bob\u00adby"),
    ("\u200b", "a \u200b b"),
    (5, "50"),
    (1, "1,000"), (1000, "1.000"), (1, "1'000"),
    (12, "12,50"),
    (2026, "2026-11-24"),
    (float("nan"), "nan"),
    (date(2026, 4, 3), "03/04/2026"),
    *((date(2026, 11, 24), day) for day in ("tomorrow", "24 November")),
    (time(14, 30), "at 2:30"),
    *((time.fromisoformat(exact), "at 14:30") for exact in ("14:30:15", "14:30:00.5", "14:30+02:00")),
    (datetime.fromisoformat("2026-11-24T14:30"), "24 November 2026"),
])
def test_a_part_of_a_longer_word_or_another_value_is_not_trusted(value: Any, text: str) -> None:
    assert not words(text).source_of(value)


@pytest.mark.parametrize("piece", ["a", "ab ", "\u0301\u0316"])
def test_a_value_is_looked_for_in_linear_time(piece: str) -> None:
    assert_linear(lambda size: words(f"x{piece * size}").source_of(piece * (size // 4) + "a"))


@given(st.text(max_size=12), st.text(max_size=8), st.text(max_size=12))
def test_a_text_between_spaces_is_trusted(before: str, value: str, after: str) -> None:
    assert words(f"{before} {value} {after}").source_of(value) == ("said" if folded(value) else None)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9))
def test_an_amount_is_trusted_in_every_format_in_which_users_write_it(amount: Decimal) -> None:
    for form in (f"{amount}", f"{amount:,}", f"pay ${amount:,}."):
        assert words(form).source_of(amount), form


@dataclass
class Payment:
    recipient: Trusted[str]
    note: str = "rent"
    kind: Literal["card", "wire"] = "wire"
    copy: Trusted[str] = ""
    copies: set[Trusted[str]] | None = None

    def __post_init__(self) -> None:
        self.copy = self.copy or self.note.partition("copy to ")[2]
        self.copies = self.copies or ({self.copy} if self.copy else None)


class Due(NamedTuple):
    to: Trusted[str]
    on: date


class Order(TypedDict):
    to: list[Trusted[str]]
    count: NotRequired[int]


class Letter(BaseModel):
    address: Annotated[str, Trusted]
    body: str = Field(default="hello", alias="text")


class Renamed(BaseModel):
    """Its dump differs from the values that the skill gets: in names, in one text, and by a missing field."""

    to: Trusted[str] = Field(alias="recipient")
    chosen: Trusted[str] = Field(default="", validation_alias=AliasChoices("account", "iban"))
    deep: Trusted[str] = Field(default="", validation_alias=AliasPath("way", 0))
    hidden: Trusted[str] = Field(default="", exclude=True)
    shown: Trusted[str] = ""

    @field_serializer("shown")
    def masked(self, value: str) -> str:
        return f"{value[:2]}…"


class Card(BaseModel):
    kind: Literal["card"] = "card"
    to: Trusted[str]


class Note(BaseModel):
    kind: Literal["note"] = "note"
    to: str


class Named(BaseModel):
    by_name: dict[Annotated[str, StringConstraints(pattern="^[a-z]+$")], Card] = {}


class Kind(Enum):
    CARD = "card"
    NOTE = "note"


class EnumCard(BaseModel):
    kind: Literal[Kind.CARD]
    to: Trusted[str]


class Free(BaseModel):
    kind: Kind
    to: str


class Opaque:
    """Has what kernai asks of a class, and no more."""

    def __init__(self, to: str) -> None:
        self._to = to

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "object", "properties": {"to": {"type": "string", "x-trusted": True}}, "required": ["to"]}

    @classmethod
    def model_validate(cls, data: Any) -> Opaque:
        return cls(data["to"])


class Dumped(Opaque):
    def model_dump(self) -> dict[str, Any]:
        return {"to": self._to.upper()}


class Linked(BaseModel):
    url: Trusted[HttpUrl]


class Several(RootModel[list[Trusted[str]]]):
    pass


Numbers = TypeAliasType("Numbers", "list[Numbers] | int")


@dataclass
class Tree:
    name: Trusted[str]
    below: list[Tree] = field(default_factory=list)
    tag: str = field(default_factory=lambda: "new")


def found(annotation: Any, value: Any) -> dict[str, tuple[Any, bool]]:
    skill = Skill("one", execute=lambda it: None, inputs={"it": annotation})
    params = {"it": value}
    return {one.path: (one.value, one.trusted) for one in leaves([skill.table.whole], params, skill.bind(params))}


@pytest.mark.parametrize("annotation, value, wanted", [
    (Trusted[str], "a", {"it": ("a", True)}), (str, "a", {"it": ("a", False)}),
    (Trusted[str] | None, None, {}), (Trusted[int], 3, {"it": (3, True)}),
    (Trusted[Numbers], [1, [2]], {"it[0]": (1, True), "it[1][0]": (2, True)}),  # type: ignore[misc]  # a value here
    (Trusted[list[str]], ["a", "b"], {"it[0]": ("a", True), "it[1]": ("b", True)}),
    (list[Trusted[str]], ["a"], {"it[0]": ("a", True)}), (Trusted[dict[str, int]], {"k": 1}, {"it.k": (1, True)}),
    (tuple[Annotated[str, Trusted], str], ["a", "b"], {"it[0]": ("a", True), "it[1]": ("b", False)}),
    (Payment, {"recipient": "a"}, {"it.recipient": ("a", True)}),
    (Payment, {"recipient": "a", "note": "n", "kind": "card"}, {"it.recipient": ("a", True), "it.note": ("n", False)}),
    *((Payment, {"recipient": "a", "note": "copy to b", **sent}, {"it.recipient": ("a", True), "it.note": ("copy to b", False),
       "it.copy": ("b", True), "it.copies[0]": ("b", True)}) for sent in ({}, {"copy": "", "copies": None})),
    (Trusted[Payment], {"recipient": "a", "note": "n", "kind": "card"},
     {"it.recipient": ("a", True), "it.note": ("n", True)}),
    (Due, {"to": "a", "on": "2026-11-24"}, {"it.to": ("a", True), "it.on": (date(2026, 11, 24), False)}),
    (Order, {"to": ["a"], "count": 2}, {"it.to[0]": ("a", True), "it.count": (2, False)}),
    (Letter, {"address": "a", "text": "b"}, {"it.address": ("a", True), "it.text": ("b", False)}),
    (Renamed, {"recipient": "a", "account": "b"}, {"it.recipient": ("a", True), "it.chosen": ("b", True)}),
    (Renamed, {"recipient": "a", "hidden": "b"}, {"it.recipient": ("a", True), "it.hidden": ("b", True)}),
    (Renamed, {"recipient": "a", "shown": "bcd"}, {"it.recipient": ("a", True), "it.shown": ("bcd", True)}),
    (Several, ["a"], {"it[0]": ("a", True)}),
    (Opaque, {"to": "a"}, {"it.to": ("a", True)}), (Dumped, {"to": "a"}, {"it.to": ("A", True)}),
    (Linked, {"url": "https://x.org"}, {"it.url": ("https://x.org", True)}),  # its own text ends in a slash
    (EnumCard | Free, {"kind": "card", "to": "a"}, {"it.to": ("a", True)}),
    (Named, {"by_name": {"k": {"to": "a"}}}, {"it.by_name.k": ("k", False), "it.by_name.k.to": ("a", True)}),
    (Card | Note, {"kind": "card", "to": "a"}, {"it.to": ("a", True)}),
    (Card | Note, {"kind": "note", "to": "a"}, {"it.to": ("a", False)}),
    (Trusted[Payment], {"recipient": "a", "note": "rent"}, {"it.recipient": ("a", True)}),
    (Payment | Letter, {"address": "a"}, {"it.address": ("a", True)}),
    (Tree, {"name": "a", "below": [{"name": "b"}]}, {"it.name": ("a", True), "it.below[0].name": ("b", True)}),
    (Trusted[date], "2026-11-24", {"it": (date(2026, 11, 24), True)}),
    (Any, {"deep": [{"x": "y"}]}, {"it.deep": ("deep", False), "it.deep[0].x": ("y", False)}),
])
def test_the_leaves_that_the_model_sent_are_found_with_what_must_be_trusted(
    annotation: Any, value: Any, wanted: dict[str, tuple[Any, bool]]
) -> None:
    assert found(annotation, value) == wanted


@dataclass(frozen=True)
class Transfer:
    amount: int
    to: Trusted[str] = "me"


@dataclass
class Sorted:
    transfers: list[Transfer]

    def __post_init__(self) -> None:
        self.transfers = sorted(self.transfers, key=lambda one: one.to)


@pytest.mark.parametrize("first", [{"amount": 1}, {"amount": 1, "to": "me"}], ids=["left out", "sent"])
@pytest.mark.parametrize("of_type", [set[Transfer], frozenset[Transfer], Sorted])
def test_the_default_of_one_item_is_not_taken_for_a_value_of_another_one(of_type: Any, first: dict[str, Any]) -> None:
    """A set has no order, and a class may sort its items."""
    for amount in range(8):  # sets order them differently
        items = [first, {"amount": amount, "to": "eve"}]
        assert ("eve", True) in found(of_type, {"transfers": items} if of_type is Sorted else items).values()


def test_defaults_of_items_in_the_order_in_which_they_were_sent_are_not_looked_for() -> None:
    sent = [{"name": "a"}, {"name": "b", "below": [{"name": "c"}]}]
    assert {one for one, _ in found(list[Tree], sent).values()} == {"a", "b", "c"}
    assert found(list[Transfer], [{"amount": 1}, {"amount": 2, "to": "eve"}]) == {
        "it[0].amount": (1, False), "it[1].amount": (2, False), "it[1].to": ("eve", True),
    }


PAYEE: Any = {"properties": {"iban": {"type": "string", MARK: True}}}
FREE = {"properties": {"payee": {"type": "object"}, "note": {"type": "string"}}}
MIXED = {
    "a list of types": {"properties": {"payee": {"type": ["object", "null"], **PAYEE}}},
    "a list of types, with items": {"properties": {"payee": {"type": ["array", "null"], "items": PAYEE}}},
    "alternatives beside": {"properties": {"payee": PAYEE}, "anyOf": [{"required": ["payee"]}, {"required": ["name"]}]},
    "one of several beside": {"properties": {"payee": {**PAYEE, "oneOf": [{"required": ["iban"]}]}}},
    "all of several": {"allOf": [{"properties": {"payee": PAYEE}}, FREE]},
    "all of several, within": {"properties": {"payee": {"allOf": [{"type": "object"}, PAYEE]}}},
    "a condition": {"if": {"required": ["payee"]}, "then": {"properties": {"payee": PAYEE}}},
    "keys by pattern": {"patternProperties": {"^pay": PAYEE}},
    "one beside alternatives": {"oneOf": [{"properties": {"payee": PAYEE}}], "anyOf": [FREE]},
    "a list of types beside alternatives": {"type": ["object", "null"], "anyOf": [FREE, {"properties": {"payee": PAYEE}}]},
    "an alternative without a type": {"anyOf": [{"type": "object", **FREE}, {"properties": {"payee": PAYEE}}]},
}


@pytest.mark.parametrize("schema", MIXED.values(), ids=MIXED)
def test_a_mark_counts_wherever_a_foreign_schema_has_it(schema: Schema) -> None:
    payee: Any = {"iban": "DE89"}
    params = {"payee": [payee] if "items" in str(schema) else payee, **({"note": "b"} if "note" in str(schema) else {})}
    found = {one.value: one.trusted for one in leaves([schema], params, params)}
    assert (found["DE89"], found.get("b", False)) == (True, False)


def test_a_field_under_a_name_that_the_schema_does_not_list_is_trusted_where_any_field_is() -> None:
    """A model may take a field by other names than its schema gives."""
    for by in ({"account": "b"}, {"iban": "b"}, {"way": ["b"]}):
        assert {*found(Renamed, {"recipient": "a", **by}).values()} >= {("a", True), ("b", True)}, by


@pytest.mark.parametrize("text, wanted", [
    ("see https://x.org/a?b=1.", {"https://x.org/a?b=1"}),
    ("www.x.org", {"www.x.org"}),
    ("mail bob@x.org, please", {"bob@x.org"}),
    ("to DE89 3704 0044 0532 0130 00", {"DE89 3704 0044 0532 0130 00"}),
    ("call +1 (555) 010-4477", {"1 (555) 010-4477"}),
    ("at 2026-11-24 10:00, or 24.11.2026", set()),
    ("1234567 is short", set()),
])
def test_links_addresses_and_long_numbers_are_found_in_free_text(text: str, wanted: set[str]) -> None:
    assert {one.text for one in contacts(text)} >= wanted
    assert bool(wanted) == bool(list(contacts(text)))


def test_an_iban_is_the_same_however_its_digits_are_grouped() -> None:
    (iban, *_) = contacts("DE89370400440532013000")
    assert words("to DE89 3704 0044 0532 0130 00 please").source_of_contact(iban)
    assert not words("to DE89 3704 0044 0532 0130 01 please").source_of_contact(iban)


@pytest.mark.parametrize("annotation", [
    Trusted[bool], Trusted[Media], Trusted[list[Literal["a"]]], dict[Trusted[str], int],
    Trusted[Literal["a"]], Trusted[Any], Trusted,  # type: ignore[misc]  # as values they have no meaning for mypy
])
def test_a_type_whose_values_cannot_be_looked_for_is_refused_with_the_reason(annotation: Any) -> None:
    with pytest.raises(TypeError, match=r"parameter 'it': .*(Trusted cannot|write .* Trusted\[str\]|mark or constrain the whole dict)"):
        Skill("one", execute=lambda it: None, inputs={"it": annotation})


def test_the_listing_and_the_schema_say_that_a_value_must_be_the_users() -> None:
    skill = Skill("pay", execute=lambda to: None, inputs={"to": Trusted[str]})
    assert "- to (string, whose value is in the user's own words, required)" in skill.describe()
    assert skill.schema()["properties"]["to"] == {"type": "string", "x-trusted": True}


def test_every_place_with_a_mark_is_listed_beside_a_record_that_comes_twice() -> None:
    @dataclass
    class Address:
        street: str

    @dataclass
    class Parcel:
        to: Trusted[str]
        first: Address
        second: Address

    assert Skill("send", execute=lambda it: None, inputs={"it": list[Parcel]}).table.trusted == ["it[].to"]
