"""The client that the conformance package starts. It passes its work to the test, over a socket."""

from __future__ import annotations

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[1])
    line.sendall(json.dumps([sys.argv[2], dict(os.environ)]).encode() + b"\n")
    line.recv(1)
