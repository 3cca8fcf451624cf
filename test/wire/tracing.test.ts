import { randomUUID } from 'node:crypto';
import { createClient } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport } from '@connectrpc/connect-node';
import { context, propagation, type Span, trace } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { W3CTraceContextPropagator } from '@opentelemetry/core';
import { TracerProvider } from '@opentelemetry/sdk-trace';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectClient } from '../../src/client/index.ts';
import { connectClient as connectWebClient } from '../../src/client/web/index.ts';
import { samplerOf } from '../../src/observe/otlp.ts';
import { runCli } from '../cli/run_cli.ts';
import { type CollectedSpan, type Collector, startCollector } from '../support/collector.ts';
import { ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { type SpawnedServer, spawnServer } from '../support/spawned-server.ts';
import { withHeaders } from './headers.ts';

const CALL = 'anabranch.v1.TrajectoryService';
/** The queue of the SDK, and a batch that is on its way. */
const SPANS_WAITING = 2048 + 512;

/** The spans of a server that has stopped. */
class Spans {
  readonly #spans: readonly CollectedSpan[];

  constructor({ spans }: Collector) {
    this.#spans = spans;
  }

  of(traceId: string): CollectedSpan[] {
    return this.#spans.filter((span) => span.traceId === traceId);
  }

  under({ spanId }: CollectedSpan): CollectedSpan[] {
    return this.#spans.filter(({ parentSpanId }) => parentSpanId === spanId);
  }

  commitsOf({ spanId }: CollectedSpan): CollectedSpan[] {
    return this.#spans.filter(({ links = [] }) => links.some((link) => link.spanId === spanId));
  }
}

describe.each(ENGINES)('V10: traces, on %s', (engine) => {
  const provider = new TracerProvider();
  const tracer = provider.getTracer('a program');
  const within = <T>(span: Span, work: () => Promise<T>) => context.with(trace.setSpan(context.active(), span), work);

  beforeAll(() => {
    context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
    propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  });
  afterAll(() => {
    context.disable();
    propagation.disable();
  });

  async function traced(work: (server: SpawnedServer) => Promise<void>, env: Readonly<Record<string, string>> = {}) {
    await using database = await createMigratedDatabase(engine);
    await using collector = await startCollector();
    await using server = await spawnServer({
      database: database.url,
      env: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, ...env },
    });
    await work(server);
    expect(await server.terminate()).toEqual({ code: 0, signal: null });
    expect(server.output()).not.toContain('traces cannot be sent');
    return new Spans(collector);
  }

  it('follow an append from the client to the commit, and the statements of both', async () => {
    const span = tracer.startSpan('the program');
    const { traceId, spanId } = span.spanContext();
    const spans = await traced(async ({ url }) => {
      const client = connectClient({ address: url });
      const trajectoryId = randomUUID();
      await client.trajectories.createTrajectory({ trajectoryId });
      await within(span, () => client.trajectories.appendStep({ trajectoryId, step: { stepNumber: 0n } }));
      await within(span, () => client.trajectories.getTrajectory({ trajectoryId }));
      client.close();
    });
    const [append, get] = spans.of(traceId).filter(({ parentSpanId }) => parentSpanId === spanId);
    expect([append?.name, get?.name]).toEqual([`${CALL}/AppendStep`, `${CALL}/GetTrajectory`]);
    const [commit] = spans.commitsOf(append!);
    expect(commit?.name).toBe('group commit');
    expect(spans.under(append!)).toContain(commit);
    expect(spans.under(commit!).map(({ name }) => name)).toContain(
      engine === 'sqlite' ? 'transaction' : 'update trajectories',
    );
    expect(spans.under(get!).map(({ name }) => name)).toContain('select trajectories');
  });

  it('continue the trace of callers by every protocol, tell the code of errors, and nothing of callers', async () => {
    const ids = [0, 1, 2].map(() => randomUUID().replaceAll('-', ''));
    const web = tracer.startSpan('a page');
    const spans = await traced(async ({ url }) => {
      const transports = [createGrpcTransport, createGrpcWebTransport, createConnectTransport] as const;
      for (const [i, transportOf] of transports.entries()) {
        const interceptors = [withHeaders({ traceparent: `00-${ids[i]}-b7ad6b7169203331-01` })];
        const client = createClient(TrajectoryService, transportOf({ baseUrl: url, httpVersion: '2', interceptors }));
        await client.getTrajectory({ trajectoryId: randomUUID() }).catch(() => undefined);
        await client.createTrajectory({ name: 'canary' });
      }
      const page = connectWebClient({ address: url });
      await within(web, () => page.trajectories.createTrajectory({}));
    });
    for (const id of ids) {
      const calls = spans.of(id).filter(({ parentSpanId }) => parentSpanId === 'b7ad6b7169203331');
      expect(calls.map(({ name }) => name)).toEqual([`${CALL}/GetTrajectory`, `${CALL}/CreateTrajectory`]);
      expect(calls[0]!.status).toMatchObject({ code: 2 });
      expect(calls[0]!.attributes).toContainEqual({ key: 'error.type', value: { stringValue: 'NOT_FOUND' } });
      expect(JSON.stringify(spans.of(id))).not.toContain('canary');
    }
    expect(spans.of(web.spanContext().traceId).map(({ name }) => name)).toContain(`${CALL}/CreateTrajectory`);
  });

  it('have the commit of each sampled call, whatever the sampler does with other calls', async () => {
    const traceId = randomUUID().replaceAll('-', '');
    const spans = await traced(
      async ({ url }) => {
        const interceptors = [withHeaders({ traceparent: `00-${traceId}-b7ad6b7169203331-01` })];
        const client = createClient(TrajectoryService, createGrpcTransport({ baseUrl: url, interceptors }));
        const { trajectory } = await client.createTrajectory({});
        await client.appendStep({ trajectoryId: trajectory!.id, step: { stepNumber: 0n } });
      },
      { OTEL_TRACES_SAMPLER: 'parentbased_always_off' },
    );
    expect(spans.of(traceId).map(({ name }) => name)).toContain('group commit');
  });

  it('are not made of calls that their callers do not sample', async () => {
    const traceId = randomUUID().replaceAll('-', '');
    const spans = await traced(async ({ url }) => {
      const interceptors = [withHeaders({ traceparent: `00-${traceId}-b7ad6b7169203331-00` })];
      const client = createClient(TrajectoryService, createGrpcTransport({ baseUrl: url, interceptors }));
      await client.createTrajectory({});
    });
    expect(spans.of(traceId)).toEqual([]);
  });
});

it('V10: a collector that hangs keeps no call and no stop waiting, and a bounded number of spans waits for it', async () => {
  await using database = await createMigratedDatabase('sqlite');
  await using collector = await startCollector({ hangs: true });
  await using server = await spawnServer({
    database: database.url,
    env: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url },
  });
  const client = createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
  const call = () => client.getTrajectory({ trajectoryId: randomUUID() }).catch(() => undefined);
  // Each call has a span, and one for its statement.
  for (let i = 0; i < 40; i += 1) await Promise.all(Array.from({ length: 100 }, call));
  await expect.poll(collector.requests, { timeout: 10_000 }).toBeGreaterThan(0);
  collector.recover();
  await expect.poll(() => collector.spans.length, { timeout: 30_000 }).toBeGreaterThan(0);
  // A stop sends all that wait.
  expect(await server.terminate()).toEqual({ code: 0, signal: null });
  expect(collector.spans.length).toBeLessThanOrEqual(SPANS_WAITING);
});

it('V10: the libraries are loaded only if there is a collector', async () => {
  // The module that imports them is called the same in a bundle.
  const hooks = `import { registerHooks } from 'node:module';
    registerHooks({
      resolve(name, context, next) {
        if (name.includes('/otlp')) console.error('loads the exporter');
        return next(name, context);
      },
    });`;
  const nodeArgs = ['--import', `data:text/javascript,${encodeURIComponent(hooks)}`];
  await using database = await createMigratedDatabase('sqlite');
  await using collector = await startCollector();
  for (const env of [{}, { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url }]) {
    await using server = await spawnServer({ database: database.url, nodeArgs, env });
    await server.terminate();
    expect(server.output().includes('loads the exporter')).toBe('OTEL_EXPORTER_OTLP_ENDPOINT' in env);
  }
});

it.each(['nonsense', '127.0.0.1:4318', 'ftp://s3cret@host'])('V10: a collector at %s is refused', async (place) => {
  const refused = await runCli(['serve'], { env: { OTEL_EXPORTER_OTLP_ENDPOINT: place } });
  expect(refused).toMatchObject({ code: 2, stdout: '' });
  expect(refused.stderr).toContain('OTEL_EXPORTER_OTLP_ENDPOINT is not the address of a collector');
  expect(refused.stderr).not.toContain(place);
});

it('V10: a stop does not wait for a collector that hangs', async () => {
  await using database = await createMigratedDatabase('sqlite');
  await using collector = await startCollector({ hangs: true });
  await using server = await spawnServer({
    database: database.url,
    env: { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url },
  });
  const client = createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
  await client.createTrajectory({});
  expect(await server.terminate()).toEqual({ code: 0, signal: null });
});

it.each([
  [{}, 'ParentBased{root=AlwaysOnSampler'],
  [{ OTEL_TRACES_SAMPLER: 'always_on' }, 'AlwaysOnSampler'],
  [{ OTEL_TRACES_SAMPLER: 'always_off' }, 'AlwaysOffSampler'],
  [{ OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: '0.01' }, 'TraceIdRatioBased{0.01}'],
  [{ OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: 'x' }, 'TraceIdRatioBased{1}'],
  [{ OTEL_TRACES_SAMPLER: 'parentbased_always_off' }, 'ParentBased{root=AlwaysOffSampler'],
  [
    { OTEL_TRACES_SAMPLER: 'parentbased_traceidratio', OTEL_TRACES_SAMPLER_ARG: '0.5' },
    'ParentBased{root=TraceIdRatioBased{0.5}',
  ],
  [{ OTEL_TRACES_SAMPLER: 'unknown' }, 'ParentBased{root=AlwaysOnSampler'],
])('V10: the sampler of %o is %s', (env, sampler) => {
  expect(samplerOf(env).toString()).toContain(sampler);
});
