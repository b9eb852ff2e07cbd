"""Shared by the programs in this folder: their arguments, the line about usage, and errors in one line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import kernai
from kernai import Event, KernaiError, Media, Model, Provider
from kernai_providers import capabilities_of

QUESTION = "Why is the sky blue? Answer in two sentences."
QUESTION_ABOUT_AN_IMAGE = "What does this image show?"

EXAMPLES = """\
examples:
  %(prog)s "Name three rivers of Peru."
  %(prog)s --image chart.png "Does it go up?"
  %(prog)s --base-url http://localhost:11434/v1 --model gemma3 "Hello?"
"""


@dataclass(frozen=True)
class Asked:
    """The command line's arguments."""

    question: str
    model: str
    base_url: str | None
    image: Media | None

    @property
    def input(self) -> list[str | Media]:
        """The input for an agent."""
        return [self.question] if self.image is None else [self.question, self.image]

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The capabilities of the model's family, and vision if an image is given."""
        known = capabilities_of(self.model)
        return known if self.image is None or "vision" in known else (*known, "vision")


def show_usage(response: Mapping[str, Any]) -> None:
    """A line about a model call, from the data of its `llm_response` event. Figures may be unknown."""
    tokens = [response["prompt_tokens"], response["completion_tokens"]]
    given, made = ("unknown" if count is None else f"{count:,}" for count in tokens)
    name = response["metadata"].get("model", "unknown")
    print(f"\n[model: {name}; tokens: {given} in, {made} out; finish reason: {response['finish_reason'] or 'unknown'}]")


def show(event: Event) -> None:
    """Prints the answer as it arrives, then its usage. Pass this as `on_event`."""
    if event.type in ("text_chunk", "block_content"):
        print(event.data, end="", flush=True)
    elif event.type == "llm_response":
        show_usage(event.data)


def key_from(variable: str) -> str:
    """The key in an environment variable, checked for use in a header. Raises a `ValueError` that does not show it."""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(f"set the environment variable {variable}; any text will do for a server that needs no key")
    if not key.isascii() or not key.isprintable():
        raise ValueError(f"the environment variable {variable} contains a character that a key cannot have")
    return key


def run_with(provider_at: Callable[[str | None], Provider], about: str, *, model: str) -> NoReturn:
    """Runs a program that calls the provider at the given base URL; see `run_program`."""

    def ask(asked: Asked) -> None:
        agent = kernai.Agent(
            instructions="Be brief and exact.",
            provider=provider_at(asked.base_url),
            model=Model(asked.model, asked.capabilities),
        )
        kernai.run(agent, asked.input, on_event=show)

    run_program(ask, about, model=model)


def run_program(ask: Callable[[Asked], None], about: str, *, model: str, image_urls: bool = True) -> NoReturn:
    """Parses the command line, calls the model, and exits: with 0, 1 after an error, 2 after wrong usage.

    Errors are printed in one line. `about` is the program's docstring: what it does, then examples. `model` is the
    default of `--model`. `image_urls` says whether the vendor accepts URLs of images.
    """
    asked = _parsed(about, model, image_urls=image_urls)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a model may write characters that this terminal cannot show
    try:
        ask(asked)
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader of the output has closed it, so buffered output cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)  # the status that shells report
    except (KernaiError, ValueError) as error:
        if sys.stdout.isatty():
            print()  # the answer may have broken off in the middle of a line
        _fail(str(error))
    sys.exit(0)


def _fail(message: str, status: int = 1) -> NoReturn:
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(status)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _fail(f"{message} (see --help)", 2)


def _parsed(about: str, model: str, *, image_urls: bool) -> Asked:
    description, _, examples = about.partition("\n\n")
    parser = _Parser(
        description=description,
        epilog=examples or EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("question", nargs="?", help=f"default: {QUESTION!r}")
    parser.add_argument("--model", default=model, help="the vendor's name for it; default: %(default)s")
    places = "FILE_OR_HTTPS_URL" if image_urls else "FILE"
    parser.add_argument("--image", metavar=places, help="an image to ask about")
    parser.add_argument("--base-url", metavar="URL", help="another server with the same protocol")
    given = parser.parse_args()
    for name, value in vars(given).items():
        if value is not None and not value.strip():
            parser.error(f"{name} is blank")
    if given.image is None:
        return Asked(given.question or QUESTION, given.model.strip(), given.base_url, None)
    if "://" in given.image and not (image_urls and given.image.lower().startswith("https://")):
        parser.error("--image takes a file" + (", or a URL that begins with https://" if image_urls else " only"))
    image = _image(given.image)
    return Asked(given.question or QUESTION_ABOUT_AN_IMAGE, given.model.strip(), given.base_url, image)


def _image(place: str) -> Media:
    if "://" in place:
        return Media.from_url(place, kind="image")
    try:
        with Path(place).open("rb"):  # checked now, so that a typing error costs no call
            image = Media.from_file(place)
    except OSError as error:
        _fail(f"cannot read --image {place}: {error.strerror or error}")
    if image.kind != "image":
        _fail(f"--image {place} must end in .png, .jpg, .gif or .webp")
    return image
