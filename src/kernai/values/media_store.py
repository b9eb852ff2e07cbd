"""`MediaStore`: the media of a run and of all its sub-runs, by id."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kernai.errors import KernaiError
from kernai.values.media import Media


class MediaStore:
    """Thread-safe. An empty store is true in a condition."""

    # No lock: each method does one operation on a dictionary with plain texts as keys, which is atomic.

    def __init__(self, media: Iterable[Media] = ()) -> None:
        self._media: dict[str, Media] = {}
        for one in media:
            self.put(one)

    def put(self, media: Media) -> Media:
        """Adds media and returns it. The same data again is fine; other data under a known id is a `KernaiError`."""
        if not isinstance(media, Media):
            raise TypeError(f"a MediaStore holds Media, got {type(media).__name__}")
        known = self._media.setdefault(media.id, media)
        # a path may have the same characters as some bytes, and so the same id, and still be other media
        if (known.source, known.data) != (media.source, media.data):
            raise KernaiError(
                f"{media.id} is already in the store with other data ({known.source} there, {media.source} given)")
        return media

    def fetch(self, media_id: str) -> Media:
        """The media with that id; `KernaiError` if there is none."""
        media = self.get(media_id)
        if media is None:
            raise KernaiError(f"no media with id {media_id!r} in the store")
        return media

    def get(self, media_id: str) -> Media | None:
        """The media with that id, or None."""
        return self._media.get(media_id)

    def __contains__(self, media_id: object) -> bool:
        return media_id in self._media

    def __iter__(self) -> Iterator[Media]:
        return iter(list(self._media.values()))

    def __len__(self) -> int:
        return len(self._media)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"MediaStore({len(self)} media)"

