"""`--model vendor/name`: who answers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line.arguments import capabilities, price
from kernai.command_line.errors import CommandError
from kernai.errors import KernaiError, error_text
from kernai.registry.configuration import config

HOW = "give a model, such as --model anthropic/claude-sonnet-4-5 or --model ollama/llama3.1; `kernai doctor` shows keys"
WHICH = "`kernai doctor` shows the keys that are set; any other server like OpenAI's is local/NAME with --base-url"


def add_model_arguments(parser: ArgumentParser) -> None:
    """``--model`` and what belongs to it."""
    parser.add_argument("--model", metavar="VENDOR/NAME", help="the model, in place of the agent's provider and model")
    parser.add_argument("--base-url", metavar="URL", help="where the --model is served, if not at its vendor")
    parser.add_argument(
        "--model-capabilities", type=capabilities, metavar="LIST",
        help="what the --model can do, such as text,vision, where kernai does not know its family",
    )
    parser.add_argument(
        "--price", type=price, metavar="IN,OUT", help="dollars per million tokens of the --model, for --max-cost"
    )


def model_words(options: Namespace) -> tuple[str, ...]:
    """The words of a command line that name the same model again."""
    words: list[str] = []
    for name in ("model", "base_url", "model_capabilities", "price"):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", value if isinstance(value, str) else ",".join(map(str, value))]
    return tuple(words)


@contextmanager
def with_model(agent: Agent[Any], options: Namespace) -> Iterator[Agent[Any]]:
    """The agent with the model of the command line, whose connections are closed at the end of the block.

    `CommandError` where nobody would answer it.
    """
    if options.model is None:
        for option in ("base_url", "model_capabilities", "price"):
            if getattr(options, option) is not None:
                raise CommandError(f"--{option.replace('_', '-')} is for a --model, and there is none", HOW)
        if agent.provider is None and config.default_provider is None:
            raise CommandError("the agent has no provider", HOW)
        yield agent
        return
    from kernai_providers import resolve

    where = {} if options.base_url is None else {"base_url": options.base_url}
    try:
        provider, model = resolve(
            options.model, capabilities=options.model_capabilities, cost=options.price, **where
        )
    except (KernaiError, ValueError, TypeError) as error:
        raise CommandError(f"--model: {error_text(error)}", WHICH) from error
    with provider:
        yield agent.replace(provider=provider, model=model)
