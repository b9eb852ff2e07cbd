"""`SkillContext`: what a skill may know and do beyond its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

from kernai._util.api import NotCopied, likely
from kernai._util.redaction import Redactor
from kernai.errors import CredentialMissingError, KernaiError
from kernai.interrupts import calls_out
from kernai.jsonio.json_data import jsonable
from kernai.registry.configuration import Resolver, config, environment_name
from kernai.values.media import Media, MediaStore
from kernai.values.skill_result import SkillResult, plain

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers have it without a package; its variables may have defaults

    from kernai.registry.declarations import Credential, Setting

    RunContext = TypeVar("RunContext", default=Any)
else:
    from typing import TypeVar

    RunContext = TypeVar("RunContext")
Values = Mapping[str, Any] | Resolver | None


class SkillContext(NotCopied, Generic[RunContext]):
    """Passed to a skill that has a parameter of this type; a new one for each call.

    For a test: ``SkillContext(skill, credentials={"api_key": "..."}, settings={"timeout": 5})``. `credentials` and
    `settings` are a mapping from this skill's keys to values, or a resolver; by default, the resolvers of
    `kernai.config` are used. `run_context` is the run's `Context`, `media_store` its media, `call_id` the call's place
    in the run. A protocol's handler gets a context too; its `skill` is None, and it has no credentials or settings.
    """

    _HOLDS = "what belongs to one call"

    def __init__(
        self,
        skill: Any,
        run_context: RunContext | None = None,
        media_store: MediaStore | None = None,
        credentials: Values = None,
        settings: Values = None,
        *,
        call_id: str = "",
        run_id: str = "",
        key: str | None = None,
        emit: Callable[[Any], object] | None = None,
        cancelled: Callable[[], bool] | None = None,
        approval: Any = None,
    ) -> None:
        self.skill = skill
        self.run_context: RunContext = run_context  # type: ignore[assignment]  # None without a run
        store = getattr(run_context, "media_store", None) if media_store is None else media_store
        self.media_store: MediaStore = MediaStore() if store is None else store
        self.call_id = call_id
        self.run_id = run_id
        self._key = run_id if key is None else key
        #: the `Decision` that approved this call; None if nobody was asked
        self.approval = approval
        #: whether the call had paused until a set time and continues because that time has come, without a decision
        self.woken = False
        self.emitted: list[Any] = []
        self._credentials = credentials
        self._settings = settings
        self._emit = emit
        self._cancelled = cancelled
        self._redactor = Redactor()
        for kind, given in (("credentials", credentials), ("settings", settings)):
            for name in given if isinstance(given, Mapping) else ():  # a misspelled one would leave the default
                self._declared(kind, name)

    @property
    def idempotency_key(self) -> str:
        """``RUN_ID:CALL_ID``: the same when a call is repeated after a crash. Pass it to a payment gateway, say.

        In a tenant's view of a store it is ``TENANT/RUN_ID:CALL_ID``. If an earlier run with this id was deleted, it is
        ``RUN_ID~1:CALL_ID``, so that no key is used twice.
        """
        return f"{self._key}:{self.call_id}"

    @property
    def cancelled(self) -> bool:
        """Whether the run has been cancelled; a long call should check it and return early."""
        return self._cancelled is not None and bool(self._cancelled())

    def emit(self, data: Any) -> None:
        """Emits a `progress` event with `data`, converted to JSON values and with credentials redacted.

        Outside a run, the data are added to `emitted`. Raises `KernaiError` for data that JSON cannot represent, such
        as bytes.
        """
        (self._emit or self.emitted.append)(self.scrub(plain(data)))

    def credential(self, key: str) -> str | None:
        """The value of a declared credential, looked up at each call.

        Raises `KernaiError` if it is not declared, and `CredentialMissingError` if it is required and has no value.
        """
        declared: Credential = self._declared("credentials", key)
        value = self._look_up(self._credentials, "credential_resolver", key)
        value = declared.default if value is None else value
        if value is None and not declared.required:
            return None
        if value is None:
            raise CredentialMissingError(
                f"skill {self._name!r} needs the credential {key!r}: set the environment variable "
                f"{environment_name(self._name, key)}, or give configure(credential_resolver=...) one that knows it"
            )
        if not isinstance(value, str):
            kind = type(value).__name__  # never the value
            raise KernaiError(f"the credential {key!r} of skill {self._name!r} must be text, not {kind}")
        self._redactor.add(value, f"[credential {key}]")
        return value

    def setting(self, key: str) -> Any:
        """The value of a declared setting, converted to its type, or its default.

        Raises `KernaiError` if the setting is not declared or its value does not fit its type.
        """
        declared: Setting = self._declared("settings", key)
        value = self._look_up(self._settings, "setting_resolver", key)
        if value is None:
            default = declared.default
            return deepcopy(default) if isinstance(default, (list, dict, set)) else default
        where = f"setting {key!r} of skill {self._name!r} ({environment_name(self._name, key)})"
        return declared.convert(value, where)

    def scrub(self, value: Any) -> Any:
        """`value` with each credential that was read replaced by ``[credential KEY]``.

        Credentials are replaced in text, lists, tuples, dicts, a `SkillResult`, and the path, URL and metadata of
        media, at any depth. Metadata are redacted in the form that a recording has. Raises `KernaiError` for data that
        contain themselves or nest deeper than 200 levels.
        """
        return self._redactor.data(value, self._scrub_other)

    def _scrub_other(self, value: Any, depth: int) -> Any:
        def scrubbed(part: Any) -> Any:
            return self._redactor.data(part, self._scrub_other, depth + 1)

        if isinstance(value, SkillResult):
            return value.replaced(scrubbed(value.parts), scrubbed(jsonable(value.metadata)))
        if type(value) in (int, float) and abs(value) < 10**100:  # Python writes no number of 4,300 digits
            shown = self._redactor.text(repr(value))
            return value if shown == repr(value) else shown
        if not isinstance(value, Media):
            return value
        # a recording has the path, the URL and the metadata as JSON, so that form is scrubbed
        data = value.data if isinstance(value.data, bytes) else scrubbed(value.data)
        metadata = scrubbed(jsonable(value.metadata))
        same = data == value.data and metadata == value.metadata
        return value if same else replace(value, data=data, metadata=metadata)

    @property
    def _name(self) -> str:
        return str(getattr(self.skill, "name", "?"))

    def _declared(self, kind: str, key: str) -> Any:
        if self.skill is None:
            raise KernaiError(f"a protocol's handler has no {kind}; it can read its own configuration")
        declared: Mapping[str, Any] = getattr(self.skill, kind, None) or {}
        if key not in declared:
            meant = likely(key, declared) or f": add it with @skill({kind}={{{key!r}: ...}})"
            raise KernaiError(f"{self._name!r} declares no {kind[:-1]} {key!r}{meant}")
        return declared[key]

    @calls_out
    def _look_up(self, values: Values, configured: str, key: str) -> Any:
        if isinstance(values, Mapping):
            return values.get(key)
        resolver = getattr(config, configured) if values is None else values
        return resolver.resolve(self._name, key)

    def __repr__(self) -> str:
        return f"SkillContext(skill={self._name!r}, call_id={self.call_id!r})"  # never a value
