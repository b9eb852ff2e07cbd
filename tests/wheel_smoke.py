"""Run by `dev.py wheel` with `python -I`, in an environment that holds the built wheel and nothing else."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from importlib import import_module
from importlib.metadata import requires, version
from pathlib import Path

AGENT = """
import kernai

provider = kernai.MockProvider("<command name='/skills'></command>", "<final>There are none.</final>")
agent = kernai.Agent(instructions="Answer.", provider=provider)
"""


def try_the_command_line(scripts: Path) -> None:
    """Run an agent with the installed program, and make a page of what it recorded."""
    Path("agent.py").write_text(AGENT)
    program = str(scripts / "kernai")
    for arguments, shown in (
        (["run", "agent.py", "Which skills are there?", "--record", "run.jsonl"], "There are none."),
        (["view", "run.jsonl", "-o", "run.html"], "run.html"),
    ):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == shown, done.stdout
    page = Path("run.html").read_text(encoding="utf-8")
    assert "There are none." in page, "the page does not hold the run"
    assert "Content-Security-Policy" in page, "the page has no policy"


def main() -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    bare = set(sys.modules)
    import kernai

    package = Path(kernai.__file__).parent
    assert package.parent == site_packages, f"imported from {package}, not from the wheel"
    assert version("kernai") == kernai.__version__, f"the wheel says {version('kernai')}, the code {kernai.__version__}"
    runtime = [requirement for requirement in requires("kernai") or [] if "extra ==" not in requirement]
    assert not runtime, f"runtime dependencies: {runtime}"

    @kernai.skill(register=False)
    def double(number: int) -> str:
        """Double a number."""
        return str(number * 2)

    provider = kernai.MockProvider('<command name="double">21</command>', "<final>It is 42.</final>")
    agent = kernai.Agent(instructions="Answer.", skills=[double])
    result = kernai.execute(agent, "Twice 21?", provider=provider)
    assert result.text == "It is 42.", result
    assert any('name="double">42</block>' in message.text for message in result.messages), result.messages

    from kernai_providers import MemoryReply, MemoryTransport, resolve

    stream = b'data: {"choices": [{"index": 0, "delta": {"content": "42"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    transport = MemoryTransport(MemoryReply(200, {"content-type": "text/event-stream"}, stream))
    vendor, model = resolve("openai/gpt-4o-mini", api_key="a key for nobody", transport=transport)
    assert kernai.run(kernai.Agent(instructions="Answer.", provider=vendor, model=model), "Twice 21?") == "42"
    for name in ("kernai", "kernai_providers"):
        assert (site_packages / name / "py.typed").is_file(), f"{name}/py.typed is not in the wheel"

    for extra in ("mcp", "otel", "postgres"):
        refusal = ""
        try:
            import_module(f"kernai.{extra}")
        except ImportError as error:
            refusal = str(error)
        assert f'pip install "kernai[{extra}]"' in refusal, f"kernai.{extra} without its packages said {refusal!r}"

    try_the_command_line(Path(sysconfig.get_path("scripts")))

    loaded = {name.partition(".")[0] for name in set(sys.modules) - bare}
    foreign = loaded - sys.stdlib_module_names - {"kernai", "kernai_providers"}
    assert not foreign, f"third-party modules are loaded: {sorted(foreign)}"
    print(f"wheel: kernai {kernai.__version__} runs on its own on Python {sys.version.split()[0]}")


main()
