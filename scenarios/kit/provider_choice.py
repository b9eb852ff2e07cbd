"""Chooses the model: by the argument, else the environment, else a vendor with a key, else Ollama, else the tape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import kernai
from kernai._util.redaction import one_line
from kit.definition import Definition, UsageError, shown
from kit.known_providers import (
    TAPE,
    capabilities_of,
    checked_name,
    default_model,
    key_that_is_set,
    known_name,
    look_for_ollama,
    made,
)
from kit.options import Options
from kit.tape import Tape
from kit.tape_provider import TapeProvider

COMMAND_LINE = "named on the command line"
UNUSED_MODEL = "MODEL in the environment is not used"
WIDTH = 500  # characters of a line with a model's name, which may come from a server


@dataclass(frozen=True)
class Choice:
    """The chosen provider and model, and the reason. `tape` is the provider if that is a tape."""

    name: str
    provider: kernai.Provider
    model: kernai.Model
    reason: str
    shown: str
    tape: TapeProvider | None = None

    def lines_of(self, real: str) -> list[str]:
        """The lines to print before a run. `real` says which parts of a replay do not come from the tape."""
        lines = [one_line(f"provider: {self.shown} ({self.reason})", WIDTH)]
        if self.tape is not None:
            counts = "" if self.tape.tape.is_counted else " Token counts are estimates."
            lines.append(f"Only the model's turns come from the tape; {real} are real.{counts}")
        return lines


@dataclass(frozen=True)
class Wish:
    """The provider's name and the model's id that were asked for, and the source of the provider's name."""

    provider: str | None
    model: str | None
    reason: str


def choose(definition: Definition, options: Options) -> Choice:
    """The provider and the model of a run. Raises a `UsageError` that says what is missing."""
    if options.replays:
        return _tape(definition, options, "--offline" if options.offline else "--tape")
    wish = _wish(options)
    if wish.provider == TAPE:
        if options.model and wish.model:
            raise UsageError(f"the tape has its own model: leave {wish.model!r} out")
        return _tape(definition, options, f"{wish.reason}; {UNUSED_MODEL}" if wish.model else wish.reason)
    if wish.provider is not None:
        return _named(definition, options, wish)
    return _found(definition, options, wish.model)


def _wish(options: Options) -> Wish:
    """The argument takes precedence over the environment; an empty model is the provider's default."""
    environment = os.environ.get("PROVIDER", "").strip()
    model = os.environ.get("MODEL", "").strip() if options.model is None else options.model.strip()
    if options.provider:
        return Wish(checked_name(options.provider), model or None, COMMAND_LINE)
    if environment and not (options.model and known_name(options.model)):
        return Wish(checked_name(environment), model or None, "PROVIDER in the environment")
    name, model = _split(model)
    return Wish(name, model or None, "MODEL in the environment" if options.model is None else COMMAND_LINE)


def _split(model: str) -> tuple[str | None, str]:
    """The provider and the model in ``VENDOR/MODEL``; a provider's name alone means its default model."""
    first, slash, rest = model.partition("/")
    name = known_name(first)
    if name is not None and slash and not rest:
        raise UsageError(f"{model!r} lacks its model: name one, or say {first!r} alone for the default model")
    return (None, model) if name is None else (name, rest)


def _named(definition: Definition, options: Options, wish: Wish) -> Choice:
    name = str(wish.provider)
    model = wish.model
    if model is None and name == "ollama":
        model = look_for_ollama(local=False).model_for(definition.capabilities)
    model = model or default_model(name)
    if model is None:
        raise UsageError(f"{name} has no default model: name one, as in MODEL {name}")
    missing = _missing(definition, options, name, model)
    if missing:
        raise UsageError(
            f"{definition.name} needs a model with {', '.join(missing)}, and {model} of {name} is not known to have "
            f"that: choose another, or say so with --capabilities {','.join(definition.capabilities)}"
        )
    # declared with exactly the capabilities that the scenario needs, so that the test is the same for every model
    provider, declared = made(name, model, definition.capabilities)
    return Choice(name, provider, declared, wish.reason, f"{name} {model}")


def _found(definition: Definition, options: Options, model: str | None) -> Choice:
    """The first vendor with a usable key, else Ollama, else the tape. Reports those that were skipped."""
    from kernai_providers import configured

    passed: list[str] = []
    for vendor in configured():
        if not vendor.needs_key:  # the user's own server: only by name, or below
            continue
        found = model or default_model(vendor.name)
        reason = f"{key_that_is_set(vendor.variables)} is set"
        if found is None:
            passed.append(f"{vendor.name} has a key and no default model")
        elif model is None and _missing(definition, options, vendor.name, found):
            passed.append(f"{found} of {vendor.name} cannot take {', '.join(definition.capabilities)}")
        else:
            return _named(definition, options, Wish(vendor.name, found, _with(reason, passed)))
    ollama = look_for_ollama()
    found = model if model is not None and ollama.has(model) else ollama.model_for(definition.capabilities)
    if ollama.models is not None and found is not None and model in (None, found):
        return _named(definition, options, Wish("ollama", found, _with(f"Ollama answers at {ollama.url}", passed)))
    if ollama.models is not None:
        passed.append(f"Ollama has no model {'for ' + ', '.join(definition.capabilities) if model is None else model}")
    return _last(definition, options, model, passed)


def _last(definition: Definition, options: Options, model: str | None, passed: Sequence[str]) -> Choice:
    reason = _with("no model vendor is configured", passed)
    if model is None:
        return _tape(definition, options, reason)
    if options.model is None:
        return _tape(definition, options, f"{reason}; {UNUSED_MODEL}")
    raise UsageError(
        f"{reason}, so nothing can run {model!r}: set a vendor's key, name a PROVIDER, or leave the model out "
        "to replay the tape; see --list-providers"
    )


def _with(reason: str, passed: Sequence[str]) -> str:
    return f"{reason}; skipped: {'; '.join(passed)}" if passed else reason


def _missing(definition: Definition, options: Options, name: str, model: str) -> list[str]:
    """The capabilities that the scenario needs and the model is not known to have."""
    has = capabilities_of(name, model) if options.capabilities is None else options.capabilities
    return [word for word in definition.capabilities if word not in has]


def _tape(definition: Definition, options: Options, reason: str) -> Choice:
    path = definition.tape if options.tape is None else options.tape
    tape = Tape.load(path, definition.name)
    provider = TapeProvider(tape, f"the tape {path.name}", path)
    model = kernai.Model(tape.model.strip() or TAPE, definition.capabilities)
    return Choice(TAPE, provider, model, reason, f"the tape {shown(path)}, {tape.origin}", provider)
