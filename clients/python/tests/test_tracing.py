"""Calls continue the trace that is active in the program."""

from __future__ import annotations

import subprocess
import sys

from opentelemetry.sdk.trace import TracerProvider

from anabranch._wire.tracing import trace_context


def test_a_call_continues_the_active_span() -> None:
    with TracerProvider().get_tracer("a program").start_as_current_span("work") as span:
        ids = span.get_span_context()
        assert trace_context() == (("traceparent", f"00-{ids.trace_id:032x}-{ids.span_id:016x}-{ids.trace_flags:02x}"),)


def test_without_an_active_span_nothing_is_sent() -> None:
    assert trace_context() == ()


def test_opentelemetry_is_not_imported_for_programs_without_it() -> None:
    program = """
import sys
from anabranch._wire.tracing import trace_context
assert trace_context() == ()
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
