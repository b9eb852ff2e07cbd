"""Ask one of Google's Gemini models and watch the answer come.

examples:
  export GEMINI_API_KEY=...
  python3 examples/providers/gemini_provider.py "Name three rivers of Peru."
  python3 examples/providers/gemini_provider.py --model gemini-3.8-flash --image chart.png "Does it go up?"
"""

from __future__ import annotations

import kernai
from command_line import Asked, run_program, show_usage
from kernai_providers import GeminiProvider


def show(event: kernai.Event) -> None:
    """Called with each event when it happens."""
    if event.type in ("text_chunk", "block_content"):
        print(event.data, end="", flush=True)
    elif event.type == "llm_response":
        show_usage(event.data)


def ask(asked: Asked) -> None:
    with GeminiProvider(base_url=asked.base_url) as provider:  # the key: api_key=, or GEMINI_API_KEY
        model = kernai.Model(asked.model, asked.capabilities)  # such as ("text", "vision")
        agent = kernai.Agent(instructions="Be brief and exact.", provider=provider, model=model)
        kernai.run(agent, asked.input, on_event=show)


if __name__ == "__main__":
    run_program(ask, __doc__, model="gemini-3.5-flash-lite")
