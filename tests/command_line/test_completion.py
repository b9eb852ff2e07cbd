"""`kernai completion`: the scripts, asked by the shells themselves."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from kernai.command_line import main
from kernai.command_line.program import SUMMARIES, command_of
from tests.command_line.conftest import Here

BASH = """
source ./script
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _kernai 2> /dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "source ./script; complete -C {line}"
#: what is typed, and what completes it
TYPED = {
    "kernai re": ["resume", "replay"],
    "kernai run --mo": ["--model", "--model-capabilities"],
    "kernai chat --model an": ["anthropic/"],
    "kernai resume agent.py --in-flight ''": ["fail", "skip", "retry"],
    "kernai completion ''": ["bash", "fish", "zsh"],
    "kernai doctor --js": ["--json"],
}


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize("line", TYPED)
def test_a_shell_completes(here: Here, tmp_path: Path, shell: str, line: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(here("completion", shell, cwd=tmp_path).stdout)
    asked = (BASH.format(words=line) if shell == "bash" else FISH.format(line=shlex.quote(line.removesuffix("''"))))
    done = subprocess.run([shell, "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert sorted(found.partition("\t")[0] for found in done.stdout.splitlines()) == sorted(TYPED[line])


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_every_command_and_option_and_its_shell_can_read_it(here: Here, tmp_path: Path, shell: str) -> None:
    script = here("completion", shell, cwd=tmp_path).stdout
    for command in SUMMARIES:
        assert re.search(rf"\b{command}\b", script)
        for option in command_of(command)[1]._option_string_actions:
            assert option in script or f"-l {option[2:]} " in script or f"-s {option[1:]} " in script
    assert "SUPPRESS" not in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


def test_fish_reads_each_description_as_it_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    described = {shlex.split(line)[-1] for line in capsys.readouterr().out.splitlines()}
    assert {*SUMMARIES.values(), "use this model instead of the agent's own"} <= described
