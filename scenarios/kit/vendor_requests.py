"""The requests that the vendors would be sent in a run, built by their adapters; nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator

from harness import Outcome

import kernai
from kernai_providers import VENDORS


def request_bodies(outcome: Outcome, *capabilities: str) -> Iterator[tuple[str, str]]:
    """The JSON body of a request with this run's conversation, by the name of each family of vendors.

    The request is for a model that has `capabilities` besides text.
    """
    model = kernai.Model("any", ("text", *capabilities))
    for adapter in dict.fromkeys(vendor.adapter for vendor in VENDORS):
        with adapter(api_key="not-needed") as provider:
            body = provider.body(outcome.result.messages, model, kernai.GenerationOptions())
        yield adapter.__name__.removesuffix("Provider"), json.dumps(body)
