import { setTimeout as wait } from 'node:timers/promises';
import { W3CTraceContextPropagator } from '@opentelemetry/core';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { defaultResource, detectResources, envDetector, resourceFromAttributes } from '@opentelemetry/resources';
import {
  AlwaysOffSampler,
  AlwaysOnSampler,
  BatchSpanProcessor,
  ParentBasedSampler,
  type Sampler,
  type SpanExporter,
  TraceIdRatioBasedSampler,
  TracerProvider,
} from '@opentelemetry/sdk-trace';
import type { Logger, Tracing } from '../stream/settings.ts';
import { Spans } from './tracing.ts';

/** Variables of OpenTelemetry. The exporter reads those that begin with OTEL_EXPORTER_OTLP from the process. */
type Env = Readonly<Record<string, string | undefined>>;

/** Milliseconds that the last spans may take to be sent when the server stops. */
const STOP_MS = 1_000;
/** Milliseconds that a batch may take to be sent. Meanwhile spans wait, and those beyond the queue are dropped. */
const EXPORT_MS = 5_000;

/** Traces that are sent to a collector. This file is loaded only if there is one. */
export interface ExportedTracing extends Tracing {
  /** Sends what is left, for a second at most. Never rejects. */
  stop(): Promise<void>;
}

/** Begins to send traces to the collector that the environment names, by OTLP over HTTP. */
export function exportTraces(env: Env, version: string, logger: Logger): ExportedTracing {
  const exporter = reportingFailures(new OTLPTraceExporter({ timeoutMillis: EXPORT_MS }), logger);
  const own = resourceFromAttributes({
    'service.name': env.OTEL_SERVICE_NAME ?? 'anabranch',
    'service.version': version,
  });
  const provider = new TracerProvider({
    sampler: samplerOf(env),
    resource: defaultResource()
      .merge(own)
      .merge(detectResources({ detectors: [envDetector] })),
    spanProcessors: [new BatchSpanProcessor({ exporter, exportTimeoutMillis: EXPORT_MS })],
  });
  const spans = new Spans(provider.getTracer('anabranch', version), new W3CTraceContextPropagator());
  return {
    call: (method, headers) => spans.call(method, headers),
    groupCommit: (calls) => spans.groupCommit(calls),
    stop: async () => {
      const patience = new AbortController();
      const sent = provider.shutdown().catch(() => undefined);
      await Promise.race([sent, wait(STOP_MS, undefined, { signal: patience.signal }).catch(() => undefined)]);
      patience.abort();
    },
  };
}

/** Warns once when spans cannot be sent, and again after some were sent. */
function reportingFailures(exporter: SpanExporter, logger: Logger): SpanExporter {
  let hasWarned = false;
  return {
    export: (spans, done) =>
      exporter.export(spans, (result) => {
        if (result.code !== 0 && !hasWarned)
          logger.warn({ err: result.error }, 'traces cannot be sent to the collector');
        hasWarned = result.code !== 0;
        done(result);
      }),
    shutdown: () => exporter.shutdown(),
    forceFlush: async () => exporter.forceFlush?.(),
  };
}

/** As OpenTelemetry defines OTEL_TRACES_SAMPLER. Default: what callers sample, and all calls without a trace. */
export function samplerOf({
  OTEL_TRACES_SAMPLER: name = 'parentbased_always_on',
  OTEL_TRACES_SAMPLER_ARG: arg,
}: Env): Sampler {
  const ratio = arg === undefined || Number.isNaN(Number(arg)) ? 1 : Number(arg);
  switch (name) {
    case 'always_on':
      return new AlwaysOnSampler();
    case 'always_off':
      return new AlwaysOffSampler();
    case 'traceidratio':
      return new TraceIdRatioBasedSampler(ratio);
    case 'parentbased_always_off':
      return new ParentBasedSampler({ root: new AlwaysOffSampler() });
    case 'parentbased_traceidratio':
      return new ParentBasedSampler({ root: new TraceIdRatioBasedSampler(ratio) });
    default:
      return new ParentBasedSampler({ root: new AlwaysOnSampler() });
  }
}
