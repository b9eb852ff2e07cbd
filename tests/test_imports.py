"""What `import kernai` may load, and which module may import which."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SRC / "kernai"

# The packages and top-level modules of kernai. Each may import itself and those before it, never those after it.
ORDER = (
    "errors", "interrupts", "_util", "jsonio", "values", "events", "blocks", "recording", "inputs", "registry", "grammars",
    "agents", "loop", "middleware", "durable", "drivers", "recording_file", "runs",
    "",  # kernai/__init__.py: only the public names
    "testing", "mock", "mcp", "otel", "viewer", "postgres", "command_line", "__main__",
)
STANDARD = {*sys.stdlib_module_names, "annotationlib"}  # which came with Python 3.14
#: the adapters, and the third-party packages that each may import; each adapter has its own extra
FOREIGN = {
    "mcp": {
        "mcp", "mcp_types", "anyio", "httpx2", "pydantic", "starlette", "uvicorn", "yaml",
        "jsonschema", "jsonschema_specifications", "referencing",
    },
    "otel": {"opentelemetry"},
    # no extra: pytest itself loads the module that needs it
    "testing": {"pytest"},
    # no extra: the progress bar uses whichever is installed, and is plain text without them
    "runs": {"tqdm", "rich"},
    "postgres": {"psycopg", "psycopg_pool", "procrastinate"},
    # no extra: they are in the same wheel
    "command_line": {"kernai_providers"},
}
PROVIDERS = SRC / "kernai_providers"
#: the same for the modules of `kernai_providers`: each layer may import itself and those above it in this list
PROVIDER_LAYERS = (
    "transport request_checks",
    "failures",
    "network http_transport httpx_transport in_process",
    "native reader exchange",
    "http_provider openai anthropic gemini ollama",
    "vendors __init__ prices",
)
PROVIDERS_FOREIGN = {"httpx_transport": {"httpx", "httpcore"}, "prices": {"genai_prices"}}

# The only imports that point upward, with their reasons; those of the core are made inside functions.
UPWARD = {
    ("agents.agent", "runs.running"): "an agent's skill that is called outside of a run starts one",
    ("agents.agent", "runs.run_request"): "the error for an option of a run that an agent does not have",
}

# Slow or large modules, imported inside the functions that need them. `inspect` is an exception: `dataclasses` loads
# it on current Pythons, so only our own imports can be forbidden.
LAZY = {
    "asyncio": "a synchronous program needs no event loop; 20 ms",
    "concurrent.futures": "only workflows and parallel skills have a pool",
    "ctypes": "loads a shared library",
    "email": "drags in the whole of MIME",
    "http": "the core speaks no protocol",
    "importlib.metadata": "the version is a constant",
    "inspect": "only the definition of a skill looks at signatures",
    "multiprocessing": "workers are threads or tasks",
    "pathlib": "9 ms with what it drags in; paths are taken as os.PathLike",
    "socket": "the core reaches nothing",
    "sqlite3": "stores are adapters",
    "ssl": "20 ms, and the core reaches nothing",
    "subprocess": "the core starts nothing",
    "tempfile": "the core leaves no files behind",
    "unittest": "a test double is no test",
    "urllib": "only a media URL is ever taken apart",
    "xml": "the block grammar is not XML",
}

ON_DEMAND = {
    "kernai.drivers.asyncio_driver": "loaded by the first asynchronous run",
    "kernai.durable": "only a run that outlives its process has a store",
    "kernai.command_line": "the program `kernai`",
    "kernai.mcp": "an adapter, never imported by the core",
    "kernai.postgres": "an adapter, never imported by the core",
    "kernai.viewer": "for looking at a run, never imported by one",
    "kernai_providers": "another package, which builds on this one",
}


def module_name(path: Path) -> str:
    """`""` for the package itself, `mock.provider` for kernai/testing/mock_provider.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def statements(tree: ast.AST, *, inside_functions: bool) -> Iterator[ast.AST]:
    """Yield the nodes that run at import time, with `inside_functions` all that ever run. Type-only imports do not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        if inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from statements(node, inside_functions=inside_functions)


@cache  # three tests need the imports of all modules
def imported_names(module: str, *, inside_functions: bool = True) -> frozenset[tuple[str, int]]:
    """The absolute dotted names that a module imports, each with its line."""
    path = MODULES[module]
    package = ["kernai", *path.relative_to(PACKAGE).parts[:-1]]
    found: set[tuple[str, int]] = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8")), inside_functions=inside_functions):
        if isinstance(node, ast.Import):
            found |= {(alias.name, node.lineno) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found |= {(f"{origin}.{alias.name}", node.lineno) for alias in node.names}
    return frozenset(found)


def own_imports(module: str) -> Iterator[tuple[str, int]]:
    """The modules of kernai that a module imports: `from kernai.blocks.block import Block` is `block`."""
    for name, line in imported_names(module):
        if name.partition(".")[0] == "kernai":
            rest = name.removeprefix("kernai").removeprefix(".")
            yield (rest if rest in MODULES else rest.rpartition(".")[0]), line


def run_fresh(code: str) -> str:
    """Run code in a new process, with third-party packages installed, and return what it printed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV_"))}
    environment["PYTHONPATH"] = str(SRC)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def loaded_by_import() -> set[str]:
    """The modules that `import kernai` loads in a bare interpreter."""
    code = "import sys; bare = set(sys.modules); import kernai; print(*sorted(set(sys.modules) - bare))"
    return set(run_fresh(code).split())


def test_importing_kernai_loads_only_itself_and_the_standard_library(loaded_by_import: set[str]) -> None:
    foreign = {name for name in loaded_by_import if name.partition(".")[0] not in {*sys.stdlib_module_names, "kernai"}}
    assert foreign == set()


@pytest.mark.parametrize("module", sorted({*LAZY, *ON_DEMAND} - {"inspect"}))
def test_importing_kernai_does_not_load(loaded_by_import: set[str], module: str) -> None:
    loaded = {name for name in loaded_by_import if name == module or name.startswith(module + ".")}
    assert loaded == set(), LAZY.get(module) or ON_DEMAND[module]


def test_modules_that_are_always_loaded_import_slow_modules_only_inside_functions(loaded_by_import: set[str]) -> None:
    always = [module for module in MODULES if f"kernai.{module}".removesuffix(".") in loaded_by_import]
    slow = [
        f"{module}:{line} imports {name} at its top: {LAZY[lazy]}"
        for module in always
        for name, line in imported_names(module, inside_functions=False)
        for lazy in LAZY
        if f"{name}.".startswith(f"{lazy}.")
    ]
    assert slow == []
    assert len(always) > 50  # otherwise the set was read wrong and nothing was checked


def test_the_core_imports_only_the_standard_library_and_kernai() -> None:
    foreign = [
        f"{module}:{line} imports {name}"
        for module in MODULES
        for name, line in imported_names(module)
        if name.partition(".")[0] not in {*STANDARD, "kernai", *FOREIGN.get(package_of(module), ())}
    ]
    assert foreign == []


def package_of(module: str) -> str:
    return module.partition(".")[0]


def test_every_package_and_top_level_module_has_a_place_in_the_order_of_layers() -> None:
    assert {package_of(module) for module in MODULES} == set(ORDER)


def test_each_package_imports_only_itself_and_those_before_it() -> None:
    rank = {package: at for at, package in enumerate(ORDER)}
    upward = {
        (module, name): f"{module}:{line} imports {name}, which is a layer above it"
        for module in MODULES
        for name, line in own_imports(module)
        if rank[package_of(name)] > rank[package_of(module)]
    }
    assert [text for place, text in upward.items() if place not in UPWARD] == []
    assert [place for place in UPWARD if place not in upward] == []


def test_the_provider_modules_import_only_their_own_layer_those_above_it_and_the_standard_library() -> None:
    rank = {module: at for at, layer in enumerate(PROVIDER_LAYERS) for module in layer.split()}
    paths = {path.stem: path for path in PROVIDERS.glob("*.py")}
    assert rank.keys() == paths.keys(), "give each module its place in PROVIDER_LAYERS"
    wrong = []
    for module, path in paths.items():
        allowed = {*sys.stdlib_module_names, "kernai", *PROVIDERS_FOREIGN.get(module, ())}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for package, _, inner in (name.partition(".") for name in names):
                own = package == "kernai_providers"
                if rank[inner or "__init__"] > rank[module] if own else package not in allowed:
                    wrong.append(f"{module} imports {package}.{inner}")
    assert wrong == []


@pytest.mark.process
def test_importing_the_providers_loads_only_kernai_and_the_standard_library() -> None:
    loaded = run_fresh("import sys; bare = set(sys.modules); import kernai_providers; print(*set(sys.modules) - bare)")
    foreign = {name.partition(".")[0] for name in loaded.split()} - sys.stdlib_module_names
    assert foreign == {"kernai", "kernai_providers"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: {name for name, _ in own_imports(module) if (module, name) not in UPWARD} for module in MODULES}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail("a circle of imports: " + " -> ".join(error.args[1]))


def test_no_module_has_the_name_of_an_export() -> None:
    import kernai

    words = {word for module in MODULES for word in module.split(".")}
    assert words & set(kernai.__all__) == set()


def test_every_export_exists() -> None:
    import kernai

    assert len(kernai.__all__) == len(set(kernai.__all__))
    assert [name for name in kernai.__all__ if not hasattr(kernai, name)] == []


if TYPE_CHECKING:  # misspelt: `dev.py types` fails where a type checker does not notice
    from kernai import Agnet  # type: ignore[attr-defined] # noqa: F401
    from kernai.mcp import Adaptor  # type: ignore[attr-defined] # noqa: F401
