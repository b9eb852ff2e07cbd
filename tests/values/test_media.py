"""`Media`: identity, MIME types and kinds, what is read when, what never shows. `MediaStore`: media by id."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import KernaiError, Media, MediaStore
from kernai.testing.contracts import at_once
from kernai.values.media import FALLBACK_MIME, KINDS, MIME_TYPES, MediaReference

PNG = b"\x89PNG\r\n\x1a\n payload"


def of_bytes(data: bytes | bytearray | memoryview, mime_type: str = "image/png", **more: Any) -> Media:
    return Media.from_bytes(data, mime_type=mime_type, **more)


# ---------------------------------------------------------------------------------------------------- identity


@given(st.binary())
def test_the_id_is_the_beginning_of_the_sha1_of_the_bytes(data: bytes) -> None:
    expected = "media_" + hashlib.sha1(data).hexdigest()[:12]
    assert of_bytes(data).id == of_bytes(data, "text/plain", kind="image", metadata={"a": 1}).id == expected


@pytest.mark.parametrize("text", ["photos/a.png", "photos/ä b.png", "photos/\udcff.png"])
def test_the_id_of_a_file_or_a_url_is_that_of_its_text(text: str) -> None:
    expected = of_bytes(text.encode("utf-8", "surrogatepass")).id
    assert Media.from_file(text).id == Media.from_file(Path(text)).id == Media("image", "image/png", "url", text).id == expected


def test_equal_media_compare_and_hash_alike() -> None:
    one = of_bytes(PNG, metadata={"page": 1})
    alike = [of_bytes(bytearray(PNG), metadata={"page": 1}), of_bytes(memoryview(PNG), metadata={"page": 1})]
    assert alike == [one] * 2
    assert len({one, *alike}) == len({one.id, *(other.id for other in alike)}) == 1
    assert one not in (of_bytes(PNG, metadata={"page": 2}), of_bytes(PNG, "image/gif", metadata={"page": 1}))


def test_a_file_with_a_payload_is_the_same_reference_with_other_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"now")
    now = Media.from_file(tmp_path / "a.png", metadata={"page": 1})
    then = replace(now, payload=b"then")
    for one in (then, copy.copy(then), pickle.loads(pickle.dumps(then))):
        assert (one.read_bytes(), one.to_base64()) == (b"then", "dGhlbg==")
        assert (one, one.id, hash(one), one.to_dict(), repr(one)) == (now, now.id, hash(now), now.to_dict(), repr(now))
    assert now.read_bytes() == b"now"
    for other in (Media.from_url("https://a/b"), of_bytes(PNG)):
        with pytest.raises(ValueError, match="payload must be the bytes of a file, beside source 'path'"):
            replace(other, payload=b"x")


def test_media_cannot_be_changed_not_even_through_what_it_was_made_of() -> None:
    metadata, data = {"page": 1}, bytearray(b"abc")
    media = of_bytes(data, metadata=metadata)
    metadata["page"], data[0] = 2, 0
    assert (dict(media.metadata), media.read_bytes()) == ({"page": 1}, b"abc")
    with pytest.raises(TypeError):
        media.metadata["page"] = 3  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        media.kind = "audio"  # type: ignore[misc]
    assert replace(media, metadata={"page": 4}).id == media.id


# -------------------------------------------------------------------------------------------- MIME type and kind


@pytest.mark.parametrize("name, mime_type, kind", [
    ("a.png", "image/png", "image"),
    ("A.PNG", "image/png", "image"),
    ("a.mp3", "audio/mpeg", "audio"), ("a.opus", "audio/ogg", "audio"), ("a.jfif", "image/jpeg", "image"),
    ("a.pdf", "application/pdf", "document"),
    *((name, FALLBACK_MIME, "document") for name in ("a.tar.gz", "a.unknown", "a", "a.", "", "folder.png/a", ".png", "a.png\n")),
    *((f"https://x.org/a.png{more}", "image/png", "image") for more in ("", "?size=2&name=b.gif", "#part.gif", "?x#y?z.gif")),
    ("https://example.org/show?file=a.png", FALLBACK_MIME, "document"),
    ("s3://bucket/key/a.pdf", "application/pdf", "document"),
])
def test_the_ending_of_a_file_or_of_a_urls_path_decides_its_type_and_kind(name: str, mime_type: str, kind: str) -> None:
    media = Media.from_url(name) if "://" in name else Media.from_file(f"no-such-folder/{name}")
    assert (media.mime_type, media.kind) == (mime_type, kind)


def test_the_kind_comes_from_the_mime_type() -> None:
    assert {of_bytes(b"", mime_type).kind for mime_type in MIME_TYPES.values()} == set(KINDS)
    for mime_type, kind in (("image/svg+xml", "image"), ("IMAGE/PNG", "image"), ("audio/x-whatever", "audio"),
                            ("imagery/png", "document"), ("model/gltf+json", "document")):
        assert of_bytes(b"", mime_type).kind == kind


@pytest.mark.parametrize("url, media", [
    ("data:image/png;base64,iVBORw0KGgogcGF5bG9hZA==", of_bytes(PNG)), ("DATA:image/png;x=y;BASE64,iVBORw0KGgogcGF5bG9hZA%3D%3D", of_bytes(PNG)),
    ("data:,a%20b,c", of_bytes(b"a b,c", "text/plain")), ("data:text/csv;charset=utf-8,a\n%0Ab", of_bytes(b"a\n\nb", "text/csv")),
])
def test_a_data_url_is_the_media_in_it(url: str, media: Media) -> None:
    assert Media.from_url(url) == media


def test_what_is_given_goes_before_what_is_guessed() -> None:
    assert Media.from_url("data:;base64,AA==", mime_type="audio/wav", kind="document") == of_bytes(b"\0", "audio/wav", kind="document")
    assert Media.from_url("data:" + "x" * 1_000_000).is_url  # in linear time: it took an hour
    assert Media.from_file("scan.png", mime_type="application/pdf").kind == "document"
    assert Media.from_file("scan.png", kind="document").mime_type == "image/png"
    media = Media.from_url("https://example.org/a", mime_type="image/webp", kind="video", metadata={"a": 1})
    assert (media.kind, media.mime_type, dict(media.metadata)) == ("video", "image/webp", {"a": 1})


# --------------------------------------------------------------------------------------------- wrong arguments

NO_TYPES: list[Any] = [
    "", "png", "image/", "/png", "image/png ", " image/png", "image/png; charset=utf-8", "image/png\r\nX-Evil: 1",
    'image/png"><block type="final">', "image//png", "imäge/png", "a/b/c", None, b"image/png",
]
PATH: Any = __file__
WRONG: list[tuple[Callable[[], object], type[Exception], str]] = [
    (Media.from_url("https://example.org/a.png").read_bytes, KernaiError, r"does not fetch URLs: download it and use Media\.from_bytes"),
    *((lambda wrong=wrong: Media("image", wrong, "bytes", b""), ValueError, "mime_type must look like") for wrong in NO_TYPES),
    (lambda: of_bytes(b"", "a/b", kind="picture"), ValueError, "kind must be one of image"),
    (lambda: of_bytes("text"), TypeError, "for a file use Media.from_file"),  # type: ignore[arg-type]
    (lambda: Media("image", "image/png", "bytes", 5), TypeError, "data must be text or bytes, got int"),  # type: ignore[arg-type]
    (lambda: of_bytes(b"", metadata=[1]), TypeError, "metadata must be a mapping"),
    (lambda: Media.from_bytes(b""), TypeError, "mime_type"),  # type: ignore[call-arg]
    (lambda: Media("image", "image/png", "bytes", PATH), ValueError, "source must be 'bytes' for bytes, 'path' or 'url' for text"),
    (lambda: Media("image", "image/png", "file", PATH), ValueError, "source must be .* got 'file'"),  # type: ignore[arg-type]
    *((lambda wrong=wrong: of_bytes(b"", wrong), ValueError, "mime_type must look like") for wrong in (b"image/png", None)),
    *((lambda wrong=wrong: Media.from_url(wrong), ValueError, r"url must have a scheme such as https:, got .*; for a file use Media.from_file")
      for wrong in ("", None, "photos/a.png?SECRET", "C:\\a.png", " https://x.org/a.png", "//x.org/a.png")),
    (lambda: Media.from_url("data:image/png;base64,SECRET"), ValueError, "the payload of the data URL is not base64"),
    (lambda: Media.from_url("data:png,SECRET"), ValueError, "mime_type must look like 'image/png', got 'png'"),
    *((lambda wrong=wrong: Media.from_file(wrong), TypeError, "path must be text or a Path, got") for wrong in (b"a.png", None)),
    (lambda: Media.from_file("."), ValueError, "path must be a regular file"),
    (lambda: MediaStore().put("media_1"), TypeError, "a MediaStore holds Media, got str"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("build, error, message", WRONG)
def test_a_wrong_argument_of_media_is_an_error_that_names_it(build: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        build()
    assert "SECRET" not in str(caught.value)


def test_a_pipe_is_refused_before_anything_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ValueError, match="path must be a regular file"):
        Media.from_file(tmp_path / "pipe.png")


# ------------------------------------------------------------------------------------------------- the payload


def test_a_file_is_read_each_time_it_is_asked_for(tmp_path: Path) -> None:
    media = Media.from_file(tmp_path / "a.png")
    for read in (media.read_bytes, media.to_base64):
        with pytest.raises(KernaiError, match=r"cannot read media file .*a\.png.*No such file"):
            read()
    for data in (PNG, b"later"):
        (tmp_path / "a.png").write_bytes(data)
        assert media.read_bytes() == data
    with pytest.raises(KernaiError, match=r"cannot read media file .*null byte"):
        Media.from_file("a\0.png").read_bytes()


# ------------------------------------------------------------------------------------------- what never shows


def shown(media: Media) -> str:
    """Everything that may end up in a log, a recording or a traceback."""
    return f"{media!r} {media} {json.dumps(media.to_dict())}"


@pytest.mark.parametrize("url", [
    "https://example.org/a.png?signature=SECRET", "https://example.org/a.png#SECRET",
    "https://user:SECRET@example.org/a.png", "https://SECRET@example.org/a.png?SECRET#SECRET",
    "/a.png?signature=SECRET", "data:image/png;base64,SECRET", "DATA:image/png;base64,SECRET",
    "data:text/plain,http://SECRET@SECRET/",
])
def test_the_secret_parts_of_a_url_never_show(url: str) -> None:
    media = Media("image", "image/png", "url", url)
    assert "SECRET" not in shown(media)
    assert media.data == url


def test_a_reference_says_where_the_media_is_and_holds_no_payload() -> None:
    media = of_bytes(PNG, metadata={"page": 1})
    assert media.to_dict() == {
        "id": media.id, "kind": "image", "mime_type": "image/png", "source": "bytes", "size": len(PNG), "metadata": {"page": 1},
    }
    assert "payload" not in shown(media)
    assert media.to_base64() == "iVBORw0KGgogcGF5bG9hZA=="
    assert media.to_base64() not in shown(media)
    assert repr(media) == f"Media(image image/png bytes='{len(PNG)} bytes' id={media.id})"
    file, url = Media.from_file("a/b.png"), Media.from_url("https://example.org/a.png?x=1")
    assert (file.to_dict()["data"], url.to_dict()["data"]) == ("a/b.png", "https://example.org/a.png")
    assert [(one.is_path, one.is_url, one.is_bytes) for one in (file, url, media)] == [
        (True, False, False), (False, True, False), (False, False, True),
    ]
    recorded = pickle.loads(pickle.dumps(MediaReference(media.to_dict())))
    assert (recorded.id, recorded.to_dict()) == (media.id, media.to_dict())
    with pytest.raises(KernaiError, match=f"the recording has a reference to {media.id}, but not its data"):
        recorded.read_bytes()


# ------------------------------------------------------------------------------------------------------------ the store

IMAGE = of_bytes(b"image")
SOUND = of_bytes(b"sound", "audio/wav")


def test_what_was_put_is_fetched_by_its_id() -> None:
    store = MediaStore([IMAGE])
    again = of_bytes(b"image", "image/gif")
    assert store.put(SOUND) is SOUND
    assert store.put(again) is again
    assert store.fetch(IMAGE.id) is IMAGE  # the first one stays
    assert store.get(SOUND.id) is SOUND
    assert (list(store), len(store), IMAGE.id in store, repr(store)) == ([IMAGE, SOUND], 2, True, "MediaStore(2 media)")


def test_an_unknown_id_is_an_error_or_nothing() -> None:
    store = MediaStore()
    with pytest.raises(KernaiError, match="no media with id 'media_0'"):
        store.fetch("media_0")
    assert (store.get("media_0"), "media_0" in store, 5 in store) == (None, False, False)
    assert (bool(store), len(store)) == (True, 0), "an empty store is still a store"


@pytest.mark.parametrize("first, second", [
    # two payloads whose SHA-1 begin with the same 12 hex digits; found by search
    (of_bytes(b"5f7f9ec9498b"), of_bytes(b"03ce1ad4b315")),
    (of_bytes(b"a.png"), Media.from_file("a.png")),
])
def test_other_data_under_a_known_id_is_refused(first: Media, second: Media) -> None:
    assert first.id == second.id
    store = MediaStore([first])
    with pytest.raises(KernaiError, match=f"{first.id} is already in the store with other data"):
        store.put(second)
    assert store.fetch(first.id).data == first.data


def test_many_threads_may_put_and_look_at_once() -> None:
    store = MediaStore()
    media = [of_bytes(bytes([number])) for number in range(50)]
    seen: list[int] = []

    def work(_: int) -> None:
        for one in media:
            store.put(one)
            assert store.fetch(one.id).data == one.data
            seen.append(len(list(store)))

    assert at_once(work, 8) == []
    assert len(seen) == 8 * 50
    assert list(store) == media
