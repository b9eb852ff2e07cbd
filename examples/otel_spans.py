"""Runs as OpenTelemetry spans, following the conventions for generative AI: `pip install ".[otel]"`.

In a real program, the tracer provider has an exporter that sends spans somewhere, such as `OTLPSpanExporter`; here they
are kept in memory and printed.
"""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import kernai
from kernai.otel import SpanSink


@kernai.skill(register=False)
def count_stock(product: str) -> str:
    """Count what is in stock."""
    return f"12 of {product} in stock"


agent = kernai.Agent(
    name="clerk",
    instructions="You mind the shop.",
    provider=kernai.MockProvider(
        '<command name="count_stock">lamp</command>', "<final>12 lamps.</final>"
    ).with_token_counter(
        lambda messages, content: {"prompt_tokens": 20 * len(messages), "completion_tokens": len(content)}
    ),
    skills=[count_stock],
)


def show(spans: tuple[ReadableSpan, ...], parent: int | None = None, indent: str = "") -> None:
    """Prints the child spans of a span, in the order in which they ended."""
    for span in spans:
        if (span.parent.span_id if span.parent else None) == parent:
            attributes = span.attributes or {}
            tokens = attributes.get("gen_ai.usage.input_tokens")
            print(f"{indent}{span.name}{f': {tokens} tokens in' if tokens else ''}")
            show(spans, span.context.span_id, indent + "  ")


if __name__ == "__main__":
    exporter = InMemorySpanExporter()
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(exporter))

    with SpanSink(traces) as sink, traces.get_tracer("shop").start_as_current_span("POST /ask"):
        kernai.run(agent, "How many lamps?", recorder=kernai.Recorder(sink))

    show(exporter.get_finished_spans())
