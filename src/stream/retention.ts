import { AnabranchError } from '../domain/errors.ts';
import { addSizes, NOTHING, type RemovedSize } from '../domain/retention.ts';
import type { DuePolicy, ExecutionEnd } from '../domain/retention_policies.ts';
import type { Store } from '../store/contract/store.ts';
import { Chore, type Reporting, type Stopped } from './chore.ts';
import type { Drain } from './drain.ts';
import { collectFreed } from './maintenance.ts';
import { type AppSettings, logFailure } from './settings.ts';

type PolicyStore = Pick<
  Store,
  'claimDuePolicy' | 'renewPolicyLease' | 'endPolicyExecution' | 'within' | 'collectStates'
>;
interface Work extends Reporting {
  readonly store: PolicyStore;
  readonly settings: Pick<AppSettings, 'retentionLeaseMs' | 'stateTtlHours'>;
  /** Returns a text that no other execution has. */
  readonly newLease: () => string;
}

/** S15: applies due policies in the background, one at a time. Several instances share the policies by leases. */
export function startRetention(work: Work, retentionMs: number, drain: Pick<Drain, 'begun'>): Chore {
  return new Chore('retention', work, async (stopped) => ({
    policies: await applyDuePolicies(work, () => stopped() || drain.begun),
  })).every(retentionMs);
}

/** Applies policies until none is due or `stopped` returns true. Returns how many. */
export async function applyDuePolicies(work: Work, stopped: Stopped): Promise<number> {
  const { store, settings, newLease } = work;
  for (let policies = 0; ; policies += 1) {
    const due = stopped() ? undefined : await store.claimDuePolicy(newLease(), settings.retentionLeaseMs);
    if (due === undefined) return policies;
    await execute(work, due, stopped);
  }
}

/** If the work stops, another instance continues at once; if the process is killed, when the lease has ended. */
async function execute({ store, logger, meter, settings }: Work, due: DuePolicy, stopped: Stopped) {
  const { namespace, name: policy } = due;
  let isLost = false;
  const renewal = new Chore('renewal of the lease of a retention policy', { logger, meter }, async () => {
    isLost ||= !(await store.renewPolicyLease(due, settings.retentionLeaseMs));
    return { namespace, policy, isLost };
  }).every(settings.retentionLeaseMs / 6);
  const mustEnd = () => isLost || stopped();
  let removed: RemovedSize = NOTHING;
  let error: ExecutionEnd['error'];
  try {
    // One call: if the database is replaced, the rest fails, because its rows may belong to something else then.
    const call = store.within({ signal: new AbortController().signal });
    const { parts } = await call.retain(namespace, due.policy, { asOf: due.startTime, apply: true });
    for await (const { size } of parts) {
      removed = addSizes(removed, size);
      if (mustEnd()) break;
    }
    await collectFreed(store, settings, mustEnd);
    logger.info({ namespace, policy, ...removed, ended: !mustEnd() }, 'a retention policy was applied');
  } catch (thrown) {
    logFailure(logger, thrown, 'a retention policy failed', { namespace, policy, ...removed });
    error = thrown instanceof AnabranchError ? thrown : INTERNAL;
  } finally {
    await renewal.stop();
  }
  await store.endPolicyExecution(due, mustEnd() ? undefined : { removed, error });
}

const INTERNAL = { reason: 'INTERNAL', message: 'An internal error: the log of the server has it.' } as const;
