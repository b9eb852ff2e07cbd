"""Text that is shown: secrets in it are hidden in every encoding, and it cannot control a terminal."""

from __future__ import annotations

import base64
import html
import json
import re
import unicodedata
from collections.abc import Callable
from functools import reduce
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernai import KernaiError
from kernai._util.redaction import Redactor, one_line, printable, shown_url

SECRET = "s3'cr\"et \\ú kéy/+=<ÿ>&\\\n\U0001f511"
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in capitals": lambda secret: secret.upper().replace("\\N", "\\n"),
    "repr": repr,
    "repr of a dict": lambda secret: repr({"TOKEN": secret}),
    "repr of bytes": lambda secret: repr(secret.encode()),
    "repr in a repr": lambda secret: repr([repr(secret)]),
    "ascii": ascii,
    "json": json.dumps,
    "json that keeps letters": lambda secret: json.dumps(secret, ensure_ascii=False),
    "json in json": lambda secret: json.dumps({"body": json.dumps({"token": secret})}),
    "json of other libraries": lambda secret: "".join(f"\\u{ord(char):04X}" if char in "<>&'+" else char for char in secret),
    "json with escaped slashes": lambda secret: json.dumps(secret).replace("/", "\\/"),
    "url": lambda secret: quote(secret, safe=""),
    "url path": quote,
    "url form": quote_plus,
    "url in lower case": lambda secret: re.sub("%..", lambda found: found[0].lower(), quote_plus(secret)),
    "url in a url": lambda secret: quote(quote(secret)),
    "encodeURIComponent": lambda secret: quote(secret, safe="-_.!~*'()"),
    "json of a url": lambda secret: json.dumps(quote(secret)),
    "json in a url": lambda secret: quote(json.dumps(secret), safe=""),
    "html": html.escape,
    "html in html": lambda secret: html.escape(html.escape(secret)),
    "html in numbers": lambda secret: "".join(f"&#{ord(char)};" for char in secret),
    "html in hexadecimal": lambda secret: "".join(f"&#x{ord(char):X};" for char in secret),
    "markdown": lambda secret: re.sub(r"(\W|_)", r"\\\1", secret),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_is_hidden_in_every_encoding(spelling: str) -> None:
    redactor = Redactor({SECRET: "[key]", 'cr"et': "[part]"})
    written = SPELLINGS[spelling](SECRET)
    shown = redactor.text(f"before {written} after")
    assert "[key]" in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert len(shown) <= len(f"before {SPELLINGS[spelling]('')} after[key]") + 2, "nothing of it is left"
    assert redactor.data({written: [(written,), 1]}) == {redactor.text(written): [(redactor.text(written),), 1]}


@example("\\%5c", "as it is")
@given(st.text(min_size=1), st.sampled_from(sorted(set(SPELLINGS) - {"in capitals", "markdown"})))
def test_any_secret_can_be_searched_for(secret: str, spelling: str) -> None:
    written = SPELLINGS[spelling](secret) if secret.isprintable() else secret
    assert "[key]" in Redactor({secret: "[key]"}).text(written)


@given(st.text("sk-?>~1ü", min_size=6), st.text(max_size=4), st.text(max_size=4), st.booleans())
def test_a_secret_is_hidden_in_base64_at_any_offset(secret: str, before: str, after: str, for_urls: bool) -> None:
    encode = base64.urlsafe_b64encode if for_urls else base64.b64encode
    octets = [one.encode("utf-8", "replace") for one in (before, secret, after)]
    text = encode(b"".join(octets)).decode()
    shown = Redactor({secret: "[key]"}).text(f"Basic {text}.")
    assert "[key]" in shown
    assert len(shown.replace("[key]", "")) <= len("Basic .") + 2 * (len(octets[0]) + len(octets[2])) + 4


def test_text_without_secrets_is_unchanged() -> None:
    data = {"a": ["text", 1, None, ("b",)]}
    assert Redactor().data(data) is data
    assert Redactor({"": "[key]"}).text("text") == "text"
    assert Redactor({"NOT-IN-THERE": "[key]"}).data(data) == data


@pytest.mark.parametrize("around, levels", [(lambda one: [one], 201), (lambda one: {"a": one}, 201), (lambda one: (one,), 200)])
def test_data_may_nest_as_deep_as_the_error_says(around: Callable[[Any], Any], levels: int) -> None:
    value = reduce(lambda one, _: around(one), range(levels), "secret")
    redactor = Redactor({"secret": "[key]"})
    deep = {value: 1} if isinstance(value, tuple) else value
    assert "[key]" in str(redactor.data(deep))
    with pytest.raises(KernaiError, match="nests deeper than 200 levels"):
        redactor.data({around(value): 1} if isinstance(value, tuple) else around(value))


def test_the_longer_of_two_secrets_is_replaced_whole_and_replacements_are_not_searched_again() -> None:
    redactor = Redactor({"secret": "[secret]", "secret-and-more": "[more]", "more": "[third]"})
    assert redactor.text("secret-and-more secret") == "[more] [secret]"
    redactor.add("later", "[added]")
    redactor.add("secret", "[another mark]")
    assert redactor.text("later secret") == "[added] [secret]"


def test_a_secret_is_searched_for_as_text_and_not_as_a_pattern() -> None:
    assert Redactor({"a.*b": "[key]"}).text("axxb a.*b") == "axxb [key]"


@pytest.mark.parametrize("secret", [f"{part * 30}xyz" for part in ("\\", "\\x", "%", "%5c", "u0075", "&amp;", '"')])
@pytest.mark.parametrize("text", ["\\" * 9_000, "\\x" * 4_500, "%25" * 3_000, "%5c" * 3_000, "u0075" * 1_800, "&amp;" * 1_800, "\\x22" * 2_000])
def test_escape_characters_do_not_make_the_search_slow(secret: str, text: str) -> None:
    """With exponential time this would never end; quadratic time would take seconds."""
    assert Redactor({secret: "[key]"}).text(text) == text


@pytest.mark.parametrize("url, shown", [("http://a:b@h:1/p?q#f", "http://h:1/p"), ("https://[::1]:2/x", "https://[::1]:2/x"), ("http://a:b@c@h/p", "http://h/p"), ("DATA:text/plain;base64,aGk=", "DATA:text/plain;base64")])
def test_a_url_is_shown_without_parts_that_may_be_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown


# ------------------------------------------------------------------------------------------------ text for a terminal


@pytest.mark.parametrize("text, shown", [
    ("plain text\n\twith a tab", "plain text\n\twith a tab"),
    ("\x1b[31mred\x1b[0m", "[31mred[0m"),
    ("\x1b]0;a title\x07text", "]0;a titletext"),
    ("over\rwritten \x00\x07\x7f\x9b2J", "overwritten 2J"),
    ("a\u202egpj.exe", "a\ufffdgpj.exe"),
    ("\u2066isolated\u2069", "\ufffdisolated\ufffd"),
    ("one\u2028line", "one\ufffdline"),
    ("half a pair \ud800", "half a pair \ufffd"),
    ("クランプ مصباح 👷🏽‍♀️", "クランプ مصباح 👷🏽‍♀️"),
])
def test_characters_that_would_control_a_terminal_are_removed_or_replaced(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_any_text_can_be_written_and_holds_no_control_character(text: str) -> None:
    shown = printable(text)
    shown.encode("utf-8")
    assert not any(unicodedata.category(char) == "Cc" for char in shown if char not in "\n\t")


@pytest.mark.parametrize("value, width, shown", [
    ("short", 5, "short"), ("short", 3, "..."),
    ("two\n  lines\tand a tab", 40, "two lines and a tab"),
    ("x" * 1500, 33, "x" * 11 + "... (1,500 characters)"),
    ("result of count_stock", 19, "result of count_..."),  # the length would leave no room for the text
    ({"name": "クランプ"}, 40, '{"name": "クランプ"}'),
    ([1, None, object], 40, '[1, null, "<class \'object\'>"]'),
    ("\x1b[2Jgone", 40, "[2Jgone"),
])
def test_a_long_value_is_cut_to_one_line_and_says_how_much_was_cut(value: object, width: int, shown: str) -> None:
    assert one_line(value, width) == shown
