"""Skills loaded from files: private modules, atomic reloads, errors with file and line."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kernai import KernaiError, Skill, SkillRegistry, skills
from kernai.testing.contracts import at_once

HEAD = "from __future__ import annotations\nfrom kernai import skill\n"


def put(path: Path, body: str) -> Path:
    path.write_text(HEAD + body, encoding="utf-8")
    return path


def write(path: Path, **answers: object) -> Path:
    """Write a file with one skill for each name, which returns the given answer."""
    body = "".join(f"@skill\ndef {name}():\n    return {answer!r}\n\n" for name, answer in answers.items())
    return put(path, body)


def names(registry: SkillRegistry) -> list[str]:
    return [one.name for one in registry.all()]


def answer(registry: SkillRegistry, name: str) -> object:
    found = registry.find(name)
    assert found is not None
    return found.call({})


@pytest.fixture
def registry() -> SkillRegistry:
    return SkillRegistry()


# -------------------------------------------------------------------------------------------------------- loading


def test_the_skills_of_all_matching_files_are_registered_in_order(registry: SkillRegistry, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "b.py", two=2, three=3)
    write(tmp_path / "a.py", one=1)
    write(tmp_path / "deep" / "c.py", four=4)
    (tmp_path / "notes.txt").write_text("not Python")
    loaded = registry.load_from(tmp_path / "**" / "*.py")
    assert [one.name for one in loaded] == ["one", "two", "three", "four"]
    assert names(registry) == ["one", "two", "three", "four"]
    assert answer(registry, "four") == 4


def test_a_loaded_module_has_a_private_name_and_the_search_path_is_unchanged(registry: SkillRegistry, tmp_path: Path) -> None:
    file = put(tmp_path / "json.py", "@skill\ndef one(): return __name__, __file__\n")
    path, modules = list(sys.path), set(sys.modules)
    registry.load_from(file)
    found: Any = answer(registry, "one")
    name, own_file = found
    assert name.startswith("_kernai_skill_file_")
    assert own_file == str(file)
    assert sys.path == path
    assert {one for one in set(sys.modules) - modules if not one.startswith("kernai.")} == {name}
    assert not (tmp_path / "__pycache__").exists()


def test_types_defined_in_the_file_can_be_used_in_annotations(registry: SkillRegistry, tmp_path: Path) -> None:
    types = "from dataclasses import dataclass\n@dataclass\nclass Item:\n    n: int\n    more: list[Item]\n"
    [take] = registry.load_from(put(tmp_path / "a.py", types + "@skill\ndef take(item: Item) -> int: return item.n\n"))
    assert take.call({"item": {"n": 5, "more": []}}) == 5


def test_a_file_is_compiled_as_it_says_itself(registry: SkillRegistry, tmp_path: Path) -> None:
    source = "# -*- coding: latin-1 -*-\nfrom kernai import skill\n@skill\ndef one(n: int = 1): return 'é'\n"
    (tmp_path / "a.py").write_bytes(source.encode("latin-1"))
    [one] = registry.load_from(tmp_path / "a.py")
    assert answer(registry, "one") == "é"
    assert one.function.__annotations__ == {"n": int}, "annotations are only postponed if the file says so"


@pytest.mark.parametrize("pattern, said", [("nothing/*.py", "py'$"), ("*.py", "py'$"), ("folder.py", r"; name the files in the folder: .*/folder.py/\*.py$")])
def test_a_pattern_that_matches_no_file_is_an_error(registry: SkillRegistry, tmp_path: Path, pattern: str, said: str) -> None:
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(KernaiError, match=f"no skill files match .*{said}"):
        registry.load_from(tmp_path / pattern)


# --------------------------------------------------------------------------------------------------------- errors

BROKEN = [
    ("def oops(:\n", 3, "SyntaxError: "),
    ("\n\nraise RuntimeError('no')\n", 5, "RuntimeError: no"),
    ("def f():\n    return 1 / 0\nf()\n", 4, "ZeroDivisionError: division by zero"),
    ("import json\njson.loads('{')\n", 4, "JSONDecodeError"),
    ("raise SystemExit(3)\n", 3, "SystemExit: 3"),
    ("@skill\ndef bad(*args): ...\n", 3, "TypeError: skill 'bad': parameter '*args'"),
    ("raise RuntimeError\n", 3, "3: RuntimeError"),
    ("@skill\ndef one(): ...\n", None, "b.py: KernaiError: it defines skill 'one', as "),
]


@pytest.mark.parametrize("body, line, said", BROKEN)
def test_a_file_that_fails_is_an_error_with_its_line_and_nothing_is_registered(
    registry: SkillRegistry, tmp_path: Path, body: str, line: int | None, said: str
) -> None:
    write(tmp_path / "a.py", one=1)
    put(tmp_path / "b.py", body)
    modules, version = set(sys.modules), registry.version
    with pytest.raises(KernaiError) as caught:
        registry.load_from(tmp_path / "*.py")
    assert str(caught.value).startswith(f"{tmp_path / 'b.py'}:{line}: " if line else f"{tmp_path / 'b.py'}: ")
    assert said in str(caught.value)
    assert (registry.all(), registry.version) == ([], version)
    assert registry.reload() == [], "it is not remembered"
    (tmp_path / "b.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        registry.load_from(tmp_path / "*.py")
    assert registry.all() == []
    assert {name for name in set(sys.modules) - modules if name.startswith("_kernai")} == set()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(registry: SkillRegistry, tmp_path: Path) -> None:
    write(tmp_path / "a.py", one=1).chmod(0)
    with pytest.raises(KernaiError, match=r"a.py: PermissionError"):
        registry.load_from(tmp_path / "a.py")


# ------------------------------------------------------------------------------------------------------- reloading


def test_a_reload_follows_changed_new_moved_and_deleted_skills_and_files(registry: SkillRegistry, tmp_path: Path) -> None:
    write(tmp_path / "a.py", kept=1, changed=1, gone=1, moving=1, replaced=1)
    write(tmp_path / "b.py", with_file=1)
    registry.load_from(tmp_path / "*.py")
    registry.load_from(tmp_path / "a.py")  # the other file stays known
    by_hand, replaced = (registry.register(Skill(name, execute=lambda: "mine")) for name in ("by_hand", "replaced"))
    write(tmp_path / "a.py", kept=1, changed=2, new=2)
    (tmp_path / "b.py").unlink()
    write(tmp_path / "c.py", new_file=3, moving=2)
    registry.reload()
    assert names(registry) == ["kept", "changed", "moving", "replaced", "by_hand", "new", "new_file"]
    assert (answer(registry, "changed"), answer(registry, "moving")) == (2, 2)
    assert (registry.find("by_hand"), registry.find("replaced")) == (by_hand, replaced)
    for file in tmp_path.glob("*.py"):
        file.unlink()
    with pytest.raises(KernaiError, match="no skill files match"):
        registry.reload()
    assert len(registry.all()) == 7


@pytest.mark.parametrize("broken", ["def oops(:", "raise RuntimeError('no')", "raise type('E', (Exception,), {'__str__': id})"])
def test_a_reload_that_fails_leaves_every_old_skill_in_place(registry: SkillRegistry, tmp_path: Path, broken: str) -> None:
    write(tmp_path / "a.py", one=1)
    write(tmp_path / "b.py", two=1)
    registry.load_from(tmp_path / "*.py")
    before, version = registry.all(), registry.version
    write(tmp_path / "a.py", one=2, extra=2)
    (tmp_path / "b.py").write_text(broken, encoding="utf-8")
    with pytest.raises(KernaiError, match=r"b.py:1: "):
        registry.reload()
    assert (registry.all(), registry.version) == (before, version)
    assert [answer(registry, name) for name in ("one", "two")] == [1, 1]
    write(tmp_path / "b.py", two=2)
    registry.reload()
    assert [answer(registry, name) for name in ("one", "two", "extra")] == [2, 2, 2]


def test_a_pattern_loaded_twice_is_reloaded_once(registry: SkillRegistry, tmp_path: Path) -> None:
    counter = tmp_path / "count"
    counter.write_text("")
    count = f"with open({str(counter)!r}, 'a') as file:\n    file.write('x')\n"
    put(tmp_path / "a.py", count + "@skill\ndef one(): ...\n")
    registry.load_from(tmp_path / "*.py")
    registry.load_from(tmp_path / "*.py")
    registry.load_from(tmp_path / "a.py")
    assert counter.read_text() == "xxx"
    registry.reload()
    assert counter.read_text() == "xxxx"
    assert names(registry) == ["one"]


def test_a_skill_of_a_module_that_a_file_imports_survives_a_reload(
    registry: SkillRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    write(library / "shared_skills_for_this_test.py", shared=1)
    monkeypatch.syspath_prepend(str(library))
    registry.load_from(put(tmp_path / "a.py", "import shared_skills_for_this_test\n@skill\ndef own(): ...\n"))
    assert sorted(names(registry)) == ["own", "shared"]
    registry.reload()  # the imported module is not executed again
    assert sorted(names(registry)) == ["own", "shared"]
    monkeypatch.delitem(sys.modules, "shared_skills_for_this_test")


def test_a_reload_also_of_a_restored_snapshot_looks_in_the_first_folder_and_releases_modules_whose_skills_still_run(
    registry: SkillRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.py", one=1)
    monkeypatch.chdir(tmp_path)
    [old] = registry.load_from("*.py")
    monkeypatch.chdir("/")
    snapshot = registry.snapshot()
    registry.reset()
    assert registry.reload() == []
    registry.restore(snapshot)
    write(tmp_path / "a.py", one=2)
    [current] = registry.reload()
    assert (old.call({}), current.call({}), registry.all()) == (1, 2, [current])
    assert [one.__module__ in sys.modules for one in (old, current)] == [False, True]


# --------------------------------------------------------------------------------------------------------- threads


def test_registries_loading_at_the_same_time_each_get_their_own_skills(tmp_path: Path) -> None:
    count = 6
    barrier = threading.Barrier(count)
    registries = [SkillRegistry() for _ in range(count)]
    for number in range(count):
        # the barrier is between two skills of each file, so all loads are half done at the same time
        first = "import sys\n@skill\ndef first(): ...\nsys.kernai_test_barrier.wait()\n"
        put(tmp_path / f"{number}.py", f"{first}@skill\ndef own_{number}(): ...\n")

    module: Any = sys
    module.kernai_test_barrier = barrier
    try:
        assert at_once(lambda number: registries[number].load_from(tmp_path / f"{number}.py"), count) == []
    finally:
        del module.kernai_test_barrier
    assert [names(one) for one in registries] == [["first", f"own_{number}"] for number in range(count)]
    assert skills.all() == []


@pytest.mark.slow
def test_readers_see_either_the_old_skills_or_the_new_ones(registry: SkillRegistry, tmp_path: Path) -> None:
    def write_all(value: int) -> None:
        for file in "abc":
            write(tmp_path / f"{file}.py", **{f"{file}1": value, f"{file}2": value})

    write_all(0)
    registry.load_from(tmp_path / "*.py")
    done = threading.Event()
    mixtures: list[set[object]] = []

    def read() -> None:
        while not done.is_set():
            values = {one.call({}) for one in registry.all()}
            if len(values) != 1:
                mixtures.append(values)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for value in range(1, 8):
        write_all(value)
        registry.reload()
    done.set()
    for reader in readers:
        reader.join()
    assert mixtures == []


def test_a_skill_that_a_file_defines_after_loading_is_registered_globally(registry: SkillRegistry, tmp_path: Path) -> None:
    define = "def define():\n    @skill\n    def late(): ...\n"
    registry.load_from(put(tmp_path / "a.py", define + "@skill\ndef give(): return define()\n"))
    answer(registry, "give")
    assert skills.find("late") is not None
    assert names(registry) == ["give"]


def test_names_missing_in_the_module_of_a_type_resolve_in_the_module_of_the_skill(
    registry: SkillRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "types_for_this_test.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from nowhere import Level\n@dataclass\nclass Item:\n    level: Level\n", "utf-8",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    use = "import types_for_this_test as t\n@skill\ndef take(item: t.Item): return item.level\n"
    file = tmp_path / "a.py"
    [take] = registry.load_from(put(file, "from typing import Literal\nLevel = Literal['low']\n" + use))
    assert take.call({"item": {"level": "low"}}) == "low"
    put(file, use)
    with pytest.raises(KernaiError, match=r"a.py:4: TypeError.*the fields of Item cannot be resolved: name 'Level'"):
        registry.reload()
    monkeypatch.delitem(sys.modules, "types_for_this_test")


def test_a_file_may_load_others_while_it_is_loaded(registry: SkillRegistry, tmp_path: Path) -> None:
    inner = write(tmp_path / "b.py", inner=1)
    load = f"from kernai import skills\nskills.load_from({str(inner)!r})\n"
    skills.load_from(put(tmp_path / "a.py", load + "@skill\ndef outer(): ...\n"))
    assert sorted(names(skills)) == ["inner", "outer"]
