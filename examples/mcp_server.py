"""Skills and an agent as an MCP server, for any MCP client: over stdio, or with --http.

Configure a client that starts programs to run ``python examples/mcp_server.py``. For HTTP, set MCP_SERVER_TOKEN and run
``python examples/mcp_server.py --http``, which prints its address on stderr.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Literal

import kernai
from kernai import Credential, Media, Message, Model, SkillContext, SkillResult
from kernai.mcp import serve


@dataclass
class Guest:
    """One traveller."""

    name: str
    age: int | None = None


@kernai.skill(register=False)
def book_rooms(
    arrival: date,
    guests: list[Guest],
    board: Literal["none", "breakfast", "half"] = "breakfast",
    nights: Annotated[int, "1 to 30"] = 1,
) -> dict[str, object]:
    """Book rooms for some guests."""
    return {"arrival": arrival, "guests": guests, "board": board, "nights": nights}


@kernai.skill(register=False, produces="image")
def draw_square(size: int = 8) -> SkillResult:
    """Draw a grey square, as a small image."""
    pixels = b"P5 %d %d 255\n" % (size, size) + bytes([128]) * size * size
    picture = Media.from_bytes(pixels, mime_type="image/x-portable-graymap")
    return SkillResult(f"a square of {size} x {size}", media=[picture])


@kernai.skill(register=False)
def measure(image: Media) -> str:
    """Say what an image is and how many bytes it has."""
    return f"{image.mime_type}, {len(image.read_bytes())} bytes"


@kernai.skill(register=False)
async def index_files(folder: str, ctx: SkillContext) -> str:
    """Index the files of a folder, and report progress."""
    for done in range(3):
        ctx.emit({"progress": done + 1, "total": 3, "message": f"{folder}, part {done + 1}"})
    return f"{folder} is indexed"


@kernai.skill(register=False, credentials={"api_key": Credential(description="of the weather service")})
def forecast(city: str, ctx: SkillContext) -> str:
    """Tomorrow's weather."""
    key = ctx.credential("api_key")  # KERNAI_SKILL_FORECAST_API_KEY; no client ever sees it
    print("asking the weather service")  # goes to stderr: stdout belongs to the protocol
    return f"sunny in {city}" if key else "no key"


def plan(messages: Sequence[Message], _model: Model) -> str:
    """The mock model: draws a map, then answers."""
    if messages[-1].has_media:
        return '<block type="final">Take the train. A map is drawn.</block>'
    return '<block type="command" name="draw_square">{"size": 2}</block>'


# An agent is a tool too. Give it a real provider.
concierge = kernai.Agent(
    name="concierge",
    instructions="You plan trips.",
    provider=kernai.MockProvider().on_call(plan),
    skills=[draw_square],
)

SKILLS: list[kernai.Skill] = [
    book_rooms, draw_square, measure, index_files, forecast,
    concierge.as_skill("ask_concierge", "Ask the concierge to plan a trip; say where and when."),
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="kernai skills as an MCP server; over stdio unless --http is given", allow_abbrev=False
    )
    parser.add_argument("--http", action="store_true", help="serve over streamable HTTP")
    parser.add_argument("--host", help="the address to listen on; any other than 127.0.0.1 needs a token")
    parser.add_argument("--port", type=int, help="the port to listen on, 8000; 0 takes any free one")
    parser.add_argument("--token", default=os.environ.get("MCP_SERVER_TOKEN"),
                        help="what clients must send; as $MCP_SERVER_TOKEN it does not appear in process listings")
    given = parser.parse_args()
    if not given.http:
        if given.host is not None or given.port is not None:
            parser.error("--host and --port are for --http")
        serve(SKILLS, name="kernai-example")
        return
    try:
        serve(SKILLS, name="kernai-example", transport="http", host=given.host or "127.0.0.1",
              port=8000 if given.port is None else given.port, token=given.token)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
