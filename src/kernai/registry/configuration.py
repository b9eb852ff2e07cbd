"""Process-wide configuration: one object for ever, changed in place. No run needs it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernai._util.close_matches import likely
from kernai.recording.recorder import Recorder
from kernai.registry.credential_resolver import EnvironmentResolver, Resolver
from kernai.registry.provider import Provider, check_provider

if TYPE_CHECKING:
    import logging

    from kernai.inputs.params import Repair


class Configuration:
    """Read it freely; change it with `configure`, or by assignment, which checks likewise.

    `debug` adds debug lines to the log. `default_provider` serves agents and runs that name none. `allowed_skills` is
    a tuple of names or None for all. `recorder` records runs that name none. `logger` is a standard library logger,
    by default ``kernai``. `repair` says which mistakes in a call's parameters are mended: ``"json"``
    those of its JSON that lose nothing, True also numbers and booleans in quotes and bare values, False none (see
    docs/models.md). The resolvers find the values of credentials and settings.
    """

    debug: bool
    default_provider: Provider | None
    allowed_skills: tuple[str, ...] | None
    recorder: Recorder | None
    logger: logging.Logger | None
    repair: Repair
    credential_resolver: Resolver
    setting_resolver: Resolver

    def __init__(self) -> None:
        self.restore(defaults())

    def __setattr__(self, name: str, value: object) -> None:
        if name not in vars(self):
            raise AttributeError(f"config has no option {name!r}{likely(name, vars(self))}")
        configure(**{name: value})

    def snapshot(self) -> dict[str, Any]:
        """The values now, for `restore`."""
        return dict(vars(self))

    def restore(self, values: dict[str, Any]) -> None:
        """Lays values over the present ones."""
        vars(self).update(values)

    def __repr__(self) -> str:
        return f"Configuration({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


def defaults() -> dict[str, Any]:
    """The values of a fresh configuration."""
    return {
        "debug": False,
        "default_provider": None,
        "allowed_skills": None,
        "recorder": None,
        "logger": None,
        "repair": "json",
        "credential_resolver": EnvironmentResolver(),
        "setting_resolver": EnvironmentResolver(),
    }


#: the one configuration, `kernai.config`
config = Configuration()


def configure(**changes: Any) -> Configuration:
    """Changes `kernai.config` in place and gives it back.

    Options: ``debug default_provider allowed_skills recorder logger repair credential_resolver
    setting_resolver``. What is not given stays. Another option is a `TypeError`, a wrong value too.
    """
    known = defaults()
    for name in changes:
        if name not in known:
            raise TypeError(f"configure() has no option {name!r}{likely(name, known, 'it has')}")
    names = changes.get("allowed_skills")
    if isinstance(names, Iterable) and not isinstance(names, str):
        changes["allowed_skills"] = tuple(names)
    for name, value in changes.items():
        _check(name, value)
    for name in ("credential_resolver", "setting_resolver"):
        if name in changes and changes[name] is None:
            changes[name] = known[name]
    config.restore(changes)
    return config


def _check(name: str, value: object) -> None:
    if name == "debug" and not isinstance(value, bool):
        raise TypeError(f"debug must be True or False, got {value!r}")
    if name == "repair" and not (isinstance(value, bool) or value == "json"):
        raise ValueError(f"repair must be True, 'json' or False, got {value!r}")
    if value is None:
        return
    if name == "allowed_skills" and not (isinstance(value, tuple) and all(isinstance(one, str) for one in value)):
        raise TypeError(f"allowed_skills must be a list of names or None, got {value!r}")
    if name == "default_provider":
        check_provider(value, name)
    elif name == "recorder" and not isinstance(value, Recorder):
        raise TypeError(f"recorder must be a Recorder, got {value!r}: write Recorder(your_sink)")
    elif name == "logger" and not callable(getattr(value, "isEnabledFor", None)):
        raise TypeError(f"logger must be a logging.Logger, got {type(value).__name__}")
    elif name.endswith("_resolver") and (isinstance(value, type) or not callable(getattr(value, "resolve", None))):
        raise TypeError(f"{name} must be an object with resolve(skill_name, key), got {value!r}")
