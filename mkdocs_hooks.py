"""Adds files outside docs/ to the site, if pages link to them: the changelog and the examples.

MkDocs reads only one folder. In the repository, a page links to `../examples/mcp.yml`; these hooks add the file to the
site and rewrite the link.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent
#: the files outside docs/ that the site has, at their paths in the repository; links to other files fail the build
BESIDE = ("CHANGELOG.md", "examples/README.md", "examples/*.py", "examples/*.yml", "examples/providers/*.py")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the files outside docs/."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites links between docs/ and the files outside it to the site's paths."""
    return LINK.sub(lambda found: f"]({_in_the_site(found[1], PurePosixPath(page.file.src_uri))}", markdown)


def _in_the_site(target: str, page: PurePosixPath) -> str:
    """`docs/a.md` and `examples/b.py` of the repository are `a.md` and `examples/b.py` of the site."""
    folder = page.parent if any(page.match(pattern) for pattern in BESIDE) else "docs" / page.parent
    place = normpath(folder / target).removeprefix("docs/")
    return relpath(place, page.parent)
