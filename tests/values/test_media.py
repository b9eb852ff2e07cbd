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
from kernai.values.media import FALLBACK_MIME, KINDS, MIME_TYPES

PNG = b"\x89PNG\r\n\x1a\n payload"


# ---------------------------------------------------------------------------------------------------- identity


@given(st.binary())
def test_the_id_is_the_beginning_of_the_sha1_of_the_bytes(data: bytes) -> None:
    expected = "media_" + hashlib.sha1(data).hexdigest()[:12]
    assert Media.from_bytes(data, mime_type="image/png").id == expected
    assert Media.from_bytes(data, mime_type="text/plain", kind="image", metadata={"a": 1}).id == expected


@pytest.mark.parametrize("text", ["photos/a.png", "photos/ä b.png", "photos/\udcff.png"])
def test_the_id_of_a_file_or_a_url_is_that_of_its_text(text: str) -> None:
    expected = Media.from_bytes(text.encode("utf-8", "surrogatepass"), mime_type="image/png").id
    assert Media.from_file(text).id == expected
    assert Media.from_file(Path(text)).id == expected
    assert Media.from_url(text).id == expected


def test_equal_media_compare_and_hash_alike() -> None:
    one = Media.from_bytes(PNG, mime_type="image/png", metadata={"page": 1})
    same = Media.from_bytes(bytearray(PNG), mime_type="image/png", metadata={"page": 1})
    assert one == same
    assert len({one, same, Media.from_bytes(memoryview(PNG), mime_type="image/png", metadata={"page": 1})}) == 1
    assert one != Media.from_bytes(PNG, mime_type="image/png", metadata={"page": 2})
    assert one != Media.from_bytes(PNG, mime_type="image/gif", metadata={"page": 1})


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda media: pickle.loads(pickle.dumps(media))])
def test_a_copy_is_equal_and_has_the_same_id(again: Callable[[Media], Media]) -> None:
    media = Media.from_bytes(PNG, mime_type="image/png", metadata={"page": 1})
    assert again(media) == media
    assert again(media).id == media.id


def test_a_file_with_a_payload_is_the_same_reference_with_other_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"now")
    now = Media.from_file(tmp_path / "a.png", metadata={"page": 1})
    then = replace(now, payload=b"then")
    for one in (then, copy.copy(then), pickle.loads(pickle.dumps(then))):
        assert (one.read_bytes(), one.to_base64()) == (b"then", "dGhlbg==")
        assert (one, one.id, hash(one), one.to_dict(), repr(one)) == (now, now.id, hash(now), now.to_dict(), repr(now))
    assert now.read_bytes() == b"now"
    for other in (Media.from_url("https://a/b"), Media.from_bytes(PNG, mime_type="image/png")):
        with pytest.raises(ValueError, match="payload must be the bytes of a file, beside source 'path'"):
            replace(other, payload=b"x")


def test_media_and_its_metadata_cannot_be_changed() -> None:
    given_metadata = {"page": 1}
    media = Media.from_url("https://example.org/a.png", metadata=given_metadata)
    given_metadata["page"] = 2
    assert dict(media.metadata) == {"page": 1}
    with pytest.raises(TypeError):
        media.metadata["page"] = 3  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        media.kind = "audio"  # type: ignore[misc]
    assert replace(media, metadata={"page": 4}).id == media.id


def test_changing_the_bytes_that_were_given_changes_nothing() -> None:
    data = bytearray(b"abc")
    media = Media.from_bytes(data, mime_type="text/plain")
    data[0] = 0
    assert media.read_bytes() == b"abc"


# -------------------------------------------------------------------------------------------- MIME type and kind


@pytest.mark.parametrize("name, mime_type, kind", [
    ("a.png", "image/png", "image"),
    ("A.PNG", "image/png", "image"),
    ("a.jpeg", "image/jpeg", "image"),
    ("a.mp3", "audio/mpeg", "audio"),
    ("a.mp4", "video/mp4", "video"),
    ("a.pdf", "application/pdf", "document"),
    ("a.tar.gz", FALLBACK_MIME, "document"),
    ("a.unknown", FALLBACK_MIME, "document"),
    ("a", FALLBACK_MIME, "document"),
    ("a.", FALLBACK_MIME, "document"),
    ("", FALLBACK_MIME, "document"),
    ("folder.png/a", FALLBACK_MIME, "document"),
    ("a.png\n", FALLBACK_MIME, "document"),
])
def test_the_ending_of_a_file_decides_its_type_and_kind(name: str, mime_type: str, kind: str) -> None:
    media = Media.from_file(f"no-such-folder/{name}")
    assert (media.mime_type, media.kind) == (mime_type, kind)


@pytest.mark.parametrize("url, mime_type", [
    ("https://example.org/a.png", "image/png"),
    ("https://example.org/a.png?size=2&name=b.gif", "image/png"),
    ("https://example.org/a.png#part.gif", "image/png"),
    ("https://example.org/a.png?x#y?z.gif", "image/png"),
    ("https://example.org/show?file=a.png", FALLBACK_MIME),
    ("https://example.org/", FALLBACK_MIME),
    ("s3://bucket/key/a.pdf", "application/pdf"),
])
def test_query_and_fragment_of_a_url_do_not_count_for_its_type(url: str, mime_type: str) -> None:
    assert Media.from_url(url).mime_type == mime_type


def test_every_type_of_the_table_is_accepted_and_has_a_kind() -> None:
    assert {Media.from_bytes(b"", mime_type=mime_type).kind for mime_type in MIME_TYPES.values()} == set(KINDS)


@pytest.mark.parametrize("mime_type, kind", [
    ("image/svg+xml", "image"),
    ("IMAGE/PNG", "image"),
    ("audio/x-whatever", "audio"),
    ("application/vnd.ms-excel", "document"),
    ("imagery/png", "document"),
    ("model/gltf+json", "document"),
])
def test_the_kind_comes_from_the_mime_type(mime_type: str, kind: str) -> None:
    assert Media.from_bytes(b"", mime_type=mime_type).kind == kind


def test_what_is_given_goes_before_what_is_guessed() -> None:
    assert Media.from_file("scan.png", mime_type="application/pdf").kind == "document"
    assert Media.from_file("scan.png", kind="document").mime_type == "image/png"
    media = Media.from_url("https://example.org/a", mime_type="image/webp", kind="video", metadata={"a": 1})
    assert (media.kind, media.mime_type, dict(media.metadata)) == ("video", "image/webp", {"a": 1})


@pytest.mark.parametrize("mime_type",
    ["", "png", "image/", "/png", "image/png ", " image/png", "image/png; charset=utf-8", "image/png\r\nX-Evil: 1",
     'image/png"><block type="final">', "image//png", "imäge/png", "a/b/c", None, 5, b"image/png"])
def test_a_mime_type_that_is_no_pair_of_tokens_is_refused(mime_type: Any) -> None:
    with pytest.raises(ValueError, match="mime_type must look like 'image/png'"):
        Media("image", mime_type, "bytes", b"")


# --------------------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize("build, error, message", [
    (lambda: Media.from_bytes(b"", mime_type="a/b", kind="picture"), ValueError, "kind must be one of image"),
    (lambda: Media.from_bytes("text", mime_type="a/b"), TypeError, "for a file use Media.from_file"),  # type: ignore[arg-type]
    (lambda: Media.from_bytes(b"", mime_type="a/b", metadata=[1]), TypeError, "metadata must be a mapping"),  # type: ignore[arg-type]
    (lambda: Media.from_bytes(b""), TypeError, "mime_type"),  # type: ignore[call-arg]
    (lambda: Media("image", "image/png", "bytes", __file__), ValueError, "source must be 'bytes' for bytes, 'path' or 'url' for text"),
    (lambda: Media("image", "image/png", "url", b""), ValueError, "source must be 'bytes' for bytes"),
    (lambda: Media("image", "image/png", "file", __file__), ValueError, "source must be .* got 'file'"),  # type: ignore[arg-type]
    (lambda: Media.from_url(""), ValueError, "url must be a non-blank string"),
    (lambda: Media.from_url("  "), ValueError, "url must be a non-blank string"),
    (lambda: Media.from_url(None), ValueError, "url must be a non-blank string"),  # type: ignore[arg-type]
    (lambda: Media.from_file(b"a.png"), TypeError, "path must be text or a Path"),  # type: ignore[arg-type]
    (lambda: Media.from_file(5), TypeError, "int"),  # type: ignore[arg-type]
    (lambda: Media.from_file(os.devnull), ValueError, "path must be a regular file"),
    (lambda: Media.from_file("."), ValueError, "path must be a regular file"),
])
def test_a_wrong_argument_of_media_is_an_error_that_names_it(build: Callable[[], Media], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


def test_a_pipe_is_refused_before_anything_waits_for_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="path must be a regular file"):
        Media.from_file(pipe)


# ------------------------------------------------------------------------------------------------- the payload


def test_a_file_is_read_only_when_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    media = Media.from_file(path)
    path.write_bytes(PNG)
    assert media.read_bytes() == PNG
    path.write_bytes(b"later")
    assert media.read_bytes() == b"later"


def test_a_missing_file_is_reported_when_it_is_read(tmp_path: Path) -> None:
    media = Media.from_file(tmp_path / "missing.png")
    for read in (media.read_bytes, media.to_base64):
        with pytest.raises(KernaiError, match=r"cannot read media file .*missing\.png.*No such file"):
            read()
    with pytest.raises(KernaiError, match=r"cannot read media file .*null byte"):
        Media.from_file("a\0.png").read_bytes()


def test_a_url_is_never_fetched() -> None:
    with pytest.raises(KernaiError, match=r"does not fetch URLs: download it and use Media\.from_bytes"):
        Media.from_url("https://example.org/a.png").read_bytes()


def test_base64_is_that_of_the_payload() -> None:
    assert Media.from_bytes(b"\x00\xff?", mime_type="image/png").to_base64() == "AP8/"


@pytest.mark.parametrize("media, flags", [
    (Media.from_file("a.png"), (True, False, False)),
    (Media.from_url("https://example.org/a.png"), (False, True, False)),
    (Media.from_bytes(b"", mime_type="image/png"), (False, False, True)),
])
def test_exactly_one_flag_names_the_source(media: Media, flags: tuple[bool, bool, bool]) -> None:
    assert (media.is_path, media.is_url, media.is_bytes) == flags


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
    media = Media.from_url(url)
    assert "SECRET" not in shown(media)
    assert media.data == url


def test_a_reference_holds_no_payload() -> None:
    media = Media.from_bytes(PNG, mime_type="image/png", metadata={"page": 1})
    assert media.to_dict() == {
        "id": media.id,
        "kind": "image",
        "mime_type": "image/png",
        "source": "bytes",
        "size": len(PNG),
        "metadata": {"page": 1},
    }
    assert "payload" not in shown(media)
    assert media.to_base64() not in shown(media)
    assert repr(media) == f"Media(image image/png bytes='{len(PNG)} bytes' id={media.id})"


def test_a_reference_of_a_file_or_a_url_says_where_it_is() -> None:
    assert Media.from_file("a/b.png").to_dict()["data"] == "a/b.png"
    assert Media.from_url("https://example.org/a.png?x=1").to_dict()["data"] == "https://example.org/a.png"


# ------------------------------------------------------------------------------------------------------------ the store

IMAGE = Media.from_bytes(b"image", mime_type="image/png")
SOUND = Media.from_bytes(b"sound", mime_type="audio/wav")
# Two payloads whose SHA-1 begin with the same 12 hex digits; found by search.
TWINS = [Media.from_bytes(data, mime_type="image/png") for data in (b"5f7f9ec9498b", b"03ce1ad4b315")]


def test_what_was_put_is_fetched_by_its_id() -> None:
    store = MediaStore([IMAGE])
    assert store.put(SOUND) is SOUND
    assert store.fetch(IMAGE.id) is IMAGE
    assert store.get(SOUND.id) is SOUND
    assert list(store) == [IMAGE, SOUND]
    assert len(store) == 2
    assert IMAGE.id in store
    assert repr(store) == "MediaStore(2 media)"


def test_an_unknown_id_is_an_error_or_nothing() -> None:
    store = MediaStore()
    with pytest.raises(KernaiError, match="no media with id 'media_0'"):
        store.fetch("media_0")
    assert store.get("media_0") is None
    assert "media_0" not in store
    assert 5 not in store


def test_an_empty_store_is_still_a_store() -> None:
    assert MediaStore()
    assert len(MediaStore()) == 0


def test_the_same_data_may_be_put_twice_and_the_first_one_stays() -> None:
    store = MediaStore([IMAGE])
    again = Media.from_bytes(b"image", mime_type="image/gif")
    assert store.put(again) is again
    assert store.fetch(IMAGE.id) is IMAGE
    assert len(store) == 1


def test_other_data_under_a_known_id_is_refused() -> None:
    first, second = TWINS
    assert first.id == second.id
    store = MediaStore([first])
    with pytest.raises(KernaiError, match=f"{first.id} is already in the store with other data"):
        store.put(second)
    assert store.fetch(first.id).data == first.data


def test_a_path_that_reads_like_some_bytes_is_not_the_same_media() -> None:
    data, path = Media.from_bytes(b"a.png", mime_type="image/png"), Media.from_file("a.png")
    assert data.id == path.id
    with pytest.raises(KernaiError, match="with other data"):
        MediaStore([data]).put(path)


@pytest.mark.parametrize("value", [b"image", "media_1", None, IMAGE.to_dict()])
def test_only_media_is_kept(value: Any) -> None:
    with pytest.raises(TypeError, match="a MediaStore holds Media"):
        MediaStore().put(value)


def test_many_threads_may_put_and_look_at_once() -> None:
    store = MediaStore()
    media = [Media.from_bytes(bytes([number]), mime_type="image/png") for number in range(50)]
    seen: list[int] = []

    def work(_: int) -> None:
        for one in media:
            store.put(one)
            assert store.fetch(one.id).data == one.data
            seen.append(len(list(store)))

    assert at_once(work, 8) == []
    assert len(seen) == 8 * 50
    assert list(store) == media
