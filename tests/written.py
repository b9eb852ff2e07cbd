"""Blocks as a model writes them, for the responses of a mock provider."""

from __future__ import annotations

import json
from typing import Any

from kernai import Block


def command(name: str, content: str = "") -> str:
    return str(Block("command", name, content))


def call(name: str, **params: Any) -> str:
    return command(name, json.dumps(params))


def final(text: str) -> str:
    return str(Block("final", None, text))


def plan(*ids: str) -> str:
    tasks = [{"id": one, "input": f"do {one}", "parallel": True} for one in ids]
    return str(Block("plan", None, json.dumps({"tasks": tasks})))
