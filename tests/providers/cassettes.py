"""Cassettes: what a vendor said once, kept in a file and played back without a network.

A test asks for one by name. Played back, nothing is reached, and a request that differs from the recorded one in its
address or its body is an error. ``VCR_RECORD=all`` records again: from the vendor where its key is set, else from a
server on loopback that speaks its format.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest
import vcr

FOLDER = Path(__file__).parent / "cassettes"
MODES = ("none", "all")
KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key", "proxy-authorization", "cookie")
#: of an answer: what names an account, or changes with each recording without being looked at
DROPPED = ("set-cookie", "openai-organization", "openai-project", "anthropic-organization-id", "cf-ray", "date")


def mode() -> str:
    """How cassettes are used now, from ``VCR_RECORD``."""
    given = os.environ.get("VCR_RECORD", "none")
    if given not in MODES:
        pytest.fail(f"VCR_RECORD must be one of {', '.join(MODES)}, got {given!r}")
    return given


@contextmanager
def cassette(name: str, address: str, *, folder: Path = FOLDER) -> Iterator[Any]:
    """Plays `name` back, or records it. Requests are kept as if they had gone to `address`, wherever they went."""
    path = folder / f"{name}.yaml"
    recording = mode() == "all"
    if recording:
        path.unlink(missing_ok=True)
    elif not path.is_file():
        pytest.fail(
            f"there is no cassette {path.name}; record it with: "
            f"VCR_RECORD=all python3 dev.py test tests/providers/test_cassettes.py -k {name.partition('-')[0]}"
        )
    recorder = vcr.VCR(
        record_mode=vcr.mode.ALL if recording else vcr.mode.NONE,
        match_on=("method", "uri", "body"),
        filter_headers=list(KEY_HEADERS),
        before_record_request=lambda request: _addressed(request, address),
        before_record_response=_plain,
    )
    with recorder.use_cassette(str(path)) as played:
        yield played


def _addressed(request: Any, address: str) -> Any:
    target, vendor = urlsplit(request.uri), urlsplit(address)
    request.uri = urlunsplit((vendor.scheme, vendor.netloc, target.path, target.query, ""))
    return request


def _plain(response: dict[str, Any]) -> dict[str, Any]:
    headers = response["headers"]
    return {**response, "headers": {name: value for name, value in headers.items() if name.lower() not in DROPPED}}
