"""Shows a recorded run: as one HTML file, or as a page that follows a run in progress.

`render_page` makes a self-contained page that uses no network; `FollowServer` serves the same page on loopback and
sends it what is new. The contents of a recording are treated as hostile: they are data for the page's own script, which
shows them as text and never as markup, under a content security policy that lets nothing else run. See docs/viewer.md.
"""

from kernai.viewer.follow_server import FollowServer
from kernai.viewer.page import render_page, write_page

__all__ = ["FollowServer", "render_page", "write_page"]
