"""The pages of the docs are complete and consistent: the reference, the menu, the tables, the claims, the links."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from dataclasses import fields
from pathlib import Path
from posixpath import normpath

import pytest

from kernai import Agent, Result
from kernai.runs.run_request import RunOptions
from tests.test_imports import ORDER

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
REFERENCE = ROOT / "docs" / "reference"
NAMED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
NAV = re.compile(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", re.MULTILINE)
#: exported by two modules, but documented once
ELSEWHERE = {"kernai.middleware.Pause", "kernai.middleware.Stop"}


@pytest.mark.parametrize("module", [
    "kernai", "kernai.middleware", "kernai.testing", "kernai.viewer", "kernai_providers",
    pytest.param("kernai.mcp", marks=pytest.mark.mcp),
])
def test_each_public_name_is_in_the_reference_once(module: str) -> None:
    written = Counter(name for page in REFERENCE.glob("*.md") for name in NAMED.findall(page.read_text("utf-8")))
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__} - ELSEWHERE
    assert {name: written[name] for name in public} == dict.fromkeys(public, 1)
    assert {name for name in written if name.rpartition(".")[0] == module} == public


def test_each_page_is_in_the_menu_of_the_site_once() -> None:
    menu = Counter(NAV.findall((ROOT / "mkdocs.yml").read_text("utf-8")))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert menu == dict.fromkeys({*pages, "CHANGELOG.md", "examples/README.md"}, 1)


def test_the_menu_lists_the_guides_in_the_order_of_their_index() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    menu = NAV.findall(text[text.index("  - Guides:"):text.index("  - Reference:")])
    links = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "docs" / "guides" / "index.md").read_text("utf-8"))
    index = [normpath(f"guides/{link}").removeprefix("../") for link in links if "tutorial" not in link]
    assert ["guides/index.md", *index] == [page for page in menu if not page.startswith("providers/")]


def test_every_option_and_every_field_of_a_result_is_in_a_table_of_the_page_on_running() -> None:
    page = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    in_tables = {name for cell in re.findall(r"^\| ([^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)}
    named = {*inspect.signature(Agent.__init__).parameters, *RunOptions.__annotations__} - {"self", "unknown"}
    named |= {field.name for field in fields(Result)}
    assert named - in_tables == set()


BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
CLAIM = re.compile(r"^\| (?P<claim>.+) \| (?P<measured>.+) \| `(?P<command>python3 dev\.py .+)` \| (?P<day>.+) \|$", re.MULTILINE)
CLAIMED = re.compile(r"\*Measured:\*(?P<text>.*?)\[`(?P<command>[^`]+)`\]\(docs/benchmarks\.md#claims\)", re.DOTALL)
FIGURE = re.compile(r"\d[\d,.]*[ \u202f]?(?:µs|ms|seconds|minutes|%|[kMG]?B(?:/s)?\b|lines|times)")


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\b\d[\d,.]*\b", text))


def test_the_benchmarks_start_with_one_table_of_claims_each_with_a_command_and_a_date() -> None:
    first_table = BENCHMARKS[: BENCHMARKS.index("\n## How to measure\n")]
    rows = [line for line in first_table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(list(CLAIM.finditer(first_table))) >= 3
    for row in CLAIM.finditer(first_table):
        assert re.fullmatch(r"\d+ \w+ 20\d\d", row["day"]), row[0]


def test_each_figure_in_the_readme_is_in_the_table_of_claims_and_says_what_was_not_measured() -> None:
    known = {row["command"]: row["measured"] for row in CLAIM.finditer(BENCHMARKS)}
    claims = list(CLAIMED.finditer(README))
    assert len(claims) == 3
    for claim in claims:
        assert numbers(claim["text"].replace("SmolLM2", "")) <= numbers(known[claim["command"]]), claim["command"]
        assert "*Not measured:*" in claim["text"]
    text = CLAIMED.sub("", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    assert FIGURE.findall(text) == []


def test_the_claims_agree_with_the_tables() -> None:
    measured = BENCHMARKS[BENCHMARKS.index("\n### Framing\n"):]
    for row in CLAIM.finditer(BENCHMARKS):
        if row["command"].split()[-1] in ("framing", "dialects", "model"):
            assert row["command"] in measured
            assert numbers(row["measured"].replace("SmolLM2", "")) - {"135"} <= numbers(measured), row[0]


# -------------------------------------------------------------------------------- the map of modules, and links

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as links write them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_table_of_layers_has_a_row_for_each_package_and_module_in_order() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    layers = text[text.index("## Layers") : text.index("## kernai_providers")]
    assert re.findall(r"^\| `(\w+)` \|", layers, re.MULTILINE) == [one or "__init__" for one in ORDER]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_and_tables_of_a_page_work(page: Path) -> None:
    broken = re.findall(r"\n\n(\|.*)\n(?!\|-)", text := page.read_text(encoding="utf-8"))  # rows after a blank line
    for target, anchor in LINK.findall(text):
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert broken == []
