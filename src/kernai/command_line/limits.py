"""The options that bound a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from kernai.agents.agent import Agent
from kernai.command_line.arguments import amount, positive_number, whole_number
from kernai.command_line.errors import CommandError
from kernai.values.limits import Limits


def add_limit_arguments(parser: ArgumentParser) -> None:
    """``--max-steps`` and those of `Limits`."""
    group = parser.add_argument_group("limits", "of one run and all its sub-runs")
    group.add_argument("--max-steps", type=positive_number, metavar="N", help="model calls, in place of the agent's")
    group.add_argument("--max-tokens", type=whole_number, metavar="N", help="prompt and completion tokens together")
    group.add_argument("--max-cost", type=amount, metavar="DOLLARS", help="needs the model's price")
    group.add_argument("--max-calls", type=whole_number, metavar="N", help="model, skill and protocol calls together")
    group.add_argument("--timeout", type=amount, metavar="SECONDS", help="from the start of the run")


def limited(agent: Agent[Any], options: Namespace) -> tuple[Agent[Any], Limits]:
    """The agent with its ceiling of steps, and the limits; `CommandError` where a limit cannot be kept."""
    limits = Limits(
        max_tokens=options.max_tokens, max_cost=options.max_cost, max_calls=options.max_calls, timeout=options.timeout
    )
    if options.max_steps is not None:
        agent = agent.replace(max_steps=options.max_steps)
    if limits.max_cost is not None and agent.model.cost is None:
        raise CommandError(
            f"--max-cost needs the price of model {agent.model.id!r}",
            "give --model with --price IN,OUT (dollars per million tokens), or Model(..., cost=...) in its file",
        )
    return agent, limits
