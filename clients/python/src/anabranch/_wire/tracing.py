"""The trace that a call continues."""

from __future__ import annotations

import sys
from importlib import import_module


def trace_context() -> tuple[tuple[str, str], ...]:
    """Returns the W3C trace context of the active span as metadata. Empty without one. An application that has not
    imported OpenTelemetry traces nothing, so it is not imported here either."""
    if "opentelemetry.trace" not in sys.modules:
        return ()
    propagator = import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
    carrier: dict[str, str] = {}
    propagator.inject(carrier)
    return tuple(carrier.items())
