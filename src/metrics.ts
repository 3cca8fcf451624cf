import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { Job, Meter } from './stream/settings.ts';

/** What is measured when somebody asks for it. */
export interface Levels extends Readonly<Record<keyof typeof GAUGES, number>> {
  readonly ackedSteps: number;
  readonly ackedBytes: number;
}

const CALL_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10];
const COMMIT_SECONDS = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5];
const GROUP_STEPS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];

const GAUGES = {
  calls: ['anabranch_calls_running', 'Calls that are served.'],
  connections: ['anabranch_connections', 'Connections of clients.'],
  streams: ['anabranch_streams', 'HTTP/2 streams and HTTP/1.1 requests that are open.'],
  followers: ['anabranch_followers', 'Followers of trajectories.'],
  watchers: ['anabranch_watchers', 'Watchers of runs and rollouts.'],
  waitingClaims: ['anabranch_claims_waiting', 'Claims that wait for a rollout.'],
  unackedBytes: ['anabranch_unacked_bytes', 'Estimated memory of received steps that are not stored yet.'],
  unmergedBytes: ['anabranch_unmerged_bytes', 'Stored bytes of steps that wait to be merged.'],
} as const;

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
  readonly #levels: () => Levels;
  readonly #gauges = Object.entries(GAUGES).map(([key, [name, help]]) => {
    return [key as keyof typeof GAUGES, new Gauge({ name, help, registers: [this.#registry] })] as const;
  });
  readonly #calls = this.#histogram('anabranch_call_seconds', 'Duration of calls.', CALL_SECONDS, ['method', 'code']);
  readonly #errors = this.#counter('anabranch_call_errors_total', 'Calls that failed.', ['reason']);
  readonly #refused = this.#counter('anabranch_refused_credentials_total', 'Calls refused for their credential.');
  readonly #steps = this.#counter('anabranch_acked_steps_total', 'New steps that were acked.');
  readonly #bytes = this.#counter('anabranch_acked_bytes_total', 'Bytes of these steps as they were received.');
  readonly #groupSteps = this.#histogram('anabranch_commit_group_steps', 'Steps of a group commit.', GROUP_STEPS);
  readonly #groupSeconds = this.#histogram('anabranch_commit_seconds', 'Duration of a group commit.', COMMIT_SECONDS);
  readonly #jobSeconds = this.#counter('anabranch_job_seconds_total', 'Time of background jobs.', ['job']);
  readonly #jobRuns = this.#counter('anabranch_job_runs_total', 'Rounds of background jobs.', ['job', 'outcome']);
  readonly #jobItems = this.#counter(
    'anabranch_job_items_total',
    'Rows, batches or credentials that jobs went through.',
    ['job'],
  );
  /** By method and code: to look up the labels of each call costs more than the rest. */
  readonly #ofCall = new Map<string, Map<string, { observe(seconds: number): void }>>();

  constructor(levels: () => Levels, shared: ProcessMetrics | undefined) {
    this.#levels = levels;
    this.#shared = shared;
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
    this.#jobRuns.inc({ job, outcome: failed ? 'failed' : 'done' });
    this.#jobItems.inc({ job }, items);
    this.#jobSeconds.inc({ job }, seconds);
  }

  text = async (): Promise<string> => {
    const levels = this.#levels();
    for (const [key, gauge] of this.#gauges) gauge.set(levels[key]);
    setTo(this.#steps, levels.ackedSteps);
    setTo(this.#bytes, levels.ackedBytes);
    return `${await this.#registry.metrics()}${(await this.#shared?.metrics()) ?? ''}`;
  };

  #counter(name: string, help: string, labelNames: readonly string[] = []): Counter {
    return new Counter({ name, help, labelNames, registers: [this.#registry] });
  }

  #histogram(name: string, help: string, buckets: number[], labelNames: readonly string[] = []): Histogram {
    return new Histogram({ name, help, buckets, labelNames, registers: [this.#registry] });
  }
}

function setTo(counter: Counter, value: number): void {
  counter.reset();
  counter.inc(value);
}
