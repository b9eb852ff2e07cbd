"""Ask a model on your own machine, served by Ollama, and watch the answer come.

examples:
  ollama pull gemma3
  python3 examples/providers/ollama_provider.py "Name three rivers of Peru."
  python3 examples/providers/ollama_provider.py --model llava --image chart.png "Does it go up?"
  python3 examples/providers/ollama_provider.py --base-url http://gpu-box:11434 "Hello?"
"""

from __future__ import annotations

import kernai
from command_line import Asked, run_program, show_usage
from kernai_providers import OllamaProvider


def show(event: kernai.Event) -> None:
    """Called with each event when it happens."""
    if event.type in ("text_chunk", "block_content"):
        print(event.data, end="", flush=True)
    elif event.type == "llm_response":
        show_usage(event.data)


def ask(asked: Asked) -> None:
    with OllamaProvider(base_url=asked.base_url) as provider:  # or OLLAMA_HOST
        model = kernai.Model(asked.model, asked.capabilities)  # such as ("text", "vision")
        agent = kernai.Agent(instructions="Be brief and exact.", provider=provider, model=model)
        kernai.run(agent, asked.input, on_event=show)


if __name__ == "__main__":
    run_program(ask, __doc__, model="gemma3", image_urls=False)
