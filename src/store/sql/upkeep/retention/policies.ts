import { type SqlBool, sql } from 'kysely';
import { experimentNotFound, type Reason, retentionPolicyNotFound, runNotFound } from '../../../../domain/errors.ts';
import { formatInstant, type Instant, parseInstant } from '../../../../domain/instant.ts';
import type {
  RemovedSize,
  RetentionPolicy,
  RetentionScope,
  StatePolicy,
  TrajectoryPolicy,
} from '../../../../domain/retention.ts';
import {
  type DuePolicy,
  dueAfter,
  type ExecutionEnd,
  leaseEnd,
  type NewPolicy,
  type PastExecution,
  type PolicyLease,
  type StoredPolicy,
} from '../../../../domain/retention_policies.ts';
import type { Page } from '../../../contract/request.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { type NamespaceTransaction, type ReadScope, type Transaction, write, writeIn } from '../../kit/transaction.ts';
import { readOptionalTime } from '../../kit/values.ts';

/** S15: two callers that set a policy of one name at once leave the policy of one of them. */
export async function setPolicy(
  engine: Engine,
  namespace: string,
  { name, policy, intervalMs }: NewPolicy,
): Promise<StoredPolicy> {
  return writeIn(engine, namespace, async (tx) => {
    const scope = await lockScope(tx, policy);
    const now = await tx.readNow();
    const given = { ...scope, policy: bindPolicy(policy), interval_ms: intervalMs };
    await tx.db
      .insertInto('retention_policies')
      .values({ namespace, name, ...given, create_time: now, update_time: now, due_time: now, ...NEVER_APPLIED })
      .onConflict((conflict) =>
        conflict
          .columns(['namespace', 'name'])
          .doUpdateSet({ ...given, update_time: now, due_time: now, lease: null, lease_end_time: null })
          .where(
            sql<SqlBool>`(retention_policies.policy, retention_policies.interval_ms, retention_policies.run, retention_policies.experiment)
              is distinct from (excluded.policy, excluded.interval_ms, excluded.run, excluded.experiment)`,
          ),
      )
      .execute();
    return readStored(await selectPolicies(tx).where('p.name', '=', name).executeTakeFirstOrThrow());
  });
}

const NEVER_APPLIED = { last_removed: '', last_error_reason: '', last_error_message: '' };

/** Returns the row keys of a scope, which cannot be deleted before the transaction ends. */
async function lockScope(tx: NamespaceTransaction, { runId, experimentId }: RetentionScope) {
  const lock = async (table: 'runs' | 'experiments', id: string) =>
    (await tx.engine.locks.rows(visibleById(tx, table, id).select('key'), 'keep').executeTakeFirst())?.key ?? null;
  const run = runId === undefined ? null : await lock('runs', runId);
  if (runId !== undefined && run === null) throw runNotFound(runId);
  const experiment = experimentId === undefined ? null : await lock('experiments', experimentId);
  if (experimentId !== undefined && experiment === null) throw experimentNotFound(experimentId);
  return { run, experiment };
}

export async function listPolicies(scope: ReadScope, page: Page<string>): Promise<StoredPolicy[]> {
  let query = selectPolicies(scope);
  if (page.after !== undefined) query = query.where('p.name', '>', page.after);
  const rows = await query.orderBy('p.name').limit(page.limit).execute();
  return rows.map(readStored);
}

export async function deletePolicy(engine: Engine, namespace: string, name: string): Promise<void> {
  await writeIn(engine, namespace, async (tx) => {
    const { numDeletedRows } = await tx.db
      .deleteFrom('retention_policies')
      .where('namespace', '=', namespace)
      .where('name', '=', name)
      .executeTakeFirst();
    if (numDeletedRows === 0n) throw retentionPolicyNotFound(name);
  });
}

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

/** A lost lease never matches again, because its text is not reused. */
function ofLease(tx: Transaction, policy: PolicyLease) {
  return ofPolicy(tx, policy).where('lease', '=', policy.lease);
}

function bind(time: Instant): string {
  return formatInstant(time, 6);
}

/** Selects the policies (`p`) of a namespace, with the ids of their scopes. */
function selectPolicies({ db, namespace }: ReadScope) {
  return db
    .selectFrom('retention_policies as p')
    .leftJoin('runs as r', 'r.key', 'p.run')
    .leftJoin('experiments as x', 'x.key', 'p.experiment')
    .selectAll('p')
    .select(['r.id as run_id', 'x.id as experiment_id'])
    .where('p.namespace', '=', namespace);
}

type PolicyRow = Awaited<ReturnType<ReturnType<typeof selectPolicies>['execute']>>[number];

function readStored(row: PolicyRow): StoredPolicy {
  return {
    name: row.name,
    policy: readPolicy(row),
    intervalMs: Number(row.interval_ms),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
    dueTime: parseInstant(row.due_time),
    last: readLast(row),
  };
}

function readLast(row: PolicyRow): PastExecution | undefined {
  const [startTime, endTime] = [readOptionalTime(row.last_start_time), readOptionalTime(row.last_end_time)];
  if (startTime === undefined || endTime === undefined) return undefined;
  const error = { reason: row.last_error_reason as Reason, message: row.last_error_message };
  return { startTime, endTime, removed: readRemoved(row.last_removed), error: error.reason ? error : undefined };
}

/** Equal policies are equal texts. The scope is in columns of its own. */
function bindPolicy(policy: RetentionPolicy): string {
  if ('states' in policy) return JSON.stringify({ states: policy.states }, bigintsAsText);
  const labels = Object.fromEntries([...policy.trajectories.labels].sort(([a], [b]) => (a < b ? -1 : 1)));
  return JSON.stringify({ trajectories: { ...policy.trajectories, labels } }, bigintsAsText);
}

function readPolicy({ policy, run_id: run, experiment_id: experiment }: PolicyRow): RetentionPolicy {
  const { states, trajectories } = JSON.parse(policy) as {
    readonly states?: StatePolicy;
    readonly trajectories?: Omit<TrajectoryPolicy, 'labels'> & { readonly labels: Readonly<Record<string, string>> };
  };
  const scope: RetentionScope = { runId: run ?? undefined, experimentId: experiment ?? undefined };
  if (states !== undefined) {
    const { keepEvery, olderThan } = states;
    return { ...scope, states: { ...states, keepEvery: BigInt(keepEvery), olderThan: BigInt(olderThan) } };
  }
  const { labels, olderThan, ...rest } = trajectories!;
  const read = { labels: new Map(Object.entries(labels)), olderThan: BigInt(olderThan) };
  return { ...scope, trajectories: { ...rest, ...read } };
}

function bindRemoved(removed: RemovedSize): string {
  return JSON.stringify(removed, bigintsAsText);
}

function readRemoved(text: string): RemovedSize {
  const numbers = Object.entries(JSON.parse(text) as Record<string, string>).map(([key, n]) => [key, BigInt(n)]);
  return Object.fromEntries(numbers) as RemovedSize;
}

function bigintsAsText(_key: string, value: unknown): unknown {
  return typeof value === 'bigint' ? `${value}` : value;
}
