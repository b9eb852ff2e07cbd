"""Generation options and media on their way out: what each vendor calls them, and what comes of those that it does not take."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from adapter_calls import ADAPTERS, HELLO, asked, bodies_to, body_of, replying, sent, user
from kernai import GenerationOptions, KernaiError, Media, Message, Model
from kernai_providers import HttpProvider, resolve
from vendor_wires import WIRES


@pytest.mark.parametrize("vendor,generation,adds", [
    ("openai", {"temperature": 0}, {"temperature": 0}),
    ("anthropic", {"thinking": {"effort": "high"}},
     {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}, "max_tokens": 20480}),
    ("anthropic", {"cache": True}, {"cache_control": {"type": "ephemeral"}}),
    *((vendor, {"cache": False}, {}) for vendor in ADAPTERS),
    ("openai-responses", {"extra": {"store": True, "reasoning": {"summary": "auto"}}}, {"store": True, "reasoning": {"summary": "auto"}}),
    *((vendor, {"cache": True}, {}) for vendor in ("gemini", "ollama")),
    *(("ollama", {"thinking": off}, {"think": False}) for off in ({"budget": 0}, {"effort": "none"})),
    ("deepseek", {"thinking": {"effort": "none"}}, {"thinking": {"type": "disabled"}}), ("deepseek", {"thinking": {"effort": "max"}}, {"reasoning_effort": "max"}),
    ("anthropic", {"thinking": {"budget": 1024}}, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 5120}),
    ("gemini", {"thinking": {"budget": 0}, "extra": {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}},  # objects in objects
     {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0, "includeThoughts": True}}}),
])
def test_options_are_sent_under_the_vendors_names(vendor: str, generation: Any, adds: dict[str, Any]) -> None:
    assert sent(vendor, generation=generation) == sent(vendor) | adds


ADAPTIVE_ALONE = ("claude-opus-4-7", "claude-opus-4-8", "claude-opus-5", "claude-sonnet-5-5", "anthropic/claude-haiku-5.5")
BY_BUDGET = ("claude-sonnet-4-5", "claude-haiku-4-5-20251001", "claude-opus-4-20250514", "claude-3-7-sonnet-20250219")


@pytest.mark.parametrize("vendor,id,generation,not_sent", [
    *(("anthropic", id, {"temperature": 0.5, "top_p": 0.9, "max_tokens": 9}, ["temperature", "top_p"]) for id in ADAPTIVE_ALONE),
    *(("openai", id, {"temperature": 0.5, "stop": "x"}, ["temperature", "stop"]) for id in ("gpt-5", "o3", "gpt-6.1-sol")),
    *(("openai-responses", id, {"top_p": 0.5, "stop": "x"}, ["top_p", "stop"]) for id in ("gpt-5", "o3-pro", "gpt-6.1-sol")),
    ("openai-responses", "gpt-4o", {"temperature": 0.5, "stop": "x"}, ["stop"]), ("openai", "o3-mini", {"stop": "x"}, None),
    *(("anthropic", id, {"temperature": 0.5}, None) for id in (*BY_BUDGET, "claude-opus-4-6", "claude-sonnet-4-6", "other")),
    *(("anthropic", "claude-sonnet-4-6", {"temperature": 0.5, "thinking": how}, ["temperature"]) for how in ({"effort": "low"}, {"budget": 2000})),
    *(("openai", id, {"temperature": 0.5}, None) for id in ("gpt-4o", "gpt-5-chat-latest", "gpt-5.3-chat-latest")),
    *((vendor, "gpt-5.2", {"temperature": 0.5, "thinking": {"effort": "none"}}, None) for vendor in ("openai", "openai-responses")),
])  # fmt: skip
def test_sampling_options_that_a_model_refuses_are_not_sent_and_the_response_says_so(
    vendor: str, id: str, generation: Any, not_sent: list[str] | None
) -> None:
    provider = replying(vendor, WIRES[vendor].stream(["Hi"]))
    answer = provider.call(HELLO, Model(id), GenerationOptions.coerce(generation), print)
    assert answer.metadata.get("not_sent") == not_sent
    (body,) = bodies_to(provider)
    names = {"temperature", "top_p", "stop"} & set(generation)
    assert {name for name in names if name in body} == names - set(not_sent or ())


@pytest.mark.parametrize("name,limit", [
    *((f"openai/{one}", "max_completion_tokens") for one in (
        "o1", "o1-mini", "o3", "o3-mini", "o4-mini", "o4-mini-2025-04-16", "gpt-5", "gpt-5-mini", "gpt-5.1",
        "openai/gpt-5", "ft:o4-mini-2025-04-16:acme::Ab1")),
    ("azure/o3", "max_completion_tokens"), ("bedrock/us.openai.gpt-5.6-luna", "max_completion_tokens"), ("bedrock/qwen.qwen3", "max_tokens"),
    ("groq/o3", "max_tokens"), ("openrouter/o3", "max_tokens"),  # which kept the old name
    *((f"openai/{one}", "max_tokens") for one in (
        "gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "gpt-4", "ft:gpt-4o-2024-08-06:acme::o1", "gpt-oss-120b", "o1x", "solo1")),
])  # fmt: skip
def test_openai_reasoning_models_get_the_new_name_of_the_limit(name: str, limit: str) -> None:
    needs: dict[str, Any] = {"azure": {"resource": "acme"}, "bedrock": {"region": "us-east-1"}}
    provider, model = resolve(name, api_key="k", **needs.get(name.partition("/")[0], {}))
    body = body_of(asked(provider, model, generation={"max_tokens": 7}))
    assert {one: body[one] for one in body if "tokens" in one} == {limit: 7}


@pytest.mark.parametrize("id,generation,limit", [
    ("claude-sonnet-5-5", {}, 20480), ("claude-opus-5", {"max_tokens": 9}, 9), ("claude-opus-4-8", {}, 4096), ("other", {}, 4096),
    ("claude-opus-4-8", {"thinking": {"effort": "low"}}, 20480),
])  # fmt: skip
def test_a_claude_that_decides_how_much_it_thinks_has_tokens_for_it(id: str, generation: Any, limit: int) -> None:
    provider, model = resolve(f"anthropic/{id}", api_key="k")
    assert body_of(asked(provider, model, generation=generation))["max_tokens"] == limit


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_extra_is_merged_into_the_body_unchanged(vendor: str) -> None:
    extra = {"model": "other", "stop": ["x", None, {"deep": [1.5, True]}], "temperature": None, "messages": [], "contents": []}
    body = sent(vendor, generation={"temperature": 0.5, "extra": extra})
    plain = sent(vendor, generation={"temperature": 0.5})
    assert body == plain | extra
    assert list(body)[: len(plain)] == list(plain)


@pytest.mark.parametrize("vendor,group", [("gemini", "generationConfig"), ("ollama", "options")])
def test_a_group_of_options_in_extra_adds_to_the_group_and_wins_over_it(vendor: str, group: str) -> None:
    def grouped(extra: Any, **generation: Any) -> Any:
        return sent(vendor, generation={**generation, "extra": {group: extra}})[group]

    assert grouped({"seed": 1}, temperature=0.5) == {"temperature": 0.5, "seed": 1}
    assert grouped({"temperature": 1, "seed": 1}, temperature=0.5) == {"temperature": 1, "seed": 1}
    assert grouped({"seed": 1}) == {"seed": 1}
    assert grouped(None, temperature=0.5) is None
    mine = {group: {"seed": 1}}
    sent(vendor, generation={"temperature": 0.5, "extra": mine})
    assert mine == {group: {"seed": 1}}


NO_JSON: list[Any] = [{"x": object()}, {("a", "b"): 1}, {"x": float("nan")}]


@pytest.mark.parametrize("vendor,id,generation,says", [
    *(("anthropic", id, {"thinking": {"budget": 2000}}, "takes no thinking budget") for id in ADAPTIVE_ALONE),
    *(("anthropic", id, {"thinking": {"effort": "high"}}, "has no adaptive thinking") for id in BY_BUDGET),
    ("anthropic", "m", {"thinking": {"budget": 1023}}, "generation.thinking budget must be at least 1024 tokens, got 1023"),
    ("anthropic", "m", {"thinking": {"budget": 4096}, "max_tokens": 4096}, "budget (4096) must be below max_tokens (4096)"),
    *((vendor, "m", {"extra": wrong}, "extra") for vendor in ADAPTERS for wrong in NO_JSON),
    *((vendor, "m", {name: float("nan")}, name) for vendor in ADAPTERS for name in ("temperature", "top_p")),
])
def test_an_option_that_the_model_or_json_does_not_take_is_an_error_before_anything_is_sent(
    vendor: str, id: str, generation: Any, says: str
) -> None:
    provider = replying(vendor, [])
    with pytest.raises(ValueError, match=re.escape(says)):
        provider.call(HELLO, Model(id), GenerationOptions.coerce(generation), print)
    assert bodies_to(provider) == []


# Media on its way out: every kind, source and capability gives the vendor's shape, or the placeholder's text.


CAPABILITY = {"image": "vision", "audio": "audio_in", "video": "video_in", "document": "document_in"}
SAMPLES = {
    "image": ("image/png", "png"), "audio": ("audio/wav", "wav"), "video": ("video/mp4", "mp4"), "document": ("application/pdf", "pdf"),
}  # fmt: skip
PAYLOAD = b"\x00\xffdata"
BASE64 = "AP9kYXRh"
ALL = Model("m", ("text", *CAPABILITY.values()))
TEXT_ONLY = Model("m")

#: `{url}` for a URL; whatever is not in here is a placeholder
INLINE: dict[tuple[str, str], Any] = {
    ("openai", "image"): {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
    ("openai", "audio"): {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}},
    ("openai", "document"): {"type": "file", "file": {"filename": "{id}.pdf", "file_data": f"data:application/pdf;base64,{BASE64}"}},
    ("openai-responses", "image"): {"type": "input_image", "image_url": f"data:image/png;base64,{BASE64}", "detail": "auto"},
    ("openai-responses", "document"): {"type": "input_file", "filename": "{id}.pdf", "file_data": f"data:application/pdf;base64,{BASE64}"},
    ("anthropic", "image"): {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}},
    ("anthropic", "document"): {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": BASE64}},
    ("ollama", "image"): {"image": BASE64},
    **{("gemini", kind): {"inlineData": {"mimeType": mime, "data": BASE64}} for kind, (mime, _) in SAMPLES.items()},
}  # fmt: skip
BY_URL: dict[tuple[str, str], Any] = {
    ("openai", "image"): {"type": "image_url", "image_url": {"url": "{url}"}},
    ("openai-responses", "image"): {"type": "input_image", "image_url": "{url}", "detail": "auto"},
    ("openai-responses", "document"): {"type": "input_file", "file_url": "{url}"},
    ("anthropic", "image"): {"type": "image", "source": {"type": "url", "url": "{url}"}},
    ("anthropic", "document"): {"type": "document", "source": {"type": "url", "url": "{url}"}},
    **{("gemini", kind): {"fileData": {"mimeType": mime, "fileUri": "{url}"}} for kind, (mime, _) in SAMPLES.items()},
}  # fmt: skip

URLS = {
    "https": "https://cdn.example.com/a/b.{ending}?sig=1&x=%20y",
    "https, in capitals": "HTTPS://cdn.example.com/b.{ending}",
    "http": "http://cdn.example.com/b.{ending}",
    "gs": "gs://bucket/b.{ending}",
    "data": "data:image/png;base64,AAAA#.{ending}",
    "file": "file:///etc/passwd.{ending}",
    "no scheme": "//example.com/b.{ending}",
    "a scheme that only begins so": "httpsx://example.com/b.{ending}",
    "https without slashes": "https:b.{ending}",
    "a blank in it": "https://example.com/a b.{ending}",
    "a line break in it": "https://example.com/a\r\nb.{ending}",
    "half a character in it": "https://example.com/\ud83d.{ending}",
}
#: the field that holds the conversation, if not `messages`
PLACES = {"openai-responses": "input", "gemini": "contents"}
PASSED_ON = {"https": ADAPTERS, "https, in capitals": ADAPTERS, "gs": ("gemini",)}


def adapter(vendor: str) -> HttpProvider:
    return ADAPTERS[vendor](api_key="test-key", base_url="https://api.example.com")


def one(vendor: str, media: Media, model: Model) -> Any:
    """The JSON of one medium, sent between two texts of the same form."""
    before, shape, after = adapter(vendor).encode(["see", media, "there"], model)
    assert (before, after) == (text(vendor, "see"), text(vendor, "there"))
    return shape


def text(vendor: str, said: str) -> dict[str, str]:
    kind = {"openai": "text", "openai-responses": "input_text", "anthropic": "text"}.get(vendor)
    return {"text": said} if kind is None else {"type": kind, "text": said}


def placeholder(vendor: str, media: Media) -> dict[str, str]:
    return text(vendor, f"[{media.kind} unavailable: {media.mime_type}]")


def filled(shape: Any, **values: str) -> Any:
    if isinstance(shape, dict):
        return {name: filled(inner, **values) for name, inner in shape.items()}
    for name, value in values.items():
        shape = value if shape == f"{{{name}}}" else shape.replace(f"{{{name}}}", value)
    return shape


CASES = list(itertools.product(ADAPTERS, SAMPLES))


@pytest.mark.parametrize("source", ["bytes", "file"])
@pytest.mark.parametrize("vendor,kind", CASES)
def test_bytes_and_files_are_sent_inline_if_vendor_and_model_accept_them_or_else_named(vendor: str, kind: str, source: str, tmp_path: Path) -> None:
    mime, ending = SAMPLES[kind]
    path = tmp_path / f"private name.{ending}"
    path.write_bytes(PAYLOAD)
    media = Media.from_bytes(PAYLOAD, mime_type=mime) if source == "bytes" else Media.from_file(path)
    takes_only_this = Model("m", ("text", CAPABILITY[kind]))
    expected = filled(INLINE[vendor, kind], id=media.id) if (vendor, kind) in INLINE else placeholder(vendor, media)
    assert one(vendor, media, ALL) == expected
    assert one(vendor, media, takes_only_this) == expected
    assert "private" not in str(expected)
    path.unlink()  # no file is read for a model that does not take it
    for model in (TEXT_ONLY, Model("m", tuple(word for word in ALL.capabilities if word != CAPABILITY[kind]))):
        for unsupported in (media, Media.from_url(f"https://example.com/b.{ending}")):
            assert one(vendor, unsupported, model) == placeholder(vendor, unsupported)


@pytest.mark.parametrize("written", URLS)
def test_only_https_is_passed_on_and_gs_to_gemini(written: str) -> None:
    for vendor, kind in CASES:
        mime, ending = SAMPLES[kind]
        url = URLS[written].replace("{ending}", ending)
        media = Media(kind, mime, "url", url)  # type: ignore[arg-type]  # as read from a history
        passed_on = vendor in PASSED_ON.get(written, ()) and (vendor, kind) in BY_URL
        assert one(vendor, media, ALL) == (filled(BY_URL[vendor, kind], url=url) if passed_on else placeholder(vendor, media))


@pytest.mark.parametrize("vendor", ["openai", "openai-responses", "anthropic", "gemini"])
@pytest.mark.parametrize("start,mime", [
    (b"\x89PNG", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF89a", "image/gif"), (b"RIFFsizeWEBP", "image/webp")])
def test_an_image_has_the_type_of_its_data_whatever_a_tool_declares(vendor: str, start: bytes, mime: str) -> None:
    expected = one(vendor, Media.from_bytes(start, mime_type=mime), ALL)
    assert mime in str(expected)
    for declared in ("image/jpg", "image/png", "image/webp", "image/bmp", "Image/PNG", "binary/octet-stream"):
        assert one(vendor, Media.from_bytes(start, mime_type=declared, kind="image"), ALL) == expected


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_drawing_as_svg_which_no_vendor_reads_becomes_its_placeholder(vendor: str) -> None:
    for drawing in (Media.from_bytes(b"<svg/>", mime_type="image/svg+xml"), Media.from_url("https://example.com/a.svg")):
        assert one(vendor, drawing, ALL) == placeholder(vendor, drawing)


@pytest.mark.parametrize("mime,format", [
    *((mime, "wav") for mime in ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave")), ("audio/mpeg", "mp3"), ("audio/mp3", "mp3"),
])  # fmt: skip
def test_openai_is_told_the_format_of_a_sound_in_its_own_word(mime: str, format: str) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": BASE64, "format": format}}
    assert one("openai", Media.from_bytes(PAYLOAD, mime_type=mime), ALL) == sound


@pytest.mark.parametrize("payload,said,mime", [
    (b"plain", "plain", "text/plain"), ("größer".encode(), "größer", "text/markdown"), (b"a\xffb", "a�b", "text/csv")])
def test_anthropic_takes_a_text_as_a_document(payload: bytes, said: str, mime: str) -> None:
    media = Media.from_bytes(payload, mime_type=mime)
    shape = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": said}}
    assert one("anthropic", media, ALL) == shape
    by_url = Media.from_url("https://example.com/a.txt")
    assert one("anthropic", by_url, ALL) == placeholder("anthropic", by_url)


def test_gemini_gets_no_type_where_none_is_known() -> None:
    media = Media.from_url("https://example.com/photo", kind="image")
    assert one("gemini", media, ALL) == {"fileData": {"fileUri": "https://example.com/photo"}}


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_a_missing_file_that_the_model_takes_is_an_error_that_names_it(vendor: str, tmp_path: Path) -> None:
    with pytest.raises(KernaiError, match=r"cannot read media file .*gone\.png"):
        one(vendor, Media.from_file(tmp_path / "gone.png"), ALL)


def content(vendor: str, parts: list[Any], model: Model) -> Any:
    body = sent(vendor, [user(*parts)], id=model.id, capabilities=model.capabilities)
    (message,) = body[PLACES.get(vendor, "messages")]
    return message.get("parts") if vendor == "gemini" else message


def test_media_keep_their_position_in_the_message() -> None:
    image, sound = Media.from_bytes(PAYLOAD, mime_type="image/png"), Media.from_bytes(PAYLOAD, mime_type="audio/wav")
    parts = ["look", image, "and hear", sound, image]
    sees = Model("m", ("text", "vision"))
    for vendor in ("openai", "openai-responses", "anthropic"):
        shape = INLINE[vendor, "image"]
        expected = [text(vendor, "look"), shape, text(vendor, "and hear"), placeholder(vendor, sound), shape]
        assert content(vendor, parts, sees) == {"role": "user", "content": expected}
    shape = INLINE["gemini", "image"]
    unheard = placeholder("gemini", sound)
    assert content("gemini", parts, sees) == [text("gemini", "look"), shape, text("gemini", "and hear"), unheard, shape]
    # Ollama's content is one text, with the images beside it
    assert content("ollama", parts, sees) == {
        "role": "user", "content": "lookand hear[audio unavailable: audio/wav]", "images": [BASE64, BASE64],
    }  # fmt: skip
    assert content("ollama", ["no media"], sees) == {"role": "user", "content": "no media"}


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_media_of_the_assistants_own_is_sent_to_those_who_take_it_from_there(vendor: str) -> None:
    image = Media.from_bytes(PAYLOAD, mime_type="image/png")
    tape = [user("draw"), Message("assistant", ["Here: ", image]), user("thanks")]
    said = sent(vendor, tape, capabilities=ALL.capabilities)[PLACES.get(vendor, "messages")][1]
    if vendor == "gemini":
        assert said == {"role": "model", "parts": [text(vendor, "Here: "), INLINE["gemini", "image"]]}
    else:
        assert said == {"role": "assistant", "content": "Here: [image unavailable: image/png]"}


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_the_response_says_which_media_were_replaced(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, unseen = (Media.from_bytes(PAYLOAD, mime_type=one) for one in ("image/png", "video/mp4"))
    given, provider = (Model("m", ("vision",)), GenerationOptions(), print), replying(vendor, WIRES[vendor].stream(["Hi"]))
    answer = provider.call([user(seen, unseen)], *given)
    assert answer.metadata["not_sent"] == ["[video unavailable: video/mp4]"]
    monkeypatch.setattr(provider, "fallback_for", pytest.fail)  # one of a subclass may refuse media
    assert "not_sent" not in provider.call([user(seen)], *given).metadata


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_media_in_a_system_message_is_named_and_not_sent(vendor: str) -> None:
    image = Media.from_bytes(PAYLOAD, mime_type="image/png")
    system, turns = adapter(vendor).turns([Message("system", ["Logo: ", image]), Message("user", "Hi")], ALL)
    assert system == f"Logo: [image:{image.id}]"
    assert [role for role, _ in turns] == ["user"]
