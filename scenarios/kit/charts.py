"""Bar charts of a beekeeper's harvest: drawn with Pillow to the pixel, and measured again from their pixels.

The facts are those of fixtures/harvest.csv, so a model's statements about a chart can be judged. A chart has the same
bytes on every machine: straight edges, a bitmap font, a palette, and a PNG that is not compressed (RFC 1951, section
3.2.4). This matters because a media's id is a hash of its bytes, and tapes contain ids; compressed data depend on the
zlib that Python was built with.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from harness import Outcome, Scenario, require

import kernai
from kit.packages import require_packages
from kit.sources import rows_of
from kit.vendor_requests import request_bodies

if TYPE_CHECKING:
    from PIL.Image import Image
Season = Literal["spring", "summer"]

WIDTH, HEIGHT = 480, 400
MARGIN = 30  # left and right of the bars
GROUND = 350  # the y of the axis; bars end in the row above
PIXELS_A_KG = 3
MOST_KG = 100
MOST_BARS, LONGEST_NAME, LONGEST_TITLE = 6, 8, 38  # more does not fit
LETTER_SCALE = 2  # the bitmap font is 11 pixels high, which is small for a vision model

PAPER, INK, HONEY, RED = range(4)
COLOURS = ((255, 255, 255), (0, 0, 0), (230, 160, 30), (200, 30, 30))


@dataclass(frozen=True)
class Bar:
    """The harvest of one hive."""

    hive: str
    kg: float


def harvest(season: Season) -> list[Bar]:
    """The harvest of all hives in one season."""
    return [Bar(row["hive"], int(row[f"{season}_kg"])) for row in rows_of("", "harvest")]


def ask_about(
    scenario: Scenario, question: str, title: str, season: Season, line_kg: float, *, numbered: bool = False
) -> None:
    """Before the run, draw a season's chart and put it before the question, in which `{id}` becomes its id."""

    @scenario.prepare
    def ask() -> None:
        require_packages("PIL")
        png = draw(title, harvest(season), line_kg, numbered=numbered)
        chart = kernai.Media.from_bytes(png, mime_type="image/png")
        scenario.input([chart, question.format(id=chart.id)])


def require_sent(outcome: Outcome, picture: kernai.Media) -> bool:
    """Requires that each family of vendors would be sent the picture itself."""
    data = picture.to_base64()
    without = [vendor for vendor, body in request_bodies(outcome, "vision") if data not in body]
    return require(not without, f"{', '.join(without)} would not be sent it")


# ---------------------------------------------------------------------------------------------------- drawing


def draw(title: str, bars: Sequence[Bar], line_kg: float, *, numbered: bool = False) -> bytes:
    """A PNG: a bar for each hive with its name below, a red line across at `line_kg`; `numbered` writes the kg into it.

    Raises `ValueError` for bars or texts that do not fit.
    """
    from PIL import Image, ImageDraw

    _check(title, bars, line_kg)
    image = Image.new("P", (WIDTH, HEIGHT), PAPER)

    pen = ImageDraw.Draw(image)
    pen.rectangle((0, _height_of(line_kg), WIDTH - 1, _height_of(line_kg)), fill=RED)  # behind the bars
    step = (WIDTH - 2 * MARGIN) // len(bars)
    for index, bar in enumerate(bars):
        left, top = MARGIN + index * step + step // 6, _height_of(bar.kg)
        if top < GROUND:
            pen.rectangle((left, top, left + step * 2 // 3 - 1, GROUND - 1), fill=HONEY)
        middle = left + step // 3
        _write(image, bar.hive, middle, GROUND + 8)
        if numbered:
            _write(image, f"{bar.kg:g}", middle, GROUND - 30)
    pen.rectangle((0, GROUND, WIDTH - 1, GROUND), fill=INK)
    _write(image, title, WIDTH // 2, 4)
    return _stored_png(image.tobytes())


def _check(title: str, bars: Sequence[Bar], line_kg: float) -> None:
    if len(title) > LONGEST_TITLE:
        raise ValueError(f"the title is too long: {LONGEST_TITLE} characters fit, got {len(title)}")
    if not 1 <= len(bars) <= MOST_BARS:
        raise ValueError(f"bars: 1 to {MOST_BARS} fit, got {len(bars)}")
    for bar in bars:
        if not 0 <= bar.kg <= MOST_KG:
            raise ValueError(f"the bar of {bar.hive}: kg must be 0 to {MOST_KG}, got {bar.kg:g}")
        if len(bar.hive) > LONGEST_NAME:
            raise ValueError(f"the name {bar.hive!r} is too long: {LONGEST_NAME} characters fit")
    if not 1 <= line_kg <= MOST_KG:
        raise ValueError(f"line_kg must be 1 to {MOST_KG}, got {line_kg:g}")


def _height_of(kg: float) -> int:
    """The y of the topmost row of a bar, or of the line."""
    return GROUND - round(kg * PIXELS_A_KG)


def _write(image: Image, text: str, middle: int, top: int) -> None:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default_imagefont()
    text = text.encode("latin-1", "replace").decode("latin-1")  # the font has no other characters
    left, upper, right, lower = font.getbbox(text)
    letters = Image.new("1", (max(1, int(right - left)), int(lower - upper)))
    ImageDraw.Draw(letters).text((0, 0), text, fill=1, font=font)
    letters = letters.resize((letters.width * LETTER_SCALE, letters.height * LETTER_SCALE), Image.Resampling.NEAREST)
    image.paste(INK, (middle - letters.width // 2, top), letters)


# -------------------------------------------------------------------------------------------------- measuring


def measure_bars(
    image: Annotated[kernai.Media, "the id of the picture, media_..."],
    line_kg: Annotated[float, "what the red line stands for"],
) -> list[float]:
    """Measure the bars of a chart in kg, from left to right, by its red line."""
    return measure(image.read_bytes(), line_kg)


def measure(png: bytes, line_kg: float) -> list[float]:
    """The kg of each bar from the left, read off the picture's own pixels; the red line is at `line_kg`.

    A bar of 0 kg has no pixels, so it is missing. Raises `ValueError` for a file that is not a picture, or has no such
    line or bars.
    """
    picture = _opened(png)
    width, height = picture.size
    edge = [picture.getpixel((0, y)) for y in range(height)]
    red = [y for y, colour in enumerate(edge) if colour == COLOURS[RED]]
    black = [y for y, colour in enumerate(edge) if colour == COLOURS[INK]]
    if not red or not black or red[0] > black[-1]:
        raise ValueError("there is no red line above a black axis in this picture, so nothing to measure by")
    line, ground = red[0], black[-1]
    foot = [picture.getpixel((x, ground - 1)) == COLOURS[HONEY] for x in range(width)]
    starts = [x for x in range(1, width) if foot[x] and not foot[x - 1]]
    if not starts:
        raise ValueError("there are no bars in this picture")
    tops = [next(y for y in range(height) if picture.getpixel((x, y)) == COLOURS[HONEY]) for x in starts]
    return [round((ground - top) * line_kg / (ground - line), 1) for top in tops]


def _opened(png: bytes) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(png)) as opened:
            return opened.convert("RGB")
    except (UnidentifiedImageError, OSError) as error:
        raise ValueError(f"this is no picture that can be opened: {error}") from error


# ------------------------------------------------------------------------------------------------------------------ PNG

SIGNATURE = b"\x89PNG\r\n\x1a\n"
STORED_LIMIT = 0xFFFF  # the most bytes in a stored block
PALETTE = 3  # colour type of PNG: each byte is an index


def _stored_png(pixels: bytes) -> bytes:
    """The PNG file of a chart, each of whose pixels is the number of a colour."""
    rows = b"".join(b"\0" + pixels[start : start + WIDTH] for start in range(0, len(pixels), WIDTH))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, PALETTE, 0, 0, 0)
    colours = b"".join(map(bytes, COLOURS))
    chunks = ((b"IHDR", header), (b"PLTE", colours), (b"IDAT", _stored(rows)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _stored(data: bytes) -> bytes:
    """A zlib stream without compression (RFC 1950)."""
    stream = [b"\x78\x01"]
    for start in range(0, len(data), STORED_LIMIT):
        block = data[start : start + STORED_LIMIT]
        last = start + STORED_LIMIT >= len(data)
        stream += [struct.pack("<BHH", last, len(block), len(block) ^ STORED_LIMIT), block]
    return b"".join([*stream, struct.pack(">I", zlib.adler32(data))])
