import { context, propagation } from '@opentelemetry/api';

/**
 * Returns the headers with which a call continues the trace that is active: `traceparent` and others, as the
 * application has set up OpenTelemetry. Empty if it has not.
 */
export function traceHeaders(): Readonly<Record<string, string>> {
  const headers: Record<string, string> = {};
  propagation.inject(context.active(), headers);
  return headers;
}
