"""Ask a model of OpenAI's, or of any server that speaks Chat Completions, and watch the answer come.

examples:
  export OPENAI_API_KEY=...
  python3 examples/providers/openai_provider.py "Name three rivers of Peru."
  python3 examples/providers/openai_provider.py --model gpt-6.1-sol --image chart.png "Does it go up?"
  python3 examples/providers/openai_provider.py --base-url http://localhost:8000/v1 --model qwen3 "Hello?"
"""

from __future__ import annotations

import kernai
from command_line import Asked, run_program, show_usage
from kernai_providers import OpenAIProvider


def show(event: kernai.Event) -> None:
    """Called with each event when it happens."""
    if event.type in ("text_chunk", "block_content"):
        print(event.data, end="", flush=True)
    elif event.type == "llm_response":
        show_usage(event.data)


def ask(asked: Asked) -> None:
    with OpenAIProvider(base_url=asked.base_url) as provider:  # the key: api_key=, or OPENAI_API_KEY
        model = kernai.Model(asked.model, asked.capabilities)  # such as ("text", "vision")
        agent = kernai.Agent(instructions="Be brief and exact.", provider=provider, model=model)
        kernai.run(agent, asked.input, on_event=show)


if __name__ == "__main__":
    run_program(ask, __doc__, model="gpt-6-luna")
