import { formatInstant, type Instant, parseInstant } from '../../../../domain/instant.ts';
import {
  type DuePolicy,
  dueAfter,
  type ExecutionEnd,
  leaseEnd,
  type PolicyLease,
} from '../../../../domain/retention_policies.ts';
import type { Engine } from '../../kit/engine.ts';
import { type Transaction, write } from '../../kit/transaction.ts';
import { bindRemoved, readStored, selectPolicies } from './policy_rows.ts';

/**
 * S15: the lease only saves work. Two executions of a policy at once are as harmless as two calls of ApplyRetention.
 */
export async function claimDuePolicy(engine: Engine, lease: string, leaseMs: number): Promise<DuePolicy | undefined> {
  return write(engine, async (tx) => {
    const now = await tx.readNow();
    const due = tx.db
      .selectFrom('retention_policies')
      .select(['namespace', 'name'])
      .where('due_time', '<=', now)
      .where((eb) => eb.or([eb('lease_end_time', 'is', null), eb('lease_end_time', '<=', now)]))
      .orderBy('due_time')
      .limit(1);
    const row = await engine.locks.freeRows(due, 'write').executeTakeFirst();
    if (row === undefined) return undefined;
    const startTime = parseInstant(now);
    await ofPolicy(tx, row)
      .set({ lease, lease_end_time: bind(leaseEnd(startTime, leaseMs)) })
      .execute();
    const stored = await selectPolicies(tx.in(row.namespace)).where('p.name', '=', row.name).executeTakeFirstOrThrow();
    return { ...row, lease, policy: readStored(stored).policy, startTime };
  });
}

export async function renewPolicyLease(engine: Engine, policy: PolicyLease, leaseMs: number): Promise<boolean> {
  return write(engine, async (tx) => {
    const end = leaseEnd(parseInstant(await tx.readNow()), leaseMs);
    const { numUpdatedRows } = await ofLease(tx, policy)
      .set({ lease_end_time: bind(end) })
      .executeTakeFirst();
    return numUpdatedRows > 0n;
  });
}

export async function endPolicyExecution(
  engine: Engine,
  policy: DuePolicy,
  end: ExecutionEnd | undefined,
): Promise<void> {
  await write(engine, async (tx) => {
    const endTime = parseInstant(await tx.readNow());
    const row = await ofLease(tx, policy)
      .set({ lease: null, lease_end_time: null })
      .returning('interval_ms')
      .executeTakeFirst();
    if (row === undefined || end === undefined) return;
    const due = dueAfter({ ...end, startTime: policy.startTime, endTime }, Number(row.interval_ms));
    await ofPolicy(tx, policy)
      .set({
        due_time: bind(due),
        last_start_time: bind(policy.startTime),
        last_end_time: bind(endTime),
        last_removed: bindRemoved(end.removed),
        last_error_reason: end.error?.reason ?? '',
        last_error_message: end.error?.message ?? '',
      })
      .execute();
  });
}

function ofPolicy({ db }: Transaction, { namespace, name }: Pick<PolicyLease, 'namespace' | 'name'>) {
  return db.updateTable('retention_policies').where('namespace', '=', namespace).where('name', '=', name);
}

/** A lease that was lost is gone for good: its text is never used again. */
function ofLease(tx: Transaction, policy: PolicyLease) {
  return ofPolicy(tx, policy).where('lease', '=', policy.lease);
}

function bind(time: Instant): string {
  return formatInstant(time, 6);
}
