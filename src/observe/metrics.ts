import { Counter, collectDefaultMetrics, Histogram, type Metric, Registry } from 'prom-client';
import type { Reason } from '../domain/errors.ts';
import {
  MOST_COUNTED,
  type PoolLoad,
  STATEMENT_SECONDS,
  type StatementTime,
  type StoreLoad,
  type WorkCounts,
} from '../store/contract/load.ts';
import type { Job, Meter } from '../stream/settings.ts';
import { Sampled } from './sampled.ts';

/** What is measured when somebody asks for it. */
export interface Levels extends Readonly<Record<keyof typeof GAUGES | keyof typeof COUNTERS, number>> {}

/** What the metrics ask for at each request. */
export interface Measured {
  readonly version: string;
  readonly engine: 'postgres' | 'sqlite';
  readonly levels: () => Levels;
  readonly load: () => StoreLoad;
  readonly work: Sampled<WorkCounts>;
  readonly storedBytes: Sampled<number>;
}

const CALL_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];
const COMMIT_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];
const GROUP_STEPS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

/** Reasons of alerts. Their series begin at 0, so that a first burst of errors is an increase. */
const ALERTED = ['INTERNAL', 'DATABASE_UNAVAILABLE', 'STORAGE_FULL', 'STORAGE_LOST'] as const satisfies Reason[];

const GAUGES = {
  calls: ['anabranch_calls_running', 'Calls that are served.'],
  connections: ['anabranch_connections', 'Connections of clients.'],
  streams: ['anabranch_streams', 'HTTP/2 streams and HTTP/1.1 requests that are open.'],
  followers: ['anabranch_followers', 'Followers of trajectories.'],
  followersLag: ['anabranch_followers_lag_steps', 'Known steps that the slowest follower has not asked for.'],
  watchers: ['anabranch_watchers', 'Watchers of runs and rollouts.'],
  waitingClaims: ['anabranch_claims_waiting', 'Claims that wait for a rollout.'],
  unackedBytes: ['anabranch_unacked_bytes', 'Estimated memory of received steps that are not stored yet.'],
  unmergedBytes: ['anabranch_unmerged_bytes', 'Stored bytes of steps that wait to be merged by this instance.'],
  unmergedTrajectories: ['anabranch_unmerged_trajectories', 'Trajectories that wait to be merged by this instance.'],
} as const;

const COUNTERS = {
  ackedSteps: ['anabranch_acked_steps_total', 'New steps that were acked.'],
  ackedBytes: ['anabranch_acked_bytes_total', 'Bytes of these steps as they were received.'],
} as const;

/** Rollouts of the database: all instances report the same. Older than a few seconds. */
const WORK = {
  pending: ['anabranch_rollouts_pending', `PENDING rollouts. ${MOST_COUNTED}: so many or more.`],
  oldestPendingSeconds: [
    'anabranch_rollouts_oldest_pending_seconds',
    `Time since the oldest PENDING rollout was created. An estimate if ${MOST_COUNTED} are PENDING.`,
  ],
  liveLeases: ['anabranch_leases_live', `Leases of rollouts that have not ended. ${MOST_COUNTED}: so many or more.`],
  endedLeases: ['anabranch_leases_ended', 'Leases that have ended, and whose rollouts are not requeued yet.'],
} as const satisfies Record<keyof WorkCounts, readonly [string, string]>;

const POOLS = {
  used: ['anabranch_database_connections_used', 'Connections in use. SQLite: read threads, and the one writer.'],
  most: ['anabranch_database_connections_most', 'Most connections of the pool.'],
  waiting: ['anabranch_database_connections_waited_for', 'Statements and transactions that wait for a connection.'],
} as const satisfies Record<keyof PoolLoad, readonly [string, string]>;

/** Begins to measure the process: its CPU, memory, collections and event loop. To be called once. */
export function measureProcess(): ProcessMetrics {
  const register = new Registry();
  collectDefaultMetrics({ register });
  return register;
}

/** The metrics of a process, which its servers share. */
export interface ProcessMetrics {
  metrics(): Promise<string>;
}

/** The metrics of a server, in the text format of Prometheus. */
export class Metrics implements Meter {
  /** Media type of the text. */
  readonly contentType = Registry.PROMETHEUS_CONTENT_TYPE;
  readonly #registry = new Registry();
  readonly #shared: ProcessMetrics | undefined;
  readonly #calls = this.#histogram('anabranch_call_seconds', 'Duration of calls.', CALL_SECONDS, ['method', 'code']);
  readonly #errors = this.#counter('anabranch_call_errors_total', 'Calls that failed.', ['reason']);
  readonly #refused = this.#counter('anabranch_refused_credentials_total', 'Calls refused for their credential.');
  readonly #groupSteps = this.#histogram('anabranch_commit_group_steps', 'Steps of a group commit.', GROUP_STEPS);
  readonly #groupSeconds = this.#histogram('anabranch_commit_seconds', 'Duration of a group commit.', COMMIT_SECONDS);
  // Prometheus itself gives each series a label `job`.
  readonly #jobSeconds = this.#counter('anabranch_job_seconds_total', 'Time of background jobs.', ['background_job']);
  readonly #jobRuns = this.#counter('anabranch_job_runs_total', 'Rounds of background jobs.', [
    'background_job',
    'outcome',
  ]);
  readonly #jobItems = this.#counter(
    'anabranch_job_items_total',
    'Rows, batches or credentials that jobs went through.',
    ['background_job'],
  );
  /** By method and code: to look up the labels of each call costs more than the rest. */
  readonly #ofCall = new Map<string, Map<string, { observe(seconds: number): void }>>();

  readonly #samples: readonly Sampled<unknown>[];
  /** To write the text takes milliseconds: however often it is asked for, a twentieth of the time at most. */
  readonly #text = new Sampled(() => this.#write(), { everyMs: 0, pausePerWork: 20 });

  constructor(measured: Measured, shared: ProcessMetrics | undefined) {
    this.#shared = shared;
    this.#samples = [measured.work, measured.storedBytes];
    for (const reason of ALERTED) this.#errors.inc({ reason }, 0);
    this.#registerLevels(measured);
    this.#registerDatabase(measured);
  }

  called(method: string, code: string, seconds: number): void {
    (this.#ofCall.get(method)?.get(code) ?? this.#callOf(method, code)).observe(seconds);
  }

  #callOf(method: string, code: string): { observe(seconds: number): void } {
    const call = this.#calls.labels(method, code);
    this.#ofCall.set(method, (this.#ofCall.get(method) ?? new Map()).set(code, call));
    return call;
  }

  failed(reason: string): void {
    this.#errors.inc({ reason });
  }

  refused(): void {
    this.#refused.inc();
  }

  committed(steps: number, seconds: number): void {
    this.#groupSteps.observe(steps);
    this.#groupSeconds.observe(seconds);
  }

  worked(job: Job, items: number, seconds: number, failed: boolean): void {
    // Both, so that a first failure of a job that has worked is an increase.
    this.#jobRuns.inc({ background_job: job, outcome: 'failed' }, failed ? 1 : 0);
    this.#jobRuns.inc({ background_job: job, outcome: 'done' }, failed ? 0 : 1);
    this.#jobItems.inc({ background_job: job }, items);
    this.#jobSeconds.inc({ background_job: job }, seconds);
  }

  text = async (): Promise<string> => {
    await Promise.all(this.#samples.map((sample) => sample.refresh()));
    await this.#text.refresh();
    if (this.#text.value === undefined) throw new Error('the metrics could not be written');
    return this.#text.value;
  };

  async #write(): Promise<string> {
    return `${await this.#registry.metrics()}${(await this.#shared?.metrics()) ?? ''}`;
  }

  #registerLevels({ version, engine, levels, work }: Measured): void {
    const info = [{ value: 1, labels: { version, engine } }];
    this.#read('gauge', 'anabranch_info', 'Version of the server, and engine of its database.', () => info);
    for (const [key, [name, help]] of entriesOf(GAUGES)) this.#read('gauge', name, help, () => only(levels()[key]));
    for (const [key, [name, help]] of entriesOf(COUNTERS)) this.#read('counter', name, help, () => only(levels()[key]));
    for (const [key, [name, help]] of entriesOf(WORK)) this.#read('gauge', name, help, () => only(work.value?.[key]));
  }

  #registerDatabase({ load, storedBytes }: Measured): void {
    for (const [key, [name, help]] of entriesOf(POOLS)) {
      const values = () => Object.entries(load().pools).map(([pool, each]) => ({ value: each[key], labels: { pool } }));
      this.#read('gauge', name, help, values);
    }
    const statements = 'Duration of statements, by verb and table. Postgres: from sending to the answer.';
    this.#read('histogram', STATEMENTS, statements, () => load().statements.flatMap(bucketsOf));
    const listening = 'Whether the instance hears of changes of others (LISTEN). Only on Postgres.';
    this.#read('gauge', 'anabranch_database_listening', listening, () => only(load().listening));
    const bytes = 'Bytes of the database on disk, at most some minutes old.';
    this.#read('gauge', 'anabranch_stored_bytes', bytes, () => only(storedBytes.value));
    const wal = "Bytes of the database's write-ahead log. Only on SQLite.";
    this.#read('gauge', 'anabranch_wal_bytes', wal, () => only(load().walBytes));
  }

  /** A metric whose values are read at each request. */
  #read(type: 'counter' | 'gauge' | 'histogram', name: string, help: string, values: () => readonly Value[]): void {
    const metric = { name, help, type, aggregator: 'sum', get: async () => ({ name, help, type, values: values() }) };
    this.#registry.registerMetric(metric as unknown as Metric);
  }

  #counter(name: string, help: string, labelNames: readonly string[] = []): Counter {
    return new Counter({ name, help, labelNames, registers: [this.#registry] });
  }

  #histogram(name: string, help: string, buckets: number[], labelNames: readonly string[] = []): Histogram {
    return new Histogram({ name, help, buckets, labelNames, registers: [this.#registry] });
  }
}

/** A value of a metric, as prom-client takes it. Default of `metricName`: the name of the metric. */
interface Value {
  readonly value: number;
  readonly labels?: Readonly<Record<string, string | number>>;
  readonly metricName?: string;
}

const STATEMENTS = 'anabranch_statement_seconds';

function only(value: number | boolean | undefined): readonly Value[] {
  return value === undefined ? [] : [{ value: Number(value) }];
}

function bucketsOf({ name: statement, count, seconds, buckets }: StatementTime): readonly Value[] {
  let upTo = 0;
  const below = STATEMENT_SECONDS.map((le, i) => {
    upTo += buckets[i]!;
    return { metricName: `${STATEMENTS}_bucket`, labels: { le, statement }, value: upTo };
  });
  return [
    ...below,
    { metricName: `${STATEMENTS}_bucket`, labels: { le: '+Inf', statement }, value: count },
    { metricName: `${STATEMENTS}_sum`, labels: { statement }, value: seconds },
    { metricName: `${STATEMENTS}_count`, labels: { statement }, value: count },
  ];
}

function entriesOf<T extends object>(all: T): [keyof T, T[keyof T]][] {
  return Object.entries(all) as [keyof T, T[keyof T]][];
}
