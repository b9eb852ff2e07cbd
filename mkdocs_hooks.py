"""Brings into the site what the pages link to beside docs/: the changelog and the examples.

MkDocs knows one folder. In the repository a page says `../examples/mcp.yml`; here the file becomes part of the site,
and the link is written as the site has it.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent
#: what is shown beside docs/, each at its path in the repository; links to anything else are an error of the build
BESIDE = ("CHANGELOG.md", "examples/README.md", "examples/*.py", "examples/*.yml", "examples/providers/*.py")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Add what stands beside docs/."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Write links between docs/ and what stands beside it as the site has them."""
    return LINK.sub(lambda found: f"]({_in_the_site(found[1], PurePosixPath(page.file.src_uri))}", markdown)


def _in_the_site(target: str, page: PurePosixPath) -> str:
    """`docs/a.md` and `examples/b.py` of the repository are `a.md` and `examples/b.py` of the site."""
    folder = page.parent if any(page.match(pattern) for pattern in BESIDE) else "docs" / page.parent
    place = normpath(folder / target).removeprefix("docs/")
    return relpath(place, page.parent)
