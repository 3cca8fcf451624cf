import type { Store } from '../store/contract/store.ts';
import type { AppSettings, Logger } from './app.ts';

/** Rows taken by one statement, so that no round holds locks for long. */
const BATCH = 500;

/** Periodic work: collects states that nothing refers to (S2) and expires idempotency keys (ID1). Safe on any number of instances at once. */
export interface Maintenance {
  /** Resolves when the round that runs, if any, has stopped after its current batch. Idempotent. */
  stop(): Promise<void>;
}

type Chores = Pick<Store, 'collectStates' | 'expireRequests'>;

export function startMaintenance(
  store: Chores,
  logger: Logger,
  settings: Pick<AppSettings, 'maintenanceMs' | 'stateTtlHours' | 'requestDays'>,
): Maintenance {
  let stopped = false;
  let round: Promise<void> | undefined;
  const run = (): void => {
    round ??= maintain(store, settings, () => stopped)
      .then(
        (done) => logger.debug(done, 'maintenance done'),
        // The next round tries again.
        (error: unknown) => logger.warn({ err: error }, 'maintenance failed'),
      )
      .finally(() => {
        round = undefined;
      });
  };
  const timer = settings.maintenanceMs > 0 ? setInterval(run, settings.maintenanceMs) : undefined;
  timer?.unref();
  return {
    async stop() {
      stopped = true;
      clearInterval(timer);
      await round;
    },
  };
}

/** One round, in batches, until nothing is left to do or `stopped` says so. */
export async function maintain(
  store: Chores,
  settings: Pick<AppSettings, 'stateTtlHours' | 'requestDays'>,
  stopped: () => boolean,
): Promise<{ readonly states: number; readonly requests: number }> {
  const states = await inBatches(() => store.collectStates(settings.stateTtlHours, BATCH), stopped);
  const requests = await inBatches(() => store.expireRequests(settings.requestDays, BATCH), stopped);
  return { states, requests };
}

async function inBatches(work: () => Promise<number>, stopped: () => boolean): Promise<number> {
  let total = 0;
  while (!stopped()) {
    const done = await work();
    total += done;
    if (done < BATCH) break;
  }
  return total;
}
