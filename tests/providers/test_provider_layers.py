"""Which module of `kernai_providers` may import which, and that the package needs the standard library alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "kernai_providers"

# Each layer may use itself and those above it in this list.
LAYERS = {
    "the seam": "transport request_checks families",
    "what came from outside": "failures stream_decoders",
    "transports": """
        network streamed_response http_transport memory_transport httpx_transport llama_transport
    """,
    "one turn": "native reader exchange performing",
    "adapters": "http_provider openai responses anthropic gemini ollama",
    "by name": "vendors __init__ prices",
}
RANK = {module: rank for rank, modules in enumerate(LAYERS.values()) for module in modules.split()}
MODULES = {path.stem: path for path in sorted(PACKAGE.glob("*.py"))}
FOREIGN = {"httpx_transport": {"httpx", "httpcore"}, "prices": {"genai_prices"}}
EVERY = pytest.mark.parametrize("module", MODULES)


def imports_of(module: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@EVERY
def test_a_module_imports_the_standard_library_and_kernai_only(module: str) -> None:
    roots = {name.partition(".")[0] for name in imports_of(module)}
    allowed = {*sys.stdlib_module_names, "kernai", "kernai_providers", *FOREIGN.get(module, ())}
    assert roots - allowed == set()


@EVERY
def test_a_module_imports_from_its_own_layer_and_those_above_it(module: str) -> None:
    assert module in RANK, f"give {module} its place in LAYERS"
    own = {name.partition(".")[2] for name in imports_of(module) if name.startswith("kernai_providers.")}
    assert {name for name in own if RANK[name] > RANK[module]} == set()


def test_the_table_names_what_exists_only() -> None:
    assert set(RANK) == set(MODULES)


@pytest.mark.process
def test_importing_the_package_loads_nothing_from_outside() -> None:
    code = "import sys; bare = set(sys.modules); import kernai_providers; print(*set(sys.modules) - bare)"
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded - {*sys.stdlib_module_names, "kernai", "kernai_providers"} == set()
