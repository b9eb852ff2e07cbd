"""Shows a recorded run: as one HTML file, or as a page that follows a run in progress.

`render_page` makes a self-contained page that uses no network; `FollowServer` serves the same page on loopback and
sends it new events. The contents of a recording are treated as hostile: the page's own script shows them as text, never
as markup, and a content security policy prevents any other script from running. See docs/viewer.md.
"""

from kernai.viewer.follow_server import FollowServer
from kernai.viewer.page import render_page, write_page

__all__ = ["FollowServer", "render_page", "write_page"]
