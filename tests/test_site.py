"""The site is complete: each public name has its place in the reference, and the whole builds without a warning."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from posixpath import normpath

import pytest

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
NAMED = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
NAV = re.compile(r"^ +- (?:[^:\n]+: )?([\w/-]+\.md)$", re.MULTILINE)
#: said in one place, though two modules name them
ELSEWHERE = {"kernai.middleware.Pause", "kernai.middleware.Stop"}


@pytest.mark.parametrize(
    "module",
    [
        "kernai", "kernai.middleware", "kernai.testing", "kernai.viewer", "kernai_providers",
        pytest.param("kernai.mcp", marks=pytest.mark.mcp),
    ],
)
def test_each_public_name_is_once_in_the_reference(module: str) -> None:
    written = Counter(name for page in REFERENCE.glob("*.md") for name in NAMED.findall(page.read_text("utf-8")))
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__} - ELSEWHERE
    assert {name: written[name] for name in public} == dict.fromkeys(public, 1)
    assert {name for name in written if name.rpartition(".")[0] == module} == public


def test_each_page_is_once_in_the_menu_of_the_site() -> None:
    menu = Counter(NAV.findall((ROOT / "mkdocs.yml").read_text("utf-8")))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert menu == dict.fromkeys({*pages, "CHANGELOG.md", "examples/README.md"}, 1)


def test_the_menu_lists_the_guides_in_the_order_of_their_index() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    menu = NAV.findall(text[text.index("  - Guides:"):text.index("  - Reference:")])
    links = re.findall(r"\]\(([\w./-]+)\)", (ROOT / "docs" / "guides" / "index.md").read_text("utf-8"))
    index = [normpath(f"guides/{link}").removeprefix("../") for link in links if "tutorial" not in link]
    assert ["guides/index.md", *index] == [page for page in menu if not page.startswith("providers/")]


def test_only_one_page_is_for_those_who_know_the_gem() -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in {"porting.md", "index.md"}]
    assert [path.name for path in pages if re.search(r"\b(?:gem|Ruby)\b", path.read_text("utf-8"))] == []
