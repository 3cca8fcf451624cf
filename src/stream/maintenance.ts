import type { JobLeaseStore } from '../store/contract/job_lease.ts';
import type { Store } from '../store/contract/store.ts';
import { Chore, type Reporting, type Stopped } from './chore.ts';
import { JobLease } from './job_lease.ts';
import type { AppSettings, Job } from './settings.ts';

/** Rows that one statement takes, so that locks are short. */
const BATCH = 500;

/**
 * Periodic work: collects states without references (S2), expires idempotency keys (ID1), purges rows that were deleted
 * with runs (B4), cancels rollouts of cancelled runs and stages, fails stale runs that have `fail_when_stale`, and
 * requeues rollouts whose leases have ended (Q3). The instance that holds the lease of jobs does it, and every instance
 * requeues. Several instances can do all of it at the same time.
 */
export interface Maintenance {
  /** Purges rows of something that was just deleted. */
  purgeSoon(): void;
  /** Continues cancellations of rollouts whose calls ended early. */
  cancelSoon(): void;
  /** Resolves when running work has stopped after its current batch. Idempotent. */
  stop(): Promise<void>;
}

type Chores = Pick<
  Store,
  'collectStates' | 'expireRequests' | 'purgeDeleted' | 'cancelMarkedRollouts' | 'failStaleRuns' | 'sweepLeases'
>;
type Settings = Pick<
  AppSettings,
  'jobLeaseMs' | 'maintenanceMs' | 'staleSweepMs' | 'leaseSweepMs' | 'stateTtlHours' | 'requestDays'
>;

/** `holder` names this instance, and must be new. */
export function startMaintenance(
  store: Chores & JobLeaseStore,
  reporting: Reporting,
  settings: Settings,
  holder: string,
): Maintenance {
  const chore = (name: Job, work: (stopped: Stopped) => Promise<object>) => new Chore(name, reporting, work);
  const round = chore('maintenance', (stopped) => maintain(store, settings, stopped));
  const purge = chore('purge of deleted rows', async (stopped) => ({ purges: await purgeDeleted(store, stopped) }));
  const cancel = chore('cancellation of rollouts', async (stopped) => {
    return { batches: await whileMore(() => store.cancelMarkedRollouts(), stopped) };
  });
  const sweep = chore('sweep of stale runs', async (stopped) => {
    return { runs: await inBatches(() => store.failStaleRuns(BATCH), stopped) };
  });
  const leases = chore('sweep of leases', async (stopped) => {
    return { rollouts: await inBatches(() => store.sweepLeases(BATCH), stopped) };
  });
  // Continues purges and cancellations that the previous process or holder did not finish.
  const resume = () => {
    if (settings.maintenanceMs > 0) for (const work of [purge, cancel]) work.run();
  };
  const lease = new JobLease(store, reporting, settings, { holder, onTaken: resume });
  const isDue = () => lease.isHeld;
  round.every(settings.maintenanceMs, isDue);
  cancel.every(settings.maintenanceMs, isDue);
  sweep.every(settings.staleSweepMs, isDue);
  // Not only the holder: a worker may wait for such a rollout, and after a kill of the holder nobody has the lease.
  leases.every(settings.leaseSweepMs);
  resume();
  return {
    purgeSoon: () => purge.run({ again: true }),
    cancelSoon: () => cancel.run({ again: true }),
    async stop() {
      await Promise.all([round, purge, cancel, sweep, leases].map((work) => work.stop()));
      await lease.stop();
    },
  };
}

/** Runs one round in batches, until nothing is left to do or `stopped` returns true. */
export async function maintain(
  store: Pick<Chores, 'collectStates' | 'expireRequests' | 'purgeDeleted'>,
  settings: Pick<AppSettings, 'stateTtlHours' | 'requestDays'>,
  stopped: Stopped,
): Promise<{ readonly purges: number; readonly states: number; readonly requests: number }> {
  // The purge comes first, because it leaves states without references.
  const purges = await purgeDeleted(store, stopped);
  const states = await collectFreed(store, settings, stopped);
  const requests = await inBatches(() => store.expireRequests(settings.requestDays, BATCH), stopped);
  return { purges, states, requests };
}

/** S2: deletes the states that nothing refers to any more. Resolves when none is left. */
export function collectFreed(
  store: Pick<Chores, 'collectStates'>,
  { stateTtlHours }: Pick<AppSettings, 'stateTtlHours'>,
  stopped: Stopped,
): Promise<number> {
  return inBatches(() => store.collectStates(stateTtlHours, BATCH), stopped);
}

function purgeDeleted(store: Pick<Chores, 'purgeDeleted'>, stopped: Stopped): Promise<number> {
  return whileMore(() => store.purgeDeleted(BATCH), stopped);
}

/** Repeats the work until it finds nothing more. Returns how often it found something. */
async function whileMore(work: () => Promise<boolean>, stopped: Stopped): Promise<number> {
  let times = 0;
  while (!stopped() && (await work())) times += 1;
  return times;
}

/** Repeats the work until a batch is not full. Returns the number of rows. */
async function inBatches(work: () => Promise<number>, stopped: Stopped): Promise<number> {
  let rows = 0;
  while (!stopped()) {
    const batch = await work();
    rows += batch;
    if (batch < BATCH) break;
  }
  return rows;
}
