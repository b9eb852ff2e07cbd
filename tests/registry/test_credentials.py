"""Credentials and settings: where values come from, missing ones, and that no secret is ever shown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge

import kernai
from kernai import Credential, CredentialMissingError, KernaiError, MappingResolver, Setting, Skill, SkillContext, reset
from kernai.registry.configuration import EnvironmentResolver, environment_name
from tests.values.test_json_data import Named

SECRET = "hunter2-secret"


def skill_with(**options: Any) -> Skill:
    return Skill("find it", execute=lambda: None, **options)


KEYED = skill_with(
    credentials={"api_key": Credential(description="from the vendor"), "spare": Credential(required=False),
                 "fallback": Credential(default="dflt"), "optional": Credential(required=False, default="o")},
    settings={"timeout": Setting(int, default=30), "zone": Setting(description="where")},
)


def context(**options: Any) -> SkillContext[Any]:
    return SkillContext(KEYED, **options)


# ------------------------------------------------------------------------------------------------- environment


def test_the_name_of_the_environment_variable_of_a_key() -> None:
    assert environment_name(Named.N, Named.N) == "KERNAI_SKILL_N_N"
    assert environment_name("find it", "api-key") == "KERNAI_SKILL_FIND_IT_API_KEY"
    assert environment_name("Straße.2", "clé") == "KERNAI_SKILL_STRASSE_2_CL_"


def test_a_rotated_value_is_seen_at_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context()
    monkeypatch.setenv("KERNAI_SKILL_FIND_IT_TIMEOUT", "5")
    assert ctx.setting("timeout") == 5
    monkeypatch.setenv("KERNAI_SKILL_FIND_IT_API_KEY", "old-value")
    assert ctx.credential("api_key") == "old-value"
    monkeypatch.setenv("KERNAI_SKILL_FIND_IT_API_KEY", "new-value")
    assert ctx.credential("api_key") == "new-value"
    assert ctx.scrub("old-value new-value") == "[credential api_key] [credential api_key]"


# --------------------------------------------------------------------------------------------------- resolvers


def test_the_configured_resolvers_are_used_if_none_was_given() -> None:
    ctx = context()  # created first, because the resolvers are looked up when a key is read
    kernai.configure(
        credential_resolver=MappingResolver({"find it": {"api_key": SECRET}}),
        setting_resolver=MappingResolver({"find it": {"timeout": "7"}}),
    )
    assert (ctx.credential("api_key"), ctx.setting("timeout")) == (SECRET, 7)
    reset()
    assert ctx.setting("timeout") == 30
    with pytest.raises(CredentialMissingError):
        ctx.credential("api_key")


def test_a_context_accepts_a_mapping_of_keys_or_a_resolver() -> None:
    class Resolver:
        def resolve(self, skill_name: str, key: str, /) -> str | None:
            return f"{skill_name}/{key}"

    assert context(credentials={"api_key": SECRET}).credential("api_key") == SECRET
    assert context(credentials=Resolver()).credential("api_key") == "find it/api_key"
    assert (context(settings={"timeout": 5}).setting("timeout"), context(settings=Resolver()).setting("zone")) == (5, "find it/zone")


@pytest.mark.parametrize("values", [
    {"find it": {"api_key": SECRET}}, {("find it", "api_key"): SECRET}, {"KERNAI_SKILL_FIND_IT_API_KEY": SECRET},
    {"api_key": SECRET}, {"find it": {"other": "x"}, "api_key": SECRET}, {"api_key": {}, "find it": {"api_key": SECRET}},
])
def test_a_mapping_resolver_finds_a_value_by_skill_and_key(values: dict[object, object]) -> None:
    resolver = MappingResolver(values)
    assert resolver.resolve("find it", "api_key") == SECRET
    assert resolver.resolve("find it", "nothing") is None
    assert SECRET not in repr(resolver)
    of_skills = MappingResolver({"a": {"key": "of a"}, "b": {"key": None}, "key": "of all"})
    assert [of_skills.resolve(skill, "key") for skill in "abc"] == ["of a", None, "of all"]
    assert of_skills.resolve("c", "a") is None
    assert MappingResolver({("c", "key"): {"x": 1}}).resolve("c", "key") == '{"x": 1}'


# -------------------------------------------------------------------------------------------------- credentials


def test_reading_a_missing_or_empty_credential_is_an_error_that_names_skill_key_and_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNAI_SKILL_FIND_IT_API_KEY", "")
    assert EnvironmentResolver().resolve("find it", "api_key") is None
    with pytest.raises(CredentialMissingError) as caught:
        context().credential("api_key")
    for part in ("'find it'", "'api_key'", "KERNAI_SKILL_FIND_IT_API_KEY", "credential_resolver"):
        assert part in str(caught.value)


def test_a_missing_optional_credential_has_its_default() -> None:
    ctx = context(credentials={})
    assert ctx.credential("spare") is None
    assert ctx.credential("optional") == "o"
    assert ctx.credential("fallback") == "dflt"


def test_an_undeclared_key_is_an_error_that_says_how_to_declare_it() -> None:
    with pytest.raises(KernaiError, match=r"no credential 'other': add it with @skill\(credentials=\{'other': ...\}\)"):
        context().credential("other")
    with pytest.raises(KernaiError, match=r"declares no setting 'api_key': add it with @skill\(settings="):
        context(settings={"api_key": "x"})
    with pytest.raises(KernaiError, match="declares no credential 'x': add it"):
        SkillContext(skill_with()).credential("x")
    for read in (SkillContext(None).credential, SkillContext(None).setting):
        with pytest.raises(KernaiError, match="a protocol's handler has no"):
            read("api_key")


@pytest.mark.parametrize("wrong, says", [
    (lambda: MappingResolver([SECRET]), "values must be a mapping"),  # type: ignore[arg-type]
    (lambda: Credential(required="yes"), "required must be True or False"),  # type: ignore[arg-type]
    (lambda: SkillContext(skill_with(credentials={"k": Credential(default=5)})).credential("k"), "must be text, not int"),  # type: ignore[arg-type]
    (lambda: Setting(timedelta), "timedelta is not supported"),
    (lambda: Setting(int, default="30"), "the default of a Setting must be of its type, it is not converted, got '30'"),
    (lambda: MappingResolver({"find it": SECRET}).resolve("find it", "k"), "for 'find it' must be a mapping: {'k': ...}"),
    (lambda: context(credentials={"apikey": SECRET}), r"declares no credential 'apikey'; did you mean 'api_key'\?$"),
    (lambda: context(credentials={"api_key": 123456789}).credential("api_key"), "must be text, not int"),
    (lambda: MappingResolver({"k": b"123456789"}).resolve("find it", "k"), "the value of 'k' in a MappingResolver must be text or JSON data, got bytes"),
])
def test_a_wrong_argument_is_an_error_that_does_not_show_it(wrong: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, KernaiError), match=says) as caught:
        wrong()
    assert "123456789" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_no_repr_shows_a_credential() -> None:
    declared = skill_with(credentials={"k": Credential(default=SECRET)})
    ctx = SkillContext(declared, credentials={"k": SECRET})
    ctx.credential("k")
    for shown in (repr(ctx), repr(declared), repr(declared.credentials), repr(MappingResolver({"k": SECRET}))):
        assert SECRET not in shown


# ----------------------------------------------------------------------------------------------------- settings

Level = Enum("Level", "LOW HIGH")
CONVERTED: list[tuple[Any, object, object]] = [
    (str, "eu", "eu"), (str, "5", "5"), (int, "5", 5), (float, "2.5", 2.5), (bool, "true", True), (bool | None, "False", False), (str, "True", "True"), (int | None, "5", 5),
    (date, "2024-01-31", date(2024, 1, 31)), (Decimal, "1.50", Decimal("1.50")), (Literal["a", "b"], "a", "a"),
    (list[str], '["a", "b"]', ["a", "b"]), (dict[str, int], '{"a": 1}', {"a": 1}), (list[str] | None, "null", None),
    (int, 5, 5), (list[str], ["a"], ["a"]), (bool, True, True), (date, date(2024, 1, 31), date(2024, 1, 31)), (Level, "2", Level.HIGH),
]


@pytest.mark.parametrize("kind, given, expected", CONVERTED)
def test_a_setting_is_converted_to_its_type(kind: Any, given: object, expected: object) -> None:
    declared = skill_with(settings={"s": Setting(kind)})
    for settings in ({"s": given}, MappingResolver({"find it": {"s": given}})):
        assert SkillContext(declared, settings=settings).setting("s") == expected


@pytest.mark.parametrize("kind, given, expected", [
    (int, "soon", "integer"), (int, "5.0", "integer"), (bool, "yes", "boolean"), (float, "nan", "number"),
    (date, "never", "date"), (list[int], "[1, ", "list of integer"), (list[int], '["a"]', "integer"),
    (Literal["a"], "b", '"a"'), (int, "[" * 100_000, "integer"), (Annotated[int, Ge(1)], "0", "integer, at least 1"),
])
def test_an_invalid_setting_is_an_error_with_its_name_variable_expected_type_and_value(kind: Any, given: str, expected: str) -> None:
    declared = skill_with(settings={"s": Setting(kind)})
    with pytest.raises(KernaiError) as caught:
        SkillContext(declared, settings={"s": given}).setting("s")
    text = str(caught.value)
    for part in ("setting 's'", "'find it'", "KERNAI_SKILL_FIND_IT_S", f"expected {expected}", "received"):
        assert part in text
    assert len(text) < 300


def test_a_setting_without_a_value_has_its_default_unconverted() -> None:
    declared = skill_with(settings={"a": Setting(int), "b": Setting(int, default=["none"]), "c": Setting(default=None)})
    ctx = SkillContext(declared, settings={"c": None})
    ctx.setting("b").append("of this call alone")
    assert [ctx.setting(key) for key in "abc"] == [None, ["none"], None]
