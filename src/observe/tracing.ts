import {
  type Context,
  context,
  defaultTextMapGetter,
  type Link,
  type Span,
  SpanKind,
  SpanStatusCode,
  type TextMapPropagator,
  type Tracer,
  trace,
} from '@opentelemetry/api';
import type { Trace, TracePart } from '../store/contract/trace.ts';
import type { CallTrace, Tracing } from '../stream/settings.ts';

/** Makes spans of calls, of group commits, and of the statements of both. */
export class Spans implements Tracing {
  readonly #tracer: Tracer;
  readonly #propagator: Pick<TextMapPropagator, 'extract'>;

  constructor(tracer: Tracer, propagator: Pick<TextMapPropagator, 'extract'>) {
    this.#tracer = tracer;
    this.#propagator = propagator;
  }

  /** Undefined: the call is not sampled. */
  call(method: string, headers: Readonly<Record<string, unknown>>): CallTrace | undefined {
    const parent = this.#propagator.extract(context.active(), headers, defaultTextMapGetter);
    const span = this.#tracer.startSpan(
      `anabranch.v1.${method}`,
      { kind: SpanKind.SERVER, attributes: { 'rpc.system': 'grpc' } },
      parent,
    );
    return span.isRecording() ? new Part(this.#tracer, span, parent) : undefined;
  }

  /** It belongs to the trace of its first call: a sampler keeps or drops both. */
  groupCommit(calls: readonly Trace[]): TracePart {
    const parts = calls.filter((call) => call instanceof Part);
    const links: Link[] = parts.map(({ spanContext }) => ({ context: spanContext }));
    const parent = parts[0]?.context ?? context.active();
    const span = this.#tracer.startSpan('group commit', { kind: SpanKind.INTERNAL, links }, parent);
    return new Part(this.#tracer, span, parent);
  }
}

class Part implements CallTrace {
  readonly context: Context;
  readonly #tracer: Tracer;
  readonly #span: Span;

  constructor(tracer: Tracer, span: Span, parent: Context) {
    this.#tracer = tracer;
    this.#span = span;
    this.context = trace.setSpan(parent, span);
  }

  get spanContext() {
    return this.#span.spanContext();
  }

  get traceId(): string {
    return this.spanContext.traceId;
  }

  begin(name: string): TracePart {
    return new Part(this.#tracer, this.#tracer.startSpan(name, { kind: SpanKind.CLIENT }, this.context), this.context);
  }

  /** Texts of errors can have content, so only their kind is told. */
  end(error?: unknown): void {
    if (error !== undefined) {
      this.#span.setStatus({ code: SpanStatusCode.ERROR });
      this.#span.setAttribute('error.type', kindOf(error));
    }
    this.#span.end();
  }
}

/** A code, the reason of an error of this program, or the class of another one. */
function kindOf(error: unknown): string {
  if (typeof error === 'string') return error;
  const { reason, name } = error as { readonly reason?: unknown; readonly name?: unknown };
  return String(reason ?? name);
}
