"""The client that the conformance package starts. It passes the work to a running Python, over a socket."""

from __future__ import annotations

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    with line.makefile("rw") as stream:
        stream.write(json.dumps({"url": sys.argv[2], "environment": dict(os.environ)}) + "\n")
        stream.flush()
        ended = json.loads(stream.readline())
sys.stdout.write(ended["output"])
sys.stderr.write(ended["errors"])
sys.exit(ended["status"])
