"""`MediaStore`: media by id, shared by threads, and no two payloads under one id."""

from __future__ import annotations

from typing import Any

import pytest

from kernai import KernaiError, Media, MediaStore
from kernai.testing.contracts import at_once

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
