"""The providers that can run a scenario: those of `kernai_providers`, those registered here, and the tape.

An Ollama server on this machine is asked for its models; `--list-providers` shows them all.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import urlsplit

import kernai
from kernai._util.redaction import one_line
from kernai.command_line.setup_command import Server, models_of
from kernai.errors import described
from kernai_providers import VENDORS, OllamaProvider, Vendor, resolve
from kernai_providers import capabilities_of as by_family
from kernai_providers.transport import TransportError
from kernai_providers.vendors import BY_NAME
from kit.definition import UsageError
from kit.model_tables import DEFAULT_MODELS, price_of

TAPE = "tape"
#: the models in this process that `resolve` knows, with their default
IN_PROCESS = {"smollm2": "135m", "gguf": None}
Factory = Callable[[], kernai.Provider]


@dataclass(frozen=True)
class Registered:
    """A provider that the caller has registered. `capabilities` is None if they are looked up by the model's name."""

    name: str
    factory: Factory
    default_model: str
    capabilities: tuple[str, ...] | None = None
    cost: kernai.Cost | tuple[float, ...] | None = None


_REGISTERED: dict[str, Registered] = {}


def register_provider(name: str, factory: Factory, default_model: str | kernai.Model) -> None:
    """Register a provider by name, for ``python scenarios/NAME.py MODEL name`` and ``PROVIDER=name``.

    `factory` is called without arguments, once for each run, and returns the `Provider`; it may be a class. If
    `default_model` is a `Model`, its capabilities and price are used; for a name, they are looked up. A vendor's name
    may be replaced. Raises `ValueError` for a name that cannot be written on a command line.
    """
    if not isinstance(name, str) or not name.strip() or "/" in name or name.split() != [name] or name.startswith("-"):
        raise ValueError(f"name must be one word without '/', got {name!r}")
    if name.lower() == TAPE:
        raise ValueError(f"{TAPE!r} is the bundled tape; take another name")
    if not callable(factory):
        raise TypeError(f"factory must be callable without arguments, got {type(factory).__name__}")
    if isinstance(default_model, kernai.Model):
        made = Registered(name.lower(), factory, default_model.id, default_model.capabilities, default_model.cost)
    elif isinstance(default_model, str) and default_model.strip():
        made = Registered(name.lower(), factory, default_model.strip())
    else:
        raise TypeError(f"default_model must be a model's id or a Model, got {default_model!r}")
    _REGISTERED[made.name] = made


def known_name(name: str) -> str | None:
    """A provider's main name, given any of its names; None if it is not known."""
    wanted = name.strip().lower()
    if wanted in _REGISTERED or wanted in IN_PROCESS or wanted == TAPE:
        return wanted
    return BY_NAME[wanted].name if wanted in BY_NAME else None


def checked_name(name: str) -> str:
    """A provider's main name. Raises `UsageError` with the known names if the provider is not known."""
    found = known_name(name)
    if found is not None:
        return found
    close = get_close_matches(name.lower(), [*_REGISTERED, *BY_NAME, TAPE], 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    known = ", ".join([*_REGISTERED, *(one.name for one in VENDORS), *IN_PROCESS, TAPE])
    raise UsageError(f"unknown provider {name!r}: {hint}known are {known}")


def default_model(name: str) -> str | None:
    """The model that is used if none is named; None if one must be named."""
    own = _REGISTERED.get(name)
    return DEFAULT_MODELS.get(name, IN_PROCESS.get(name)) if own is None else own.default_model


def capabilities_of(name: str, model_id: str) -> tuple[str, ...]:
    """A model's known capabilities; only text for an unknown name."""
    own = _REGISTERED.get(name)
    if own is not None and own.capabilities is not None and model_id == own.default_model:
        return own.capabilities
    return by_family(model_id)


def made(name: str, model_id: str, capabilities: tuple[str, ...]) -> tuple[kernai.Provider, kernai.Model]:
    """A provider and its model. Raises `UsageError` with the key or setting that is missing."""
    own = _REGISTERED.get(name)
    if own is not None:
        cost = own.cost if model_id == own.default_model else None
        provider = _made_by(own)
        return provider, kernai.Model(model_id, capabilities, cost)
    vendor = BY_NAME.get(name)
    if vendor is not None and vendor.needs_key and key_that_is_set(vendor.variables) is None:
        raise UsageError(f"{name} needs a key: set {' or '.join(vendor.variables)}; --list-providers shows who has one")
    try:
        return resolve(f"{name}/{model_id}", capabilities=capabilities, cost=price_of(name, model_id))
    except (kernai.KernaiError, ValueError) as error:
        raise UsageError(str(error)) from error


def _made_by(own: Registered) -> kernai.Provider:
    try:
        provider = own.factory()
    except Exception as error:
        raise UsageError(f"the factory of the provider {own.name!r} failed: {described(error)}") from error
    if not isinstance(provider, kernai.Provider):
        kind = type(provider).__name__
        raise UsageError(f"the factory of the provider {own.name!r} must give a Provider, got {kind}")
    return provider


def key_that_is_set(variables: Sequence[str]) -> str | None:
    """The name of the first of these environment variables that is not empty."""
    return next((one for one in variables if os.environ.get(one, "").strip()), None)


# --------------------------------------------------------------------------------------------------------------- Ollama


@dataclass(frozen=True)
class Ollama:
    """An Ollama server at `url`; `models` is None if it does not answer."""

    url: str
    models: tuple[str, ...] | None = None

    def has(self, model: str) -> bool:
        """Whether the server has the model, with or without its tag."""
        return any(model in (one, one.removesuffix(":latest")) for one in self.models or ())

    def model_for(self, capabilities: Sequence[str]) -> str | None:
        """The default model if the server has it, else the first with these capabilities; None if there is none."""
        default = DEFAULT_MODELS["ollama"]
        able = [
            one for one in self.models or ()
            if "embed" not in one and set(capabilities) <= set(by_family(one))
        ]
        return next((one for one in able if one.partition(":")[0] == default), able[0] if able else None)


def look_for_ollama(*, local: bool = True) -> Ollama:
    """Ask the server at `OLLAMA_HOST`, by default port 11434 of this machine, for its models.

    With `local`, a server on another machine is not asked. Raises nothing: any failure counts as no answer.
    """
    try:
        url = OllamaProvider().base_url
    except (kernai.KernaiError, ValueError):
        return Ollama("OLLAMA_HOST")
    if local and not _is_loopback(urlsplit(url).hostname or ""):
        return Ollama(url)
    try:
        models = models_of(Server("ollama", url))
    except (TransportError, ValueError, RecursionError):
        models = None
    return Ollama(url, None if models is None else tuple(models))


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------------------ the list

WIDTH = 160
Row = tuple[str, str, str]


def listing(tape: Path) -> str:
    """One line for each provider, in the order in which they are tried, and one for the tape."""
    rows: list[Row] = [("provider", "default model", "state")]
    own = _REGISTERED.values()
    rows += [(one_line(one.name, WIDTH), one_line(one.default_model, WIDTH), "registered") for one in own]
    rows += [
        (one.name, default_model(one.name) or "none: name one", _ollama() if one.name == "ollama" else _key(one))
        for one in VENDORS if one.name not in _REGISTERED
    ]
    rows += [(name, default or "none: name a file", "in this process") for name, default in IN_PROCESS.items()]
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
    found = look_for_ollama()
    if found.models is None:
        return f"needs no key; does not answer at {one_line(found.url, WIDTH)}"
    return one_line(f"answers at {found.url}: {', '.join(found.models) or 'no models'}", WIDTH)
