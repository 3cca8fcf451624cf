import type { Store } from '../store/contract/store.ts';
import type { Logger } from './logger.ts';
import type { AppSettings } from './settings.ts';

/** Rows taken by one statement, so that no round holds locks for long. */
const BATCH = 500;

/**
 * Periodic work: collects states that nothing refers to (S2), expires idempotency keys (ID1), purges what was deleted
 * with runs (B4), cancels rollouts of cancelled runs and stages, fails stale runs that asked for it, and requeues
 * rollouts whose leases have ended (Q3). Safe on any number of instances at once.
 */
export interface Maintenance {
  /** Rows of something that was just deleted may go now. */
  purgeSoon(): void;
  /** Continues cancellations of rollouts whose calls have ended early. */
  cancelSoon(): void;
  /** Resolves when the work under way, if any, has stopped after its current batch. Idempotent. */
  stop(): Promise<void>;
}

type Chores = Pick<
  Store,
  'collectStates' | 'expireRequests' | 'purgeDeleted' | 'cancelMarkedRollouts' | 'failStaleRuns' | 'sweepLeases'
>;
type Settings = Pick<AppSettings, 'maintenanceMs' | 'staleSweepMs' | 'leaseSweepMs' | 'stateTtlHours' | 'requestDays'>;
type Stopped = () => boolean;

export function startMaintenance(store: Chores, logger: Logger, settings: Settings): Maintenance {
  const chore = (name: string, work: (stopped: Stopped) => Promise<object>) => new Chore(name, logger, work);
  const round = chore('maintenance', (stopped) => maintain(store, settings, stopped));
  const purge = chore('purge of deleted rows', (stopped) => purgeDeleted(store, stopped));
  const cancel = chore('cancellation of rollouts', (stopped) => cancelMarkedRollouts(store, stopped));
  const sweep = chore('sweep of stale runs', (stopped) => failStaleRuns(store, stopped));
  const leases = chore('sweep of leases', (stopped) => sweepLeases(store, stopped));
  const timers: NodeJS.Timeout[] = [];
  const every = (ms: number, work: Chore): void => {
    if (ms > 0) timers.push(setInterval(() => work.run(), ms).unref());
  };
  every(settings.maintenanceMs, round);
  every(settings.maintenanceMs, cancel);
  every(settings.staleSweepMs, sweep);
  every(settings.leaseSweepMs, leases);
  // A server that ended in the middle of a purge or a cancellation continues when it is started again.
  if (settings.maintenanceMs > 0) for (const work of [purge, cancel]) work.run();
  return {
    purgeSoon: () => purge.run({ again: true }),
    cancelSoon: () => cancel.run({ again: true }),
    async stop() {
      for (const timer of timers) clearInterval(timer);
      await Promise.all([round, purge, cancel, sweep, leases].map((work) => work.stop()));
    },
  };
}

/** Work that is done by one at a time, however often it is asked for. */
class Chore {
  readonly #name: string;
  readonly #logger: Logger;
  readonly #work: (stopped: Stopped) => Promise<object>;
  #running: Promise<void> | undefined;
  #again = false;
  #stopped = false;

  constructor(name: string, logger: Logger, work: (stopped: Stopped) => Promise<object>) {
    this.#name = name;
    this.#logger = logger;
    this.#work = work;
  }

  /** `again`: if it is under way, it may have missed what this is about, and is done once more. */
  run({ again = false } = {}): void {
    if (this.#stopped) return;
    this.#again ||= again && this.#running !== undefined;
    this.#running ??= this.#work(() => this.#stopped)
      .then(
        (done) => this.#logger.debug(done, `${this.#name} done`),
        // The next round tries again.
        (error: unknown) => this.#logger.warn({ err: error }, `${this.#name} failed`),
      )
      .finally(() => {
        this.#running = undefined;
        if (!this.#again) return;
        this.#again = false;
        this.run();
      });
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#running;
  }
}

/** One round, in batches, until nothing is left to do or `stopped` says so. */
export async function maintain(
  store: Pick<Chores, 'collectStates' | 'expireRequests' | 'purgeDeleted'>,
  settings: Pick<AppSettings, 'stateTtlHours' | 'requestDays'>,
  stopped: Stopped,
): Promise<{ readonly purges: number; readonly states: number; readonly requests: number }> {
  // What is purged leaves states behind that nothing refers to.
  const { purges } = await purgeDeleted(store, stopped);
  const states = await inBatches(() => store.collectStates(settings.stateTtlHours, BATCH), stopped);
  const requests = await inBatches(() => store.expireRequests(settings.requestDays, BATCH), stopped);
  return { purges, states, requests };
}

/**
 * Batches of rows that were deleted with runs and experiments, also those that a server left which ended before it was
 * done (B4).
 */
async function purgeDeleted(
  store: Pick<Chores, 'purgeDeleted'>,
  stopped: Stopped,
): Promise<{ readonly purges: number }> {
  let purges = 0;
  while (!stopped() && (await store.purgeDeleted(BATCH))) purges += 1;
  return { purges };
}

/** Batches of rollouts of runs and stages that were cancelled with their rollouts. */
async function cancelMarkedRollouts(
  store: Pick<Chores, 'cancelMarkedRollouts'>,
  stopped: Stopped,
): Promise<{ readonly batches: number }> {
  let batches = 0;
  while (!stopped() && (await store.cancelMarkedRollouts())) batches += 1;
  return { batches };
}

async function failStaleRuns(
  store: Pick<Chores, 'failStaleRuns'>,
  stopped: Stopped,
): Promise<{ readonly runs: number }> {
  return { runs: await inBatches(() => store.failStaleRuns(BATCH), stopped) };
}

async function sweepLeases(
  store: Pick<Chores, 'sweepLeases'>,
  stopped: Stopped,
): Promise<{ readonly rollouts: number }> {
  return { rollouts: await inBatches(() => store.sweepLeases(BATCH), stopped) };
}

async function inBatches(work: () => Promise<number>, stopped: Stopped): Promise<number> {
  let total = 0;
  while (!stopped()) {
    const done = await work();
    total += done;
    if (done < BATCH) break;
  }
  return total;
}
