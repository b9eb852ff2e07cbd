"""Media that a user names: files and URLs."""

from __future__ import annotations

from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line import output
from kernai.command_line.errors import CommandError
from kernai.runs.run_request import UserInput
from kernai.values.media import Media

_NEEDED = {"image": "vision", "audio": "audio_in", "video": "video_in", "document": "document_in"}


def media_from(given: str) -> Media:
    """The media that a command line names; `CommandError` where it cannot be read."""
    if given.lower().startswith(("https://", "http://", "data:")):
        return Media.from_url(given)
    try:
        media = Media.from_file(given)
        with open(given, "rb"):  # noqa: PTH123 - text in, text out
            return media
    except (OSError, ValueError) as error:
        told = f"cannot read {given}: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise CommandError(told, "give a file, or a URL that begins with https://") from error


def tell_unseen(given: UserInput, agent: Agent[Any]) -> None:
    """Media that the model cannot perceive reach it as a placeholder; better said than wondered about."""
    parts = [given] if isinstance(given, (str, Media)) else given
    for kind in dict.fromkeys(part.kind for part in parts if isinstance(part, Media)):
        if not agent.model.supports(_NEEDED[kind]):
            output.note(
                f"note: the model {agent.model.id} is not known to take {kind} input (no {_NEEDED[kind]}), so it may "
                "read a placeholder; --model-capabilities says what a --model can do", "yellow",
            )
