"""Images in both directions: one as input, one from a skill; and a skill that needs a vision model."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import kernai
from kernai import Media, Message, Model, Models

SQUARE = 8  # pixels on each side


def png(red: int, green: int, blue: int) -> bytes:
    """A square in one colour, as the bytes of a PNG file."""
    rows = (b"\x00" + bytes((red, green, blue)) * SQUARE) * SQUARE  # each row begins with its filter type

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", SQUARE, SQUARE, 8, 2, 0, 0, 0)  # 8 bits per channel, colours without a palette
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@kernai.skill(register=False, produces="image")
def paint(red: int, green: int, blue: int) -> kernai.SkillResult:
    """Paint a square of one colour."""
    image = Media.from_bytes(png(red, green, blue), mime_type="image/png")
    return kernai.SkillResult("painted", media=[image], metadata={"pixels": SQUARE * SQUARE})


@kernai.skill(register=False, requires="vision")
def measure(image: Media) -> str:
    """Say how wide and how high an image is. `image` is its id."""
    width, height = struct.unpack(">II", image.read_bytes()[16:24])
    return f"{width} x {height}"


def answer(messages: Sequence[Message], _: Model) -> str:
    """The mock model: it paints, measures the image by its id, and answers."""
    last = messages[-1]
    if last.text.startswith('<block type="result" name="measure">'):
        return "<final>The new square is 8 x 8, like yours.</final>"
    if last.text.startswith('<block type="error"'):
        return "<final>I cannot measure images.</final>"
    if last.media and 'name="paint"' in last.text:
        return f'<command name="measure">{{"image": "{last.media[0].id}"}}</command>'
    return '<command name="paint">{"red": 0, "green": 0, "blue": 255}</command>'


agent = kernai.Agent(
    instructions="You work with pictures.", provider=kernai.MockProvider().on_call(answer), skills=[paint, measure]
)

if __name__ == "__main__":
    red_square = Media.from_bytes(png(255, 0, 0), mime_type="image/png")
    question: list[str | Media] = ["Paint a blue square of the same size as this one:", red_square]

    for model in (Models.GPT_4O, Models.LLAMA_3_1):
        result = kernai.execute(agent, question, model=model)
        print(f"{model.id}:")
        for message in result.messages:
            print(f"  {message.role}: {message.text}")
        listed = "measure" in agent.replace(model=model, list_skills=True).system_prompt()
        print(f"  'measure' is {'listed' if listed else 'not listed'}; answer: {result.text}\n")
