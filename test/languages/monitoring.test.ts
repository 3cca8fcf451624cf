import { mkdtemp, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { expect, it, vi } from 'vitest';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { measureProcess } from '../../src/observe/metrics.ts';
import { alertExpressions, dashboardExpressions, RULES_FILE, type Series, seriesIn } from '../support/monitoring.ts';
import { startTestServer } from '../support/test-server.ts';
import { run } from './run.ts';

/** Prometheus itself reads the rules and evaluates the expressions. */

it('V8: promtool accepts the rules', async () => {
  expect(await run('promtool', ['check', 'rules', RULES_FILE])).toContain(
    `SUCCESS: ${alertExpressions().length} rules found`,
  );
});

/** By alert: series that make it fire, as promtool writes values of each minute. */
const FIRING: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  AnabranchAbsent: { up: '0x60' },
  AnabranchInternalErrors: { 'anabranch_call_errors_total{reason="INTERNAL",instance="a"}': '0+1x60' },
  AnabranchDatabaseUnavailable: {
    'anabranch_call_errors_total{reason="DATABASE_UNAVAILABLE",instance="a"}': '0+1x60',
  },
  AnabranchStorageFull: { 'anabranch_call_errors_total{reason="STORAGE_FULL",instance="a"}': '0+1x60' },
  AnabranchSlowCommits: {
    'anabranch_commit_seconds_bucket{le="0.5",instance="a"}': '0+1x60',
    'anabranch_commit_seconds_bucket{le="1",instance="a"}': '0+9x60',
    'anabranch_commit_seconds_bucket{le="+Inf",instance="a"}': '0+9x60',
  },
  AnabranchConnectionsWaitedFor: { 'anabranch_database_connections_waited_for{pool="shared",instance="a"}': '2x60' },
  AnabranchNotListening: { 'anabranch_database_listening{instance="a"}': '0x60' },
  AnabranchBusyThread: {
    'nodejs_eventloop_lag_p99_seconds{instance="a"}': '0.8x60',
    'nodejs_eventloop_lag_p99_seconds{instance="another program"}': '0.8x60',
  },
  AnabranchMergesBehind: { 'anabranch_unmerged_bytes{instance="a"}': '99999999x60' },
  AnabranchLogGrows: { 'anabranch_wal_bytes{instance="a"}': '999999999x60' },
  AnabranchJobFails: {
    'anabranch_job_runs_total{background_job="retention",outcome="failed",instance="a"}': '0+1x60',
    'anabranch_job_runs_total{background_job="maintenance",outcome="done",instance="a"}': '0+1x60',
  },
  AnabranchLeasesNotSwept: { 'anabranch_leases_ended{instance="a"}': '3x60' },
  AnabranchQueueWithoutWorkers: {
    'anabranch_rollouts_pending{instance="a"}': '5x60',
    'anabranch_leases_live{instance="a"}': '0x60',
  },
  AnabranchCredentialsRefused: { 'anabranch_refused_credentials_total{instance="a"}': '0+99x60' },
};

it('V8: each alert fires by what it is about, alone', async () => {
  expect(Object.keys(FIRING)).toEqual(alertExpressions().map(({ of }) => of));
  const present = { 'anabranch_info{instance="a"}': '1x60' };
  const tests = Object.entries(FIRING).map(([alert, series]) => ({
    interval: '1m',
    input_series: seriesOf(alert === 'AnabranchAbsent' ? series : { ...present, ...series }),
    promql_expr_test: [
      {
        expr: 'count by (alertname) (ALERTS{alertstate="firing"})',
        eval_time: '59m',
        exp_samples: [{ labels: `{alertname="${alert}"}`, value: 1 }],
      },
    ],
  }));
  await promtoolTests(tests, [RULES_FILE]);
});

it('V8: alerts about failed calls fire by a burst of errors that are the first ones of a server', async () => {
  await using server = await startTestServer({ flags: { metricsListen: '0' } });
  const scraped = seriesIn(await (await fetch(server.metricsUrl!)).text());
  const alerts = alertExpressions().flatMap(({ of, text }) => {
    const [, reasons = ''] = /anabranch_call_errors_total\{reason=~?"(.*?)"\}/u.exec(text) ?? [];
    return reasons === '' ? [] : reasons.split('|').map((reason) => ({ of, reason }));
  });
  expect(alerts).toHaveLength(4);
  const tests = alerts.map(({ of, reason }) => {
    const found = scraped.find(({ name, labels }) => name.endsWith('_call_errors_total') && labels.reason === reason);
    const [info, errors] = [
      'anabranch_info{instance="a"}',
      `anabranch_call_errors_total{reason="${reason}",instance="a"}`,
    ];
    return {
      interval: '1m',
      // `_`: without a sample, as Prometheus then sees none.
      input_series: seriesOf({ [info]: '1x60', [errors]: `${found?.value ?? '_'}x10 50x49` }),
      promql_expr_test: [
        {
          expr: 'count by (alertname) (ALERTS{alertstate="firing"})',
          eval_time: '14m',
          exp_samples: [{ labels: `{alertname="${of}"}`, value: 1 }],
        },
      ],
    };
  });
  await promtoolTests(tests, [RULES_FILE]);
});

it('V8: each expression of the dashboard has a value for a server that runs', async () => {
  await using server = await startTestServer({ flags: { metricsListen: '0' }, processMetrics: measureProcess() });
  const trajectories = createClient(TrajectoryService, createGrpcTransport({ baseUrl: server.url }));
  const { trajectory } = await trajectories.createTrajectory({});
  await trajectories.appendStep({ trajectoryId: trajectory!.id, step: { stepNumber: 0n } });
  await trajectories.appendStep({ trajectoryId: trajectory!.id, step: { stepNumber: 9n } }).catch(() => undefined);
  let series: Series[] = [];
  await vi.waitUntil(
    async () => {
      series = seriesIn(await (await fetch(server.metricsUrl!)).text());
      const names = series.map(({ name }) => name);
      return names.includes('anabranch_job_runs_total') && names.includes('nodejs_gc_duration_seconds_sum');
    },
    { timeout: 10_000 },
  );
  const here = series.map(({ name, labels, value }) => {
    const pairs = Object.entries({ ...labels, instance: 'a:1', job: 'anabranch' });
    return [`${name}{${pairs.map(([label, of]) => `${label}="${of}"`).join(',')}}`, `${value}x10`] as const;
  });
  const onPostgresOnly = 'anabranch_database_listening';
  const expressions = dashboardExpressions().filter(({ text }) => !text.includes(onPostgresOnly));
  await promtoolTests([
    {
      interval: '1m',
      input_series: seriesOf(Object.fromEntries(here)),
      promql_expr_test: expressions.map(({ text }) => ({
        expr: `count(${text}) > bool 0`,
        eval_time: '9m',
        exp_samples: [{ labels: '{}', value: 1 }],
      })),
    },
  ]);
});

function seriesOf(values: Readonly<Record<string, string>>): { readonly series: string; readonly values: string }[] {
  return Object.entries(values).map(([series, each]) => ({ series, values: each }));
}

async function promtoolTests(tests: readonly object[], ruleFiles: readonly string[] = []): Promise<void> {
  const file = path.join(await mkdtemp(path.join(os.tmpdir(), 'anabranch-promtool-')), 'tests.yaml');
  await writeFile(file, JSON.stringify({ rule_files: ruleFiles, evaluation_interval: '1m', tests }));
  expect(await run('promtool', ['test', 'rules', file])).toContain('SUCCESS');
}
