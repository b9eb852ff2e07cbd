"""A recorded run to look at: one HTML file, or a page that follows a run while it goes on.

`render_page` gives a page that holds everything and asks nothing of any network; `FollowServer` serves the same page on
loopback and sends it what is new. Whatever a recording holds is hostile: it is data for the page's own script, which
makes text of it and never markup, under a content security policy that lets nothing else run. See docs/viewer.md.
"""

from kernai.viewer.follow_server import FollowServer
from kernai.viewer.page import render_page, write_page

__all__ = ["FollowServer", "render_page", "write_page"]
