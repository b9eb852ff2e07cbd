"""The process-wide configuration, and the resolvers that find the values of credentials and settings.

The configuration is one object, changed in place. A resolver is any object with ``resolve(skill_name, key) -> str |
None``; None means that it has no value. It is called each time a skill reads a key, so a rotated key takes effect at
once. Values never appear in a repr or an error of this module.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from kernai._util.api import check_methods, check_texts, check_type, likely
from kernai.errors import KernaiError
from kernai.recording.recorder import Recorder
from kernai.registry.provider import Provider, check_provider
from kernai.values.skill_result import plain

if TYPE_CHECKING:
    import logging

    from kernai.inputs.table import Repair


class Resolver(Protocol):
    """Finds the value of a skill's credential or setting, or None."""

    def resolve(self, skill_name: str, key: str, /) -> str | None: ...


def environment_name(skill_name: str, key: str) -> str:
    """The environment variable of a skill's key: ``KERNAI_SKILL_<SKILL>_<KEY>``, with `_` for special characters."""
    return "KERNAI_SKILL_" + re.sub(r"[^A-Z0-9]", "_", f"{skill_name.upper()}_{key.upper()}")


class EnvironmentResolver:
    """Reads ``KERNAI_SKILL_<SKILL>_<KEY>`` from the process environment. An empty variable counts as unset."""

    def resolve(self, skill_name: str, key: str, /) -> str | None:
        return os.environ.get(environment_name(skill_name, key)) or None


class MappingResolver:
    """Values from a mapping, for tests and for secrets that are loaded by other means.

    ``MappingResolver({"search": {"api_key": "..."}})``. A key may also be the pair ``("search", "api_key")``, its
    environment variable's name, or plain ``"api_key"`` for every skill that declares it. They are tried in this order.
    The mapping is not copied; it is read each time a skill needs a value. Values may be anything that JSON can hold,
    except that a mapping under a plain key is never a value.
    """

    def __init__(self, values: Mapping[Any, object]) -> None:
        self._values = check_type(values, Mapping, "values must be a mapping, skill name to keys to values")

    def resolve(self, skill_name: str, key: str, /) -> str | None:
        of_skill = self._values.get(skill_name)
        if isinstance(of_skill, Mapping) and key in of_skill:
            return _text_or_none(key, of_skill[key])
        for place in ((skill_name, key), environment_name(skill_name, key), key):
            found = self._values.get(place)
            if found is not None and (place != key or not isinstance(found, Mapping)):  # else a skill of that name
                return _text_or_none(key, found)
        if of_skill is not None and not isinstance(of_skill, Mapping):
            raise KernaiError(f"the values in a MappingResolver for {skill_name!r} must be a mapping: {{{key!r}: ...}}")
        return None


def _text_or_none(key: str, value: object) -> str | None:
    """The value as text from which a setting can be read."""
    try:
        data = plain(value)
    except KernaiError:
        kind = type(value).__name__
        raise KernaiError(f"the value of {key!r} in a MappingResolver must be text or JSON data, got {kind}") from None
    return data if data is None or isinstance(data, str) else json.dumps(data)


class Configuration:
    """The options of this process. Change them with `configure` or by assignment; both check the values.

    `debug` adds debug lines to the log. `default_provider` is used by agents and runs without a provider of their own,
    `recorder` by runs without a recorder. `allowed_skills` is a tuple of names, or None for all. `logger` is a standard
    library logger, by default ``kernai``. `repair` says which mistakes in a call's parameters are repaired: with
    ``"json"`` mistakes in its JSON whose repair loses nothing, with True also numbers and booleans in quotes and values
    without a name, with False none (see docs/models.md). The resolvers find the values of credentials and settings.
    """

    debug: bool = False
    default_provider: Provider | None = None
    allowed_skills: tuple[str, ...] | None = None
    recorder: Recorder | None = None
    logger: logging.Logger | None = None
    repair: Repair = "json"
    credential_resolver: Resolver = EnvironmentResolver()
    setting_resolver: Resolver = EnvironmentResolver()

    def __init__(self) -> None:
        vars(self).update(defaults())

    if not TYPE_CHECKING:  # otherwise a type checker would accept every name

        def __setattr__(self, name: str, value: object) -> None:
            if name not in vars(self):
                raise AttributeError(f"config has no option {name!r}{likely(name, vars(self))}")
            vars(self)[name] = _checked(name, value)

    def __repr__(self) -> str:
        return f"Configuration({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


def defaults() -> dict[str, Any]:
    """The values of a fresh configuration."""
    return {name: getattr(Configuration, name) for name in Configuration.__annotations__}


#: the one configuration, `kernai.config`
config = Configuration()


_KEEP: Any = ...  # the default of each option


def configure(
    *, debug: bool = _KEEP, default_provider: Provider | None = _KEEP, allowed_skills: Iterable[str] | None = _KEEP,
    recorder: Recorder | None = _KEEP, logger: logging.Logger | None = _KEEP, repair: Repair = _KEEP,
    credential_resolver: Resolver | None = _KEEP, setting_resolver: Resolver | None = _KEEP,
) -> Configuration:
    """Changes `kernai.config` in place and returns it. Options that are not passed keep their value.

    Raises `TypeError` for an unknown option or a value of a wrong type, and `ValueError` for an unknown `repair`.
    """
    changes = {name: _checked(name, value) for name, value in locals().items() if value is not _KEEP}
    vars(config).update(changes)
    return config


def _checked(name: str, value: Any) -> Any:
    """Returns an option's value as the configuration keeps it. Raises `TypeError` or `ValueError` for a wrong one."""
    if name == "debug" and not isinstance(value, bool):
        raise TypeError(f"debug must be True or False, got {value!r}")
    if name == "repair" and not (isinstance(value, bool) or value == "json"):
        raise ValueError(f"repair must be True, 'json' or False, got {value!r}")
    if value is None:
        return defaults()[name]
    if name == "allowed_skills":
        return tuple(check_texts(name, value, "names or None"))
    if name == "default_provider":
        check_provider(value, name)
    elif name == "recorder" and not isinstance(value, Recorder):
        raise TypeError(f"recorder must be a Recorder, got {value!r}: write Recorder(your_sink)")
    elif name == "logger" and not callable(getattr(value, "isEnabledFor", None)):
        raise TypeError(f"logger must be a logging.Logger, got {type(value).__name__}")
    elif name.endswith("_resolver"):
        check_methods(value, f"{name} must be a MappingResolver, or have resolve(skill_name, key)", "resolve")
    return value
