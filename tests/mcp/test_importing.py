"""The core never loads the adapter, which without the SDK says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"

#: makes a module impossible to import, or older than it has to be
HIDE = "sys.modules['mcp'] = None"
OLD = "import types; sys.modules['mcp'] = types.ModuleType('mcp')"


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SRC)!r})\n{code}"],
        capture_output=True, text=True, check=False,
    )


@pytest.mark.parametrize("absent", [HIDE, OLD], ids=["no SDK", "the SDK's first version"])
def test_without_the_sdk_the_import_says_what_to_install(absent: str) -> None:
    done = run(f"{absent}\nimport kernai\nimport kernai.mcp")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        'ImportError: kernai.mcp needs the official MCP SDK, version 2 or later: pip install "kernai[mcp]"'
    )


def test_the_core_does_not_load_the_adapter_and_the_adapter_no_yaml_which_it_says_how_to_install(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yml"
    config.write_text("servers: {}")
    done = run(
        "import kernai\nassert not [name for name in sys.modules if name.split('.')[0] == 'mcp' or 'kernai.mcp' in name]\n"
        "import kernai.mcp\nassert 'yaml' not in sys.modules\n"
        f"sys.modules['yaml'] = None\nkernai.mcp.load({str(config)!r})\n"
    )
    assert done.stderr.rstrip().endswith('ImportError: YAML needs PyYAML: pip install "kernai[mcp]"')


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    import kernai.mcp

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kernai.mcp.nothing  # type: ignore[attr-defined]  # which a type checker knows too
