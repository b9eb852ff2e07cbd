"""Media on its way out: every kind, source and capability gives the vendor's shape, or the placeholder's text.

Nothing is ever fetched, and a file is read only when the model takes what is in it.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from asking import ADAPTERS, sent, user
from kernai import KernaiError, Media, Message, Model
from kernai_providers import HttpProvider

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
    "s3": "s3://bucket/b.{ending}",
    "data": "data:image/png;base64,AAAA#.{ending}",
    "file": "file:///etc/passwd.{ending}",
    "ftp": "ftp://example.com/b.{ending}",
    "no scheme": "//example.com/b.{ending}",
    "a scheme that only begins so": "httpsx://example.com/b.{ending}",
    "https without slashes": "https:b.{ending}",
    "a script": "javascript:alert(1)//.{ending}",
    "a blank before it": " https://example.com/b.{ending}",
    "a blank in it": "https://example.com/a b.{ending}",
    "a line break in it": "https://example.com/a\r\nb.{ending}",
    "NUL in it": "https://example.com/\x00.{ending}",
    "a tab in it": "https://exa\tmple.com/b.{ending}",
    "a direction mark in it": "https://example.com/\u202eb.{ending}",
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
def test_bytes_and_files_go_inline_where_the_vendor_takes_them(vendor: str, kind: str, source: str, tmp_path: Path) -> None:
    mime, ending = SAMPLES[kind]
    path = tmp_path / f"private name.{ending}"
    path.write_bytes(PAYLOAD)
    media = Media.from_bytes(PAYLOAD, mime_type=mime) if source == "bytes" else Media.from_file(path)
    takes_only_this = Model("m", ("text", CAPABILITY[kind]))
    expected = filled(INLINE[vendor, kind], id=media.id) if (vendor, kind) in INLINE else placeholder(vendor, media)
    assert one(vendor, media, ALL) == expected
    assert one(vendor, media, takes_only_this) == expected
    assert "private" not in str(expected)


@pytest.mark.parametrize("vendor,kind", CASES)
def test_what_the_model_does_not_declare_becomes_the_placeholder_and_no_file_is_read(vendor: str, kind: str, tmp_path: Path) -> None:
    mime, ending = SAMPLES[kind]
    lacks_it = Model("m", tuple(word for word in ALL.capabilities if word != CAPABILITY[kind]))
    for media in (
        Media.from_file(tmp_path / f"missing.{ending}"),
        Media.from_bytes(PAYLOAD, mime_type=mime),
        Media.from_url(f"https://example.com/b.{ending}"),
    ):
        assert one(vendor, media, lacks_it) == placeholder(vendor, media)
        assert one(vendor, media, TEXT_ONLY) == placeholder(vendor, media)


@pytest.mark.parametrize("written", URLS)
@pytest.mark.parametrize("vendor,kind", CASES)
def test_only_https_is_passed_on_and_gs_to_gemini(vendor: str, kind: str, written: str) -> None:
    mime, ending = SAMPLES[kind]
    url = URLS[written].replace("{ending}", ending)
    media = Media.from_url(url, kind=kind, mime_type=mime)
    passed_on = vendor in PASSED_ON.get(written, ()) and (vendor, kind) in BY_URL
    assert one(vendor, media, ALL) == (filled(BY_URL[vendor, kind], url=url) if passed_on else placeholder(vendor, media))


@pytest.mark.parametrize(
    "vendor,mime,taken",
    [
        *(("openai", mime, "wav") for mime in ("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave")),
        *(("openai", mime, "mp3") for mime in ("audio/mpeg", "audio/mp3")),
        *(("openai", mime, None) for mime in ("audio/ogg", "audio/flac", "text/plain", "video/mp4", "application/zip")),
        *(("openai-responses", mime, mime) for mime in ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")),
        *(("openai-responses", mime, None) for mime in ("image/svg+xml", "audio/wav", "audio/mpeg", "text/plain", "video/mp4")),
        *(("anthropic", mime, mime) for mime in ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")),
        *(("anthropic", mime, None) for mime in ("image/svg+xml", "image/bmp", "image/heic", "application/zip", "audio/wav")),
        *(("gemini", mime, mime) for mime in ("image/heic", "audio/ogg", "video/quicktime", "text/csv")),
        *(("ollama", mime, BASE64) for mime in ("image/png", "image/webp")),
        *(("ollama", mime, None) for mime in ("application/pdf", "audio/wav", "video/mp4")),
    ],
)  # fmt: skip
def test_which_types_each_vendor_takes(vendor: str, mime: str, taken: str | None) -> None:
    media = Media.from_bytes(PAYLOAD, mime_type=mime)
    shape = one(vendor, media, ALL)
    assert (shape == placeholder(vendor, media)) == (taken is None)
    assert taken is None or taken in str(shape)


@pytest.mark.parametrize("payload,said", [(b"plain", "plain"), ("größer".encode(), "größer"), (b"a\xffb", "a�b")])
def test_anthropic_takes_a_text_as_a_document(payload: bytes, said: str) -> None:
    media = Media.from_bytes(payload, mime_type="text/plain")
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
    """The content of a user's message as it is sent."""
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
    instead = "[image unavailable: image/png]"
    assert said == {
        "openai": {"role": "assistant", "content": f"Here: {instead}"},
        "openai-responses": {"role": "assistant", "content": f"Here: {instead}"},
        "anthropic": {"role": "assistant", "content": f"Here: {instead}"},
        "gemini": {"role": "model", "parts": [text(vendor, "Here: "), INLINE["gemini", "image"]]},
        "ollama": {"role": "assistant", "content": f"Here: {instead}"},
    }[vendor]


@pytest.mark.parametrize("vendor", ADAPTERS)
def test_media_in_a_system_message_is_named_and_not_sent(vendor: str) -> None:
    image = Media.from_bytes(PAYLOAD, mime_type="image/png")
    system, turns = adapter(vendor).turns([Message("system", ["Logo: ", image]), Message("user", "Hi")], ALL)
    assert system == f"Logo: [image:{image.id}]"
    assert [role for role, _ in turns] == ["user"]
