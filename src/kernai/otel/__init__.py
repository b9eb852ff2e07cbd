"""Runs as OpenTelemetry spans: ``Recorder(SpanSink())``.

An optional adapter, never imported by the core: ``pip install "kernai[otel]"``. See docs/recording.md.
"""

from __future__ import annotations

try:
    import opentelemetry.trace as _trace
except ImportError as error:
    raise ImportError(
        'kernai.otel needs OpenTelemetry for Python: pip install "kernai[otel]"', name="opentelemetry"
    ) from error

from kernai.otel.span_sink import SpanSink

__all__ = ["SpanSink"]

del _trace
