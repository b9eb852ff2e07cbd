"""What docs/providers.md and docs/providers/ say in tables is what the code does."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vendor_wires
from adapter_calls import ADAPTERS, HELLO
from kernai import GenerationOptions, Media, Model, ProviderError
from kernai.values.llm_response import FINISH_REASONS
from kernai.values.model import CAPABILITIES
from kernai_providers import (
    VENDORS,
    HttpProvider,
    MemoryReply,
    MemoryTransport,
    TransportError,
    Vendor,
    anthropic,
    capabilities_of,
    failures,
    reader,
    resolve,
)
from vendor_wires import WIRES
from wire_format import Turn, sse
from wire_openai import OpenAIWire

DOCS = Path(__file__).resolve().parents[2] / "docs"

Row = list[str]

PAGES = ("openai", "openai-responses", "anthropic", "gemini", "ollama")
EVERYTHING = Model("any-model", CAPABILITIES)


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def vendor_page(name: str) -> str:
    return text_of(f"providers/{name}.md")


def tables(text: str) -> Iterator[tuple[Row, list[Row]]]:
    """Each table of a page: its head and its rows."""
    for lines in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|\n").split("|")] for line in lines.splitlines())
        yield head, rows


def rows_under(text: str, *heads: str) -> list[Row]:
    """The rows of all tables whose head begins so; there is at least one."""
    found = [row for head, rows in tables(text) if head[: len(heads)] == list(heads) for row in rows]
    assert found, f"no table with the head {heads}"
    return found


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def of(page: str, **options: Any) -> HttpProvider:
    return ADAPTERS[page]("test", **options)


# ------------------------------------------------------------------------------------------------ the vendors


ENTRIES = {codes(row[0])[0]: row for row in rows_under(vendor_page("compatible"), "names", "key", "base URL")}


def test_the_table_lists_every_vendor_and_no_other() -> None:
    assert set(ENTRIES) == {vendor.name for vendor in VENDORS}


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_a_vendor_has_the_names_variables_and_address_that_the_table_says(vendor: Vendor) -> None:
    names, keys, address = ENTRIES[vendor.name]
    assert codes(names) == list(vendor.names)
    assert codes(keys) == list(vendor.variables)
    assert ("none" in keys) is not vendor.needs_key
    expected = vendor.base_url or vendor.adapter.default_base_url
    assert (codes(address) or [""])[0] == ("" if vendor.name == "local" else expected)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_what_an_address_needs_is_in_the_tables(vendor: Vendor) -> None:
    page = vendor_page("compatible")
    places = [row[1:] for row in rows_under(page, "vendor", "argument", "variables") if codes(row[0]) == [vendor.name]]
    assert tuple((codes(name)[0], tuple(codes(variables))) for name, variables in places) == vendor.places
    whole = [codes(row[1]) for row in rows_under(page, "vendor", "variable for a whole address")
             if codes(row[0]) == [vendor.name]]
    expected = [word for pair in vendor.base_url_variables for word in pair if word]
    assert [word for words in whole for word in words] == expected


@pytest.mark.parametrize("row", rows_under(vendor_page("compatible"), "model", "can take"), ids=lambda row: row[0])
def test_a_model_can_take_what_the_table_says(row: Row) -> None:
    (name,), capabilities = codes(row[0]), tuple(codes(row[1]))
    assert capabilities_of(name.partition("/")[2]) == capabilities


def test_what_differs_between_compatible_vendors_is_said_of_the_right_ones() -> None:
    page = vendor_page("compatible")
    merging = [vendor.name for vendor in VENDORS if vendor.merges_roles]
    assert re.search(f"- `{'`, `'.join(merging[:-1])}` and `{merging[-1]}` are given consecutive messages", page)
    silent = [vendor.name for vendor in VENDORS if not vendor.stream_options]
    assert [f"- `{name}` is not sent `stream_options`" in page for name in silent] == [True] == [True for _ in silent]
    assert [vendor.name for vendor in VENDORS if vendor.key_header] == ["azure"]
    assert "The key goes in the header `api-key`" in page


def test_the_overview_names_the_keys_and_names_of_the_four() -> None:
    for row in rows_under(text_of("providers.md"), "vendor", "name for `resolve`"):
        if not codes(row[1]):
            continue  # the compatible ones
        (vendor,) = (one for one in VENDORS if one.name == codes(row[1])[0])
        assert codes(row[1]) == list(vendor.names)
        assert codes(row[2]) == [vendor.adapter.__name__]
        assert codes(row[3]) == list(vendor.variables)


# ------------------------------------------------------------------------------------------------ one vendor


MEDIA_ROWS = [
    pytest.param(page, row, id=f"{page}: {row[0]}")
    for page in PAGES
    for row in rows_under(vendor_page(page), "media", "as file or bytes", "by URL", "the model needs")
]


@pytest.mark.parametrize("page, row", MEDIA_ROWS)
def test_media_are_sent_as_the_table_says(page: str, row: Row) -> None:
    provider = of(page)
    for mime in codes(row[0]):
        inline = Media.from_bytes(b"data", mime_type=mime)
        by = {scheme: Media.from_url(f"{scheme}://example.org/x", mime_type=mime) for scheme in ("https", "http", "gs")}
        taken = {scheme for scheme, media in by.items() if provider.encode_part(media, EVERYTHING) is not None}
        assert (provider.encode_part(inline, EVERYTHING) is not None) is row[1].startswith("yes")
        assert taken == set(codes(row[2]))
        for word in codes(row[3]):
            less = Model("any-model", tuple(one for one in CAPABILITIES if one != word))
            assert provider.encode_part(inline, less) is None
            assert provider.encode_part(inline, Model("any-model", ("text", word))) == \
                provider.encode_part(inline, EVERYTHING)
        assert bool(codes(row[3])) is ("yes" in row[1] or bool(codes(row[2])))


GENERATION: dict[str, dict[str, Any]] = {
    "`temperature`": {"temperature": 0.5},
    "`top_p`": {"top_p": 0.5},
    "`max_tokens`": {"max_tokens": 3000},
    "`thinking` with a budget": {"thinking": {"budget": 2000}},
    "`thinking` with an effort": {"thinking": {"effort": "low"}},
    "`stop`": {"stop": ["END"]},
    "`cache`": {"cache": "1h"},
}
GENERATION_ROWS = [
    pytest.param(page, row, id=f"{page}: {row[0]}")
    for page in PAGES
    for row in rows_under(vendor_page(page), "option", "in the request")
]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, f"{path}.{name}" if path else name)
    else:
        yield path, value


@pytest.mark.parametrize("page, row", GENERATION_ROWS)
def test_an_option_goes_where_the_table_says(page: str, row: Row) -> None:
    option = row[0].partition(" for models")[0]
    models = codes(row[0])[1:] if " for models" in row[0] else ["any-model"]
    wanted = GENERATION[option]
    ((_, value),) = leaves(wanted)
    for name in models:
        provider, model = of(page), Model(name)
        plain = dict(leaves(provider.body(HELLO, model, GenerationOptions())))
        body = dict(leaves(provider.body(HELLO, model, GenerationOptions.coerce(wanted))))
        new = {path: given for path, given in body.items() if plain.get(path) != given}
        documented = codes(row[1])
        if documented == ["prompt_cache_key"]:
            assert set(new) == set(documented)  # its value is a digest
        else:
            assert new.get(documented[0]) in (value, True) if documented else new == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_option_and_kind_of_media_has_a_row(page: str) -> None:
    options = [row[0].partition(" for models")[0] for row in rows_under(vendor_page(page), "option", "in the request")]
    assert set(options) == set(GENERATION)
    rows = rows_under(vendor_page(page), "media", "as file or bytes")
    kinds = {Media.from_bytes(b"", mime_type=mime).kind for row in rows for mime in codes(row[0])}
    assert kinds == {"image", "audio", "video", "document"}


def test_finish_reasons_are_mapped_as_the_tables_say() -> None:
    documented: set[tuple[str, str]] = set()
    for page in PAGES:
        heads = [head for head, _ in tables(vendor_page(page)) if head[-1] == "ours"]
        rows = rows_under(vendor_page(page), heads[0][0], "ours")
        documented |= {(codes(row[0])[0], codes(row[1])[0]) for row in rows if not row[0].startswith(("any other", "none"))}
        assert rows[-1][0].startswith("any other")
        assert codes(rows[-1][1])[0] == "other"
    assert documented == set(reader.FINISH_REASONS.items())
    assert {ours for _, ours in documented} <= set(FINISH_REASONS)


# ----------------------------------------------------------------------------------------------- all of them


def test_the_options_of_a_provider_are_those_of_the_table_with_their_defaults() -> None:
    rows = rows_under(text_of("providers.md"), "option", "default", "meaning")
    documented = {codes(option)[0]: codes(default)[0] for option, default, _ in rows}
    parameters = list(inspect.signature(HttpProvider.__init__).parameters.values())[1:]
    assert documented == {one.name: repr(one.default) for one in parameters}


def test_the_statuses_that_are_tried_again_are_those_of_the_page() -> None:
    (listed,) = re.findall(r"the status is\s+one of ([\d,\s]+ or \d+)", text_of("providers.md"))
    assert {int(status) for status in re.findall(r"\d+", listed)} == set(failures.RETRYABLE)


def reply(*events: str) -> MemoryReply:
    return MemoryReply(200, {"content-type": "text/event-stream"}, [f"data: {event}\n\n".encode() for event in events])


#: what a vendor does
FAILING: dict[str, MemoryReply | TransportError] = {
    **{kind: TransportError("broken", kind) for kind in ("connect", "timeout", "closed", "tls", "protocol")},
    "cut": reply('{"choices": [{"delta": {"content": "half"}}]}'),
    "invalid_json": reply("not JSON"),
    "not_a_stream": MemoryReply(200, {"content-type": "application/json"}, b"{}"),
    "no_answer": reply("[DONE]"),
    "error": reply('{"choices": [{"finish_reason": "error"}]}'),
    "response_too_large": MemoryReply(200, {}, b"x" * 1001),
}
MISSING = {
    "missing_key": "groq/a-model",
    "missing_base_url": "local/a-model",
    "missing_resource": "azure/a-model",
    "missing_region": "bedrock/a-model",
    "missing_project": "vertex/a-model",
    "unknown_vendor": "nobody/a-model",
}


def code_rows() -> dict[str, Row]:
    rows = rows_under(text_of("providers.md"), "`code`", "what happened")
    return {code: row for row in rows for code in codes(row[0])}


def test_the_table_of_codes_lists_those_that_are_shown_here() -> None:
    assert set(code_rows()) == {*FAILING, *MISSING}


@pytest.mark.parametrize("code", FAILING)
def test_a_failure_has_the_code_in_the_table_and_is_retryable_as_it_says(code: str) -> None:
    provider = of("openai", transport=MemoryTransport(FAILING[code]), max_retries=0, max_response_bytes=1000)
    with pytest.raises(ProviderError) as raised:
        provider.call(HELLO, EVERYTHING, GenerationOptions(), lambda text: None)
    assert raised.value.code == code
    assert raised.value.retryable is code_rows()[code][1].endswith("; transient")


@pytest.mark.parametrize("code", MISSING)
def test_what_is_missing_has_the_code_of_the_table(code: str) -> None:
    with pytest.raises(ProviderError) as raised:
        resolve(MISSING[code])
    assert raised.value.code == pickle.loads(pickle.dumps(raised.value)).code == code  # also in another process
    assert isinstance(raised.value, ValueError)


#: what the streams of `vendor_wires` leave out
RARE = {
    "openai": [sse({"citations": ["x"], "search_results": [{}]}), *OpenAIWire().deltas({"refusal": "No."}, finish="stop")],
    "anthropic": vendor_wires.anthropic(
        {"type": "content_block_delta", "delta": {"type": "citations_delta", "citation": {}}}, stop="refusal",
        stop_details={"explanation": "No."}, usage={"output_tokens_details": {"thinking_tokens": 1}, "iterations": [{}]}),
    "gemini": vendor_wires.gemini(finish="OTHER", finishMessage="No.", continuationToken="x", groundingMetadata={"x": 1}),
}


def test_the_metadata_that_a_response_may_hold_is_in_the_tables() -> None:
    given: set[str] = set()
    for page, wire in ((page, WIRES[page]) for page in PAGES):
        turns = [Turn(["Hi"], reasoning=["Hm."], request_id="r-1", finish=finish) for finish in ("stop", "unheard of")]
        found = set[str]()
        for stream in (*map(wire.whole, turns), *([RARE[page]] if page in RARE else [])):
            head = {"content-type": wire.media_type, "x-request-id": "r-1"}
            provider = of(page, transport=MemoryTransport(MemoryReply(200, head, stream)))
            found |= set(provider.call(HELLO, EVERYTHING, GenerationOptions(), str).metadata)
        (documented,) = re.findall(r"`metadata`\s+may\s+contain\s+([^.]*)\.", vendor_page(page))
        elsewhere = {"finish_reason", "refusal", "request_id"}  # said in other places of the pages
        assert found - elsewhere == set(codes(documented)) - elsewhere, page
        given |= found
    documented = {key for row in rows_under(text_of("providers.md"), "key", "what it is") for key in codes(row[0])}
    assert given == documented - {"not_sent"}  # which the options decide


def test_the_addresses_and_versions_that_the_pages_name_are_those_of_the_adapters() -> None:
    for page in PAGES:
        assert f"`{of(page).base_url}`" in vendor_page(page)
    (version,) = of("anthropic").extra_headers.items()
    assert f"`{version[0]}: {version[1]}`" in vendor_page("anthropic")
    assert f"it is {anthropic.DEFAULT_MAX_TOKENS}" in vendor_page("anthropic")
    assert f"at least {anthropic.MIN_THINKING_BUDGET}" in vendor_page("anthropic")
