"""`--list-providers`: who can be asked, with which model by default, and whether a key is set; never its value."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kernai.terminal_text import one_line
from kit import ollama_probe
from kit.known_providers import TAPE, default_model, key_that_is_set, registered

if TYPE_CHECKING:
    from kernai_providers import Vendor

WIDTH = 160
Row = tuple[str, str, str]


def listing(tape: Path) -> str:
    """One line for each provider, in the order in which they are looked for, and one for the tape."""
    from kernai_providers import VENDORS

    own = {one.name for one in registered()}
    rows: list[Row] = [("provider", "default model", "state")]
    rows += [(one_line(one.name, WIDTH), one_line(one.default_model, WIDTH), "registered") for one in registered()]
    rows += [
        (one.name, default_model(one.name) or "none: name one", _ollama() if one.name == "ollama" else _key(one))
        for one in VENDORS if one.name not in own
    ]
    rows.append((TAPE, "as recorded", "bundled" if tape.is_file() else "there is none: make it with --save-tape"))
    widths = [max(len(row[at]) for row in rows) for at in range(2)]
    return "\n".join(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}" for row in rows)


def _key(vendor: Vendor) -> str:
    found = key_that_is_set(vendor.variables)
    if found is not None:
        return f"{found} is set"
    if vendor.needs_key:
        return f"no key: set {' or '.join(vendor.variables)}"
    addresses = [variable for variable, _ in vendor.base_url_variables]
    address = key_that_is_set(addresses)
    return f"{address} is set" if address is not None else f"needs no key: set {' or '.join(addresses)}"


def _ollama() -> str:
    found = ollama_probe.look()
    if found.models is None:
        return f"needs no key; does not answer at {one_line(found.url, WIDTH)}"
    return one_line(f"answers at {found.url}: {', '.join(found.models) or 'no model is there'}", WIDTH)
