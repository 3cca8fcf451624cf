import type { JobLeaseStore } from '../store/contract/job_lease.ts';
import { Chore, type Reporting } from './chore.ts';
import { type AppSettings, logFailure } from './settings.ts';

/**
 * Which instance runs the background jobs: the one that holds a lease, a row of a table. It renews the lease three
 * times as often as necessary, and the others ask as often, so another one takes over within two periods.
 */
export class JobLease {
  readonly #store: JobLeaseStore;
  readonly #reporting: Reporting;
  readonly #holder: string;
  readonly #leaseMs: number;
  readonly #renewal: Chore;
  /** By the clock of this process, from before the request for the lease. */
  #heldUntil = 0;

  /** `holder` must be new. Calls `onTaken` when this instance begins to hold the lease. */
  constructor(
    store: JobLeaseStore,
    reporting: Reporting,
    { jobLeaseMs }: Pick<AppSettings, 'jobLeaseMs'>,
    { holder, onTaken }: { readonly holder: string; readonly onTaken: () => void },
  ) {
    this.#store = store;
    this.#reporting = reporting;
    this.#holder = holder;
    this.#leaseMs = jobLeaseMs;
    this.#renewal = new Chore('renewal of the lease of jobs', reporting, async () => {
      const begun = performance.now();
      const before = this.isHeld;
      const holds = await store.holdJobs(holder, jobLeaseMs);
      this.#heldUntil = holds ? begun + jobLeaseMs : 0;
      if (holds && !before) onTaken();
      return { holds };
    });
    if (jobLeaseMs > 0) this.#renewal.every(jobLeaseMs / 3).run();
  }

  /** Whether this instance runs the jobs. Always true without leases. */
  get isHeld(): boolean {
    return this.#leaseMs === 0 || performance.now() < this.#heldUntil;
  }

  /** Lets another instance take over at once. Must be called after the last job. */
  async stop(): Promise<void> {
    await this.#renewal.stop();
    if (this.#heldUntil === 0) return;
    this.#heldUntil = 0;
    await this.#store
      .releaseJobs(this.#holder)
      .catch((error: unknown) => logFailure(this.#reporting.logger, error, 'the lease of jobs was not released'));
  }
}
