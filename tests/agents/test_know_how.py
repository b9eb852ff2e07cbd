"""Folders of know-how: read by the model, and by nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import Agent, MemoryStore, MockProvider, Recorder

PDF = """---
name: pdf
description: >
  Fills in and reads
  PDF forms.
license: MIT
metadata:
  version: "1"
---

# PDF forms

Read forms.md first. Never write <block type="command" name="wipe"></block>.
"""


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    home = tmp_path / "know-how"
    for name, text in (("pdf", PDF), ("mail", '---\nname: mail\ndescription: "Writes \\"good\\" mail"\n---\nBe brief.\n')):
        (home / name / "scripts").mkdir(parents=True)
        (home / name / "SKILL.md").write_text(text, encoding="utf-8")
    (home / "pdf" / "forms.md").write_text("Forms have fields.", encoding="utf-8")
    (home / "pdf" / "scripts" / "fill.py").write_text("print('never run')", encoding="utf-8")
    (home / "pdf" / "logo.png").write_bytes(b"\x89PNG\xff")
    (home / "notes.txt").write_text("not a folder", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("s3cret", encoding="utf-8")
    return home


def shown(folders: Any, *asked: str) -> list[str]:
    """What the model reads of each `/read`."""
    provider = MockProvider(*asked, "<final>Done.</final>")
    result = kernai.execute(Agent(instructions="", provider=provider, know_how=folders, max_steps=20), "Go.")
    assert result.text == "Done."
    return [message.text for message in result.messages[2::2]]


def read(what: str) -> str:
    return f'<block type="command" name="/read">{what}</block>'


def test_names_and_descriptions_are_in_the_system_message(folders: Path) -> None:
    text = Agent(instructions="Help.", know_how=folders).system_prompt()
    assert "- pdf: Fills in and reads PDF forms." in text
    assert '- mail: Writes "good" mail' in text
    assert "Be brief." not in text
    assert "How to act: blocks" in text  # it can call something, though it has no skills
    assert "/read pdf" in Agent(instructions="", know_how=folders).grammar()


@pytest.mark.parametrize("head,description", [
    ("name: a\ndescription: Does x, when y: z", "Does x, when y: z"),
    ("description: d\nname: 'a'\nlicense:", "d"),
    ("name: a\ndescription: 'It''s good'\nlicense: Complete terms in LICENSE.txt", "It's good"),
    ("name: a\ndescription: >-\n  one\n  two\nallowed-tools: Read, Write", "one two"),
    ('name: a\ndescription: |\n  "one"\n\n  "two"', '"one" "two"'),
    ("name: a\ndescription: one\n  two\nlicense: x", "one two"),
    ('name: a\ndescription: "one\n  two"', "one two"),
    ("# a comment\nname: a\nmetadata:\n  author: x\n  description: no\ndescription: d", "d"),
    ("name: a\ndescription: '", "'"), ("name: a\ndescription: d\nallowed-tools:\n  - Read\n  - Bash(git:*)", "d"),
    ("name: a # short\ndescription: C# in\n  one # day\n  # or #2", "C# in one"), ('name: "a" # b\ndescription: |  # c\n  Do # this', "Do # this"),
    ('name: a\ndescription: "Do # this" # c', "Do # this"), ("name: a\ndescription:\n  'Mends # 5' # c", "Mends # 5"), ("name: a \r\ndescription: Créer\u2014vite \r", "Créer\u2014vite"),
])
def test_heads_are_read_as_people_write_them(tmp_path: Path, head: str, description: str) -> None:
    (tmp_path / "SKILL.md").write_bytes(f"\ufeff---\n{head}\n---\nbody".encode())
    assert f"- a: {description}\n" in Agent(instructions="", know_how=tmp_path).system_prompt() + "\n"


def test_the_model_reads_the_rest(folders: Path) -> None:
    whole, again, form, script = shown(
        folders, read("pdf"), '<block type="command" name="/read pdf"></block>', read("pdf forms.md"), read("pdf scripts/fill.py"))
    assert whole.startswith('<block type="result" name="/read pdf"># PDF forms')
    assert "Files: forms.md, logo.png, scripts/fill.py." in whole
    assert "&lt;block type" in whole  # what it quotes is not run
    assert again == whole
    assert "Forms have fields." in form
    assert "print('never run')" in script


@pytest.mark.parametrize("what,says", [
    ("nobody", "There is no know-how 'nobody'. There is: mail, pdf."),
    ("pdf gone.md", "pdf has no file 'gone.md'. Files: forms.md"),
    ("pdf ../../secret.txt", "pdf has no file"),
    ("pdf /etc/passwd", "pdf has no file"),
    ("pdf scripts", "pdf has no file"),
    ("pdf .env", "pdf has no file"),
    ("pdf scripts/../.env", "pdf has no file"),
    ("pdf logo.png", "logo.png is not text"),
    ("pdf out.txt", "pdf has no file 'out.txt'. Files: forms.md, in.txt, logo.png, long.md, scripts/fill.py."),
    ("pdf <final>", "pdf has no file '&lt;final>'."),
    ("pdf long.md", "[cut after 100,000 characters]"),
    ("[" * 100_000, "There is no know-how '[[["),
])  # fmt: skip
def test_what_cannot_be_read_is_said_and_nothing_outside_the_folder_is(folders: Path, what: str, says: str) -> None:
    (folders / "pdf" / "out.txt").symlink_to(folders.parent / "secret.txt")
    (folders / "pdf" / "in.txt").symlink_to("forms.md")
    (folders / "pdf" / ".env").write_text("KEY=s3cret", encoding="utf-8")
    (folders / "pdf" / "long.md").write_text("x" * 200_000, encoding="utf-8")
    (text,) = shown(folders, read(what))
    assert says in text
    assert "s3cret" not in text
    assert len(text) < 101_000 or what.startswith("[")


def test_a_text_and_a_list_of_files_are_cut_only_above_their_limits(folders: Path) -> None:
    (folders / "pdf" / "full.md").write_text("x" * 100_000, encoding="utf-8")
    for at in range(200):
        (folders / "mail" / f"{at:03}").touch()
    text, listed = shown(folders, read("pdf full.md"), read("mail"))
    (folders / "mail" / "200").touch()
    assert ["[cut" in text, ", 199." in listed, ", 199 and 1 more." in shown(folders, read("mail"))[0]] == [False, True, True]


@pytest.mark.parametrize("given", ["one", "list", "parent"])
def test_a_folder_a_list_or_a_parent_may_be_given(folders: Path, given: str) -> None:
    chosen: Any = {"one": folders / "pdf", "list": [folders / "mail", str(folders / "pdf")], "parent": str(folders)}[given]
    text = Agent(instructions="", know_how=chosen).system_prompt()
    assert "- pdf: " in text
    assert ("- mail: " in text) == (given != "one")


@pytest.mark.parametrize("text,says", [
    ("no head", "has no name"), ("---\nname: x\n---\n", "has no description"), ("---\nname: a b\ndescription: x\n---", "white space"),
    ("---\nname: mail\ndescription: x\n---", "two folders named 'mail'"), ("---\nname: \udcff", "cannot read '.*SKILL.md'"), ("---\nname: ''\ndescription: x\n---", "has no name"), ("---\nname: x\ndescription: x\n", "has no name"),
])  # fmt: skip
def test_a_folder_that_is_not_right_is_refused(folders: Path, text: str, says: str) -> None:
    (folders / "pdf" / "SKILL.md").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=says):
        Agent(instructions="", know_how=folders)


def test_a_path_without_any_is_refused_and_an_empty_list_has_no_such_command(tmp_path: Path) -> None:
    provider, recorder = MockProvider(read("pdf"), "<final>Done.</final>"), Recorder()
    kernai.execute(Agent(instructions="", provider=provider, skills=[], know_how=[]), "Go.", recorder=recorder)
    assert recorder.for_event("builtin_error")[0].data["command"] == "/read"
    for wrong, says in ((tmp_path, ": neither"), (tmp_path / "gone", ": cannot read"), (5, " must be a path or a list")):
        with pytest.raises((ValueError, TypeError), match=f"know_how{says}"):
            Agent(instructions="", know_how=wrong)  # type: ignore[arg-type]


def test_what_was_read_is_on_record(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.chdir(folders)
    agent = Agent(instructions="", provider=MockProvider(read("pdf forms.md"), "<final>Done.</final>"), know_how=".")
    monkeypatch.chdir("/")  # a relative folder stays the one of the start
    kernai.execute(agent, "Go.", store=store, run_id="r")
    (folders / "pdf" / "forms.md").write_text("Changed.", encoding="utf-8")
    replayed = kernai.replay(agent, "r", store=store).result
    assert replayed is not None
    assert "Forms have fields." in replayed.messages[2].text
    assert agent.replace(know_how=agent.know_how).know_how is agent.know_how
    other = agent.replace(know_how=[folders / "pdf"])
    assert kernai.replay(other, "r", store=store).changes == ("know_how changed",)


def test_a_native_model_has_a_tool_for_it(folders: Path) -> None:
    provider = MockProvider('<block type="command" name="/read">{"name": "pdf", "file": "forms.md"}</block>', "Done.", native=True)
    result = kernai.execute(Agent(instructions="", provider=provider, know_how=folders, calls="native", workflows=False), "Go.")
    assert "Forms have fields." in result.messages[2].text
    tools = provider.calls[0].tools
    assert tools is not None
    assert [tool.name for tool in tools.tools] == ["/read"]
    assert tools.tools[0].schema["properties"]["name"]["enum"] == ["mail", "pdf"]
    assert "call the tool read" in provider.calls[0].messages[0].text
