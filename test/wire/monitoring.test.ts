import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { REASONS } from '../../src/domain/errors.ts';
import { measureProcess } from '../../src/observe/metrics.ts';
import { ENGINES } from '../support/database.ts';
import { alertExpressions, dashboardExpressions, type Expression, seriesIn } from '../support/monitoring.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { NOBODY } from './rpcs/scene.ts';

/** Labels that Prometheus adds to each series of a target. */
const OF_TARGET = ['instance', 'job'];
/** Metrics that only one engine has. */
const OF_ENGINE = ['anabranch_database_listening', 'anabranch_wal_bytes'];

describe('V8: what deploy/ asks Prometheus for', () => {
  let server: TestServer;
  /** Labels by series. */
  let served: ReadonlyMap<string, ReadonlySet<string>>;

  beforeAll(async () => {
    server = await startTestServer({
      engine: ENGINES[0]!,
      flags: { metricsListen: '0' },
      processMetrics: measureProcess(),
    });
    const trajectories = createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
    const { trajectory } = await trajectories.createTrajectory({});
    await trajectories.appendStep({ trajectoryId: trajectory!.id, step: { stepNumber: 0n } });
    await trajectories.getTrajectory({ trajectoryId: NOBODY }).catch(() => undefined);
    const all = new Map<string, Set<string>>();
    // Jobs run, and memory is collected, when it is their time.
    await vi.waitUntil(
      async () => {
        for (const { name, labels } of seriesIn(await (await fetch(server.metricsUrl!)).text())) {
          const known = all.get(name) ?? new Set();
          all.set(name, known);
          for (const label of Object.keys(labels)) known.add(label);
        }
        return all.has('anabranch_job_runs_total') && all.has('nodejs_gc_duration_seconds_sum');
      },
      { timeout: 10_000 },
    );
    served = all;
  });
  afterAll(() => server?.stop());

  /** Names and labels of an expression that no series of the server has. */
  const unknownIn = ({ text }: Expression): string[] => {
    const names = [...text.matchAll(/\b(?:anabranch|nodejs|process)_\w+/g)].map(([name]) => name);
    const strange = names.filter((name) => !served.has(name) && !OF_ENGINE.includes(name));
    const labels = new Set([...OF_TARGET, ...names.flatMap((name) => [...(served.get(name) ?? [])])]);
    const selected = [...text.matchAll(/\b(\w+)\s*(?:=~|!~|!=|=)\s*"/g)].map(([, label = '']) => label);
    const grouped = [...text.matchAll(/\b(?:by|on|without|ignoring)\s*\(([^)]*)\)/g)].flatMap(([, list = '']) =>
      list.split(',').map((label) => label.trim()),
    );
    return [...strange, ...[...selected, ...grouped].filter((label) => !labels.has(label))];
  };

  it.each([...dashboardExpressions(), ...alertExpressions()])(
    '$of: $text: each metric and label exists',
    (expression) => {
      expect(unknownIn(expression)).toEqual([]);
    },
  );

  it('an unknown metric and an unknown label are found', () => {
    const text = 'sum by (pool) (rate(anabranch_calls_total{method="a", code="b"}[5m])) / anabranch_call_seconds_sum';
    expect(unknownIn({ of: '', text })).toEqual(['anabranch_calls_total', 'pool']);
  });

  it('each metric of the server but its version is on the dashboard', () => {
    const shown = dashboardExpressions()
      .map(({ text }) => text)
      .join('\n');
    const families = [...served.keys()].filter((name) => name.startsWith('anabranch_'));
    const missing = families.filter((name) => !shown.includes(name.replace(/_(?:sum|count|bucket)$/, '')));
    expect(missing).toEqual(['anabranch_info']);
  });

  it('each reason of an error that alerts name exists', () => {
    const named = alertExpressions().flatMap(({ text }) =>
      [...text.matchAll(/reason=~?"([^"]*)"/g)].flatMap(([, reasons = '']) => reasons.split('|')),
    );
    expect(named.length).toBeGreaterThan(0);
    for (const reason of named) expect(REASONS).toContain(reason);
  });
});
