import type { OnSuccess } from '../../../../domain/rollout.ts';
import type { GroupUpsert } from '../../../contract/group.ts';
import { chunksOf } from '../../kit/statement_shapes.ts';
import type { NamespaceTransaction, Transaction } from '../../kit/transaction.ts';
import { bindLabels, bindMetrics } from '../../kit/values.ts';
import type { StageKeys } from '../stage/keys.ts';

/** Columns of a group that the creation of rollouts needs. */
export interface GroupRef {
  readonly key: bigint;
  readonly id: string;
  readonly onSuccess: OnSuccess;
  /** Whether this call created the group. */
  readonly created: boolean;
}

/**
 * Creates the missing groups of a stage and returns all by number. If several callers create a group at once, one
 * succeeds; the others wait for its row and find it. The caller protects the run from deletion.
 */
export async function getOrCreateGroups(
  tx: NamespaceTransaction,
  stage: StageKeys,
  groups: readonly Omit<GroupUpsert, 'stageId'>[],
): Promise<Map<bigint, GroupRef>> {
  const there = await findGroups(
    tx,
    stage.key,
    groups.map(({ number }) => number),
  );
  const missing = groups.filter(({ number }) => !there.has(number)).sort((a, b) => (a.number < b.number ? -1 : 1));
  if (missing.length === 0) return there;
  const mark = await tx.readMark();
  const keys = await tx.engine.keys.nextMany(tx.db, 'groups', missing.length);
  const rows = missing.map((group, i) => ({
    key: keys[i]!,
    namespace: tx.namespace,
    id: group.id,
    run: stage.run,
    stage: stage.key,
    number: group.number,
    batch: group.batch ?? null,
    on_success: group.onSuccess ?? 'CONTINUE',
    labels: bindLabels(group.labels ?? new Map()),
    metrics: bindMetrics(group.metrics ?? new Map()),
    metadata_json: group.metadataJson ?? '',
    rollouts: 0n,
    terminal_rollouts: 0n,
    tried_rollouts: 0n,
    terminal_turns: 0n,
    timed_turns: 0n,
    turn_seconds: 0,
    create_time: tx.now,
    update_time: tx.now,
    revision: 1n,
    mark,
  }));
  const made = new Set<bigint>();
  for (const values of chunksOf(rows)) {
    const inserted = await tx.db
      .insertInto('groups')
      .values(values)
      .onConflict((conflict) => conflict.columns(['stage', 'number']).doNothing())
      .returning('number')
      .execute();
    for (const { number } of inserted) made.add(number);
  }
  const found = await findGroups(
    tx,
    stage.key,
    missing.map(({ number }) => number),
  );
  for (const [number, group] of found) there.set(number, { ...group, created: made.has(number) });
  return there;
}

async function findGroups(tx: Transaction, stage: bigint, numbers: readonly bigint[]): Promise<Map<bigint, GroupRef>> {
  const found = new Map<bigint, GroupRef>();
  for (const some of chunksOf(numbers)) {
    const rows = await tx.db
      .selectFrom('groups')
      .select(['key', 'id', 'number', 'on_success'])
      .where('stage', '=', stage)
      .where('number', 'in', some)
      .execute();
    for (const { key, id, number, on_success } of rows) {
      found.set(number, { key, id, onSuccess: on_success as OnSuccess, created: false });
    }
  }
  return found;
}
