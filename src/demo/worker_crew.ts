/** The workers of the demo's training: processes that claim rollouts. The first one is killed within a rollout. */
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import type { TrainingEvent } from './events.ts';
import { type ReportingProcess, startReportingProcess, withProcess } from './reporting_process.ts';
import type { WorkerReport, WorkerTask } from './rollout_worker.ts';

export interface CrewOptions {
  readonly client: AnabranchClient;
  readonly runId: string;
  readonly workers: number;
  readonly workerCommand: readonly string[];
  readonly onEvent: (event: TrainingEvent) => void;
  /** Called with the first failure of a worker that was not killed by plan. */
  readonly onFailure: (error: unknown) => void;
  readonly signal: AbortSignal;
}

export interface Crew {
  /** Starts the workers at the first call, when there are rollouts to claim. */
  begin(): void;
  /** The rollout whose first worker was killed. Empty before that. */
  readonly killedRolloutId: string;
  /**
   * Resolves when all workers have ended, which they do when no rollout can follow. Rejects with the failure of a
   * worker.
   */
  ended(): Promise<void>;
}

/** Long enough for a live worker, and short enough to wait for its end. */
const LEASE_SECONDS = 2;
/** Fewer turns than any episode has. */
const HANG_AFTER = 10;

export function startCrew(options: CrewOptions): Crew {
  return new WorkerCrew(options);
}

class WorkerCrew implements Crew {
  readonly #options: CrewOptions;
  readonly #working: Promise<void>[] = [];
  #killed: { readonly rolloutId: string; readonly workerId: string } | undefined;

  constructor(options: CrewOptions) {
    this.#options = options;
  }

  get killedRolloutId(): string {
    return this.#killed?.rolloutId ?? '';
  }

  begin(): void {
    if (this.#working.length > 0) return;
    this.#start(1, HANG_AFTER);
  }

  async ended(): Promise<void> {
    // The first worker starts the others. All must have ended, also if one has failed.
    for (let i = 0; i < this.#working.length; i++) await Promise.allSettled([this.#working[i]]);
    await Promise.all(this.#working);
  }

  #start(number: number, hangAfter?: number): void {
    const { client, runId, workerCommand, onFailure } = this.#options;
    const workerId = `worker-${number}`;
    const hanging = hangAfter === undefined ? {} : { hangAfter };
    const task: WorkerTask = { address: client.url, runId, workerId, leaseSeconds: LEASE_SECONDS, ...hanging };
    const process = startReportingProcess<WorkerReport>(workerCommand, task);
    const working = withProcess(process, this.#options.signal, () => this.#follow(process, workerId));
    this.#working.push(working);
    working.catch(onFailure);
  }

  async #follow(process: ReportingProcess<WorkerReport>, workerId: string): Promise<void> {
    const { onEvent } = this.#options;
    let environmentId = '';
    for await (const report of process.reports) {
      if (report.event === 'ready') {
        environmentId = report.environmentId;
        onEvent({ event: 'worker', name: workerId, pid: process.pid });
      } else if (report.event === 'claimed') {
        this.#claimed(workerId, report);
      } else if (report.event === 'hanging') {
        return this.#kill(process, { ...report, workerId, environmentId });
      }
    }
    await process.ended();
  }

  #claimed(workerId: string, { rolloutId, attempt }: { rolloutId: string; attempt: number }): void {
    const { workers, onEvent } = this.#options;
    // The first worker has its rollout, so the others can now start: one of them claims this rollout again later.
    for (let number = this.#working.length + 1; number <= workers; number++) this.#start(number);
    if (rolloutId === this.#killed?.rolloutId) onEvent({ event: 'claimed_again', name: workerId, rolloutId, attempt });
  }

  async #kill(
    process: ReportingProcess<WorkerReport>,
    {
      rolloutId,
      turns,
      workerId,
      environmentId,
    }: { rolloutId: string; turns: number; workerId: string; environmentId: string },
  ): Promise<void> {
    const { client, runId, onEvent, signal } = this.#options;
    this.#killed = { rolloutId, workerId };
    await process.kill();
    onEvent({
      event: 'worker_killed',
      name: workerId,
      pid: process.pid,
      rolloutId,
      turns,
    });
    // No other process knows that the environment of the killed worker is gone.
    const end = { status: Status.FAILED, message: 'its process was killed' };
    await client.rollouts.upsertEnvironment({ runId, environmentId, ...end }, { signal });
  }
}
