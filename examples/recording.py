"""A recording as a file: every event is a line of JSON. It is read back completely, with the usage."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import kernai
from kernai import CompositeSink, JsonlSink, MemorySink, Recorder


@kernai.skill(register=False)
def roll(sides: int = 6) -> int:
    """Roll a die, always the same one."""
    return min(4, sides)


agent = kernai.Agent(
    name="dice",
    instructions="You roll dice.",
    provider=kernai.MockProvider('<command name="roll">{}</command>', "<final>4</final>").with_token_counter(
        lambda messages, content: {"prompt_tokens": 20 * len(messages), "completion_tokens": len(content)}
    ),
    skills=[roll],
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with JsonlSink(path) as lines:
            recorder = Recorder(CompositeSink(MemorySink(), lines))
            kernai.execute(agent, "Roll a die.", recorder=recorder, run_id="run-1", metadata={"user": "ada"})

        written = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        for entry in written:
            since = f", {entry['since']} messages as before" if "since" in entry else ""
            print(f"step {entry['step']}: {entry['event']}{since}")

        whole = JsonlSink.read(path)
        print(f"the file holds what memory holds: {whole == recorder.to_list()}")

    print(f"all: {recorder.token_usage().total_tokens} tokens")
    for step, usage in recorder.token_usage_per_step().items():
        print(f"step {step}: {usage.prompt_tokens} in, {usage.completion_tokens} out")
