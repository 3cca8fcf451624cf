import { type SqlBool, sql } from 'kysely';
import { experimentNotFound, retentionPolicyNotFound, runNotFound } from '../../../../domain/errors.ts';
import type { RetentionScope } from '../../../../domain/retention.ts';
import type { NewPolicy, StoredPolicy } from '../../../../domain/retention_policies.ts';
import type { Page } from '../../../contract/page.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Engine } from '../../kit/engine.ts';
import { type NamespaceTransaction, type ReadScope, writeIn } from '../../kit/transaction.ts';
import { bindPolicy, readStored, selectPolicies } from './policy_rows.ts';

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
