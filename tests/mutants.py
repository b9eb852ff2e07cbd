"""Mutation testing: change one place in `src` at a time, and run the tests that cover it.

    python3 dev.py mutants --sample 300 --seed 7            a sample of all mutants
    python3 dev.py mutants --sample 50 kernai/loop          a sample of one package or module

Works on copies of the tree. The first run measures which test covers which line (minutes); that is kept under
`.cache/mutants` until a file of `src` or `tests` changes. Each mutant runs in a fork of this process, in which pytest
is loaded already, with the quickest tests first; a mutant that hangs counts as killed. mutmut, the nearest package,
samples nothing and replaces every function by a trampoline, which code that reads signatures does not survive.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import dataclasses
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "mutants"
PRELOADED = ("hypothesis", "pydantic", "httpx", "pytest_asyncio", "mcp", "jsonschema", "yaml")
MEASURED = "not process and not browser"  # what coverage sees, as in dev.py
PYTEST = [
    "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning",
    "-o", "faulthandler_timeout=900",  # coverage on a busy machine is slow
]
FIRST = 30  # tests that run before all the others of a mutant
FIRST_FILES = 3  # files these come from: loading a file takes longer than most of its tests
FEW = 10  # tests that run a line
BUDGET = 90.0  # seconds of further tests for one mutant, by their measured durations
SLACK = 30.0  # a mutant hangs if a test, or all tests, take this many seconds more than three times what was measured

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """`before` at bytes `start` to `end` of a file of `src`, replaced by `after`."""

    path: str
    line: int
    statement: int  # the first line of the statement around it
    start: int
    end: int
    before: str
    after: str

    @property
    def package(self) -> str:
        parts = self.path.split("/")[1:-1]
        return "/".join(parts[:2])

    def __str__(self) -> str:
        return f"{self.path}:{self.line}  {' '.join(self.before.split())[:90]}  ->  {' '.join(self.after.split())[:90]}"


# ----------------------------------------------------------------------------------------------------- mutants


def mutants_of(path: str, source: str) -> list[Mutant]:
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    data, found = source.encode(), []
    for node, statement in _mutable(ast.parse(source), 0):
        for after in _changes(node):
            start = offsets[node.lineno - 1] + node.col_offset
            end = offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
            found.append(Mutant(path, node.lineno, statement, start, end, data[start:end].decode(), after))
    return sorted(found, key=lambda one: (one.start, one.end))


def _mutable(node: ast.AST, statement: int) -> Iterator[tuple[Any, int]]:
    """Yield the nodes worth mutating: no annotations, no f-strings, no code that no program runs."""
    for field, child in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "bases", "type_comment"}:
            continue
        for one in child if isinstance(child, list) else [child]:
            if not isinstance(one, ast.AST) or _is_declaration(one):
                continue
            here = one.lineno if isinstance(one, ast.stmt) else statement
            yield one, here
            yield from _mutable(one, here)


def _is_declaration(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.FunctionDef(decorator_list=[ast.Name(id="overload" | "abstractmethod"), *_]):
            return True
        case ast.ClassDef(bases=bases):
            return any("Protocol" in ast.unparse(base) for base in bases)
    return False


def _changes(node: ast.AST) -> list[str]:
    match node:
        case ast.Compare(ops=[only]) if type(only) in SWAPPED:
            return [_with(node, ops=[SWAPPED[type(only)]()])]
        case ast.BoolOp(op=operator) | ast.BinOp(op=operator) if type(operator) in SWAPPED:
            return [_with(node, op=SWAPPED[type(operator)]())]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return [f"({ast.unparse(operand)})"]
        case ast.Constant(value=bool(value)):
            return [repr(not value)]
        case ast.Constant(value=int(value)):
            return [repr(value + 1)]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return [f"({ast.unparse(orelse)} if {ast.unparse(test)} else {ast.unparse(body)})"]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return ["return None"]
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Raise():
            return ["pass"]
        case ast.Continue():
            return ["break"]
        case ast.Break():
            return ["continue"]
    return []


def _with(node: ast.AST, **changed: Any) -> str:
    changed_node = copy.copy(node)
    for name, value in changed.items():
        setattr(changed_node, name, value)
    return f"({ast.unparse(changed_node)})"


# ------------------------------------------------------------------------------------------------------- tests


class Durations:
    """A pytest plugin that measures how long each test takes and notes which tests failed."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment]
        if report.failed:
            self.failed.add(report.nodeid)


def copied(to: Path) -> Path:
    """Copy the tree, without files that tools generated."""
    ignored = shutil.ignore_patterns(".git", ".venv*", ".cache", ".*_cache", ".hypothesis", "dist", "site", "logs", "*.db")
    return Path(shutil.copytree(ROOT, to, ignore=ignored))


def measured(workers: int) -> tuple[Path, dict[str, float]]:
    """Return the coverage data file and each test's duration in seconds; measure again if a file has changed."""
    files = sorted(path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
    digest = hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()[:16]
    kept, data = CACHE / digest / "seconds.json", CACHE / digest / "coverage"
    if not kept.is_file():
        print("measuring which test covers which line; minutes", flush=True)
        shutil.rmtree(CACHE, ignore_errors=True)
        kept.parent.mkdir(parents=True)
        with tempfile.TemporaryDirectory(prefix="kernai-mutants-") as folder:
            tree = copied(Path(folder) / "tree")
            options = ["-m", MEASURED, "-n", str(workers), "--dist", "worksteal", "--cov", "--cov-context=test", "--cov-report="]
            _wait(_forked(tree, options, kept, {"COVERAGE_FILE": str(data)}), None)
    seconds: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    print(f"{len(seconds):,} tests", flush=True)
    return data, seconds


def _forked(tree: Path, options: Sequence[str], kept: Path | None = None, extra: dict[str, str] | None = None) -> int:
    """Fork a process that runs pytest in a tree, and return its id. It exits with 0 if every test passed."""
    child = os.fork()
    if child:
        return child
    status = 3
    try:
        os.setpgid(0, 0)
        os.chdir(tree)
        os.environ.update({"PYTHONPATH": str(tree / "src"), **(extra or {})})
        log = os.open(tree / "pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        plugin = Durations()
        status = int(pytest.main([*PYTEST, "--rootdir", str(tree), *options], plugins=[plugin]))
        if kept:
            kept.write_text(json.dumps({k: v for k, v in plugin.seconds.items() if k not in plugin.failed}), encoding="utf-8")
    finally:
        os._exit(status)


def _wait(child: int, patience: float | None) -> int:
    """Return the exit status of a process, or -1 if it took longer than `patience` seconds and was killed."""
    until = time.monotonic() + patience if patience is not None else None
    while until is None or time.monotonic() < until:
        done, status = os.waitpid(child, 0 if until is None else os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -1


class Chooser:
    """Chooses of the tests that cover a mutant all if they are few, otherwise those of its package and module, the
    quickest, and the closest.

    First come those in the files with the most of them, and at the end the package's tests of processes, since coverage
    does not see what runs in another process.
    """

    def __init__(self, data: Path, seconds: dict[str, float]) -> None:
        from coverage import CoverageData

        self._data, self._seconds = CoverageData(str(data)), seconds
        self._data.read()
        self._files = {"src/" + path.rpartition("/src/")[2]: path for path in self._data.measured_files()}

    def tests(self, mutant: Mutant) -> list[str]:
        contexts = self._data.contexts_by_lineno(self._files.get(mutant.path, mutant.path))
        lines = Counter(one.rpartition("|")[0] for every in contexts.values() for one in every)
        here = contexts.get(mutant.line) or contexts.get(mutant.statement) or []
        covering, few = {one.rpartition("|")[0] for one in here}, set[str]()
        if 0 < len(here) < FEW:  # the line may run only at import or fill a cache, so any test of the file may notice
            few, covering = covering, set(lines)
        names = sorted(covering & set(self._seconds), key=self._seconds.__getitem__)
        closest = sorted(names, key=lines.__getitem__, reverse=True)
        folder = f"tests/{mutant.package.rpartition('/')[2].removeprefix('kernai_')}\\w*/"
        own = re.compile(rf"{folder}|tests/(\w+/)?test_{Path(mutant.path).stem}\.py")
        processes = re.compile(rf"{folder}test_\w*processes\.py")
        chosen = list(dict.fromkeys([
            *filter(few.__contains__, names), *filter(own.match, names), *self._within(BUDGET / 2, names),
            *self._within(BUDGET / 2, closest), *filter(processes.match, self._seconds),
        ]))
        files = {file for file, _ in Counter(name.partition("::")[0] for name in chosen).most_common(FIRST_FILES)}
        first = [name for name in chosen if name.partition("::")[0] in files][:FIRST]
        return [*first, *(name for name in chosen if name not in first)]

    def _within(self, seconds: float, names: list[str]) -> Iterator[str]:
        for name in names:
            seconds -= self._seconds[name]
            if seconds < 0:
                break
            yield name


_tree: Path  # this worker's copy of the source tree
_LATER = time.time()


def _prepare(folder: str) -> None:
    global _tree  # noqa: PLW0603 - each worker is a process
    _tree = copied(Path(folder) / f"tree-{os.getpid()}")


def verdict(job: tuple[int, Mutant, list[str], list[float]]) -> tuple[Mutant, str]:
    """Test one mutant and return its outcome: "killed", "survived" or "not covered"."""
    number, mutant, tests, seconds = job
    if not tests:
        return mutant, "not covered"
    path = _tree / mutant.path
    original, times = path.read_bytes(), path.stat()
    ends = ["-x", "-o", f"faulthandler_timeout={SLACK + 3 * max(seconds)}"]
    path.write_bytes(original[: mutant.start] + mutant.after.encode() + original[mutant.end :])
    # Python recognizes cached bytecode by the source's size and its time in whole seconds
    os.utime(path, (_LATER + number, _LATER + number))
    try:
        for part in (tests[:FIRST], tests[FIRST:]):
            if part and _wait(_forked(_tree, [*ends, *part]), SLACK + 3 * sum(seconds)) != 0:
                return mutant, "killed"
        return mutant, "survived"
    finally:
        path.write_bytes(original)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


# --------------------------------------------------------------------------------------------------------- main


def main(arguments: Sequence[str]) -> int:
    """Print the survivors and the score of each package."""
    parser = argparse.ArgumentParser(prog="dev.py mutants", description="Change src in one place at a time, and run its tests.")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="such as kernai/loop; everything if left out")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time")
    chosen = parser.parse_args(arguments)
    sources = {str(path.relative_to(ROOT)): path for path in sorted((ROOT / "src").rglob("*.py"))}
    wanted = tuple(f"src/{one.removeprefix('src/').strip('/')}" for one in chosen.packages) or ("src",)
    every = [
        mutant
        for name, path in sources.items() if name.startswith(wanted)
        for mutant in mutants_of(name, path.read_text(encoding="utf-8"))
    ]
    if not every:
        parser.error(f"there is nothing to change in {' '.join(wanted)}")
    sample = random.Random(chosen.seed).sample(every, min(chosen.sample, len(every)))
    print(f"{len(sample):,} of {len(every):,} mutants, seed {chosen.seed}", flush=True)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    data, seconds = measured(chosen.workers)
    chooser = Chooser(data, seconds)
    jobs = []
    for number, mutant in enumerate(sample, 1):
        tests = chooser.tests(mutant)
        jobs.append((number, mutant, tests, [seconds[test] for test in tests]))
    with tempfile.TemporaryDirectory(prefix="kernai-mutants-") as folder:
        pool = multiprocessing.get_context("fork").Pool(chosen.workers, _prepare, (folder,))
        with pool:
            report(pool.imap_unordered(verdict, jobs))
    return 0


def report(verdicts: Iterator[tuple[Mutant, str]]) -> None:
    """Print each survivor as it is found, then the scores."""
    tally: Counter[tuple[str, str]] = Counter()
    for mutant, what in verdicts:
        if what != "killed":
            print(f"{what}  {mutant}", flush=True)
        for package in (mutant.package, "all"):
            tally[package, what] += 1
    print(f"\n{'package':24} {'killed':>8} {'survived':>9} {'not covered':>12} {'score':>6}")
    packages = sorted({package for package, _ in tally} - {"all"})
    for package in (*packages, "all"):
        counts = [tally[package, what] for what in ("killed", "survived", "not covered")]
        print(f"{package:24} {counts[0]:8} {counts[1]:9} {counts[2]:12} {100 * counts[0] / sum(counts):5.0f} %")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
