import { sql } from 'kysely';
import { runHint } from '../../../../domain/change.ts';
import type { Group, OnSuccess } from '../../../../domain/rollout.ts';
import type { GroupUpsert } from '../../../contract/group.ts';
import type { Page, View } from '../../../contract/request.ts';
import type { Engine } from '../../kit/engine.ts';
import { mergeMetrics } from '../../kit/given_fields.ts';
import { chunksOf } from '../../kit/kept_queries.ts';
import {
  type NamespaceTransaction,
  type ReadScope,
  scopeOf,
  type Transaction,
  writeIn,
} from '../../kit/transaction.ts';
import { bindLabels, bindMetrics, changedColumns, differs } from '../../kit/values.ts';
import { findStageKeys, keepStage, type StageKeys } from '../stage/rows.ts';
import { writeWatched } from '../watched_row.ts';
import { findGroup, readGroups, selectGroups } from './rows.ts';

/**
 * Of concurrent callers, one creates the group; the others wait for its row and update it. A caller that changes
 * nothing takes no lock.
 */
export async function upsertGroup(
  engine: Engine,
  namespace: string,
  upsert: GroupUpsert,
): Promise<{ readonly group: Group; readonly created: boolean }> {
  const { stageId, number } = upsert;
  if (Object.keys(columnsOf('{}', upsert)).length === 0) {
    const there = await findGroup(scopeOf(engine, namespace), { stageId, number });
    if (there !== undefined) return { group: there, created: false };
  }
  const { group, created, changed } = await writeIn(engine, namespace, async (tx) => {
    const stage = await keepStage(tx, stageId);
    await tx.readNow();
    const ref = (await getOrCreateGroups(tx, stage, [upsert])).get(number);
    if (ref === undefined) throw new Error('the group that this transaction found or created is missing');
    const isChanged = ref.created || (await updateGroup(tx, ref.key, upsert));
    const after = await findGroup(tx, ref);
    if (after === undefined) throw new Error('a group of a run locked in this transaction is missing');
    return { group: after, created: ref.created, changed: isChanged };
  });
  if (changed) engine.changes.announce([runHint(group.run.key)]);
  return { group, created };
}

/** Returns whether the row changed. */
async function updateGroup(tx: NamespaceTransaction, key: bigint, upsert: GroupUpsert): Promise<boolean> {
  const query = tx.db.selectFrom('groups').selectAll().where('key', '=', key);
  const row = await tx.engine.locks.rows(query, 'write').executeTakeFirstOrThrow();
  const columns = columnsOf(row.metrics, upsert);
  if (!differs(row, columns)) return false;
  await tx.readNow();
  await writeWatched(tx, 'groups', key, columns);
  return true;
}

/** Returns the columns that the given fields are stored in. */
function columnsOf(stored: string, { batch, onSuccess, labels, metrics, metadataJson }: GroupUpsert) {
  return changedColumns({
    batch,
    on_success: onSuccess,
    labels: labels && bindLabels(labels),
    metrics: metrics?.size ? bindMetrics(mergeMetrics(stored, metrics)) : undefined,
    metadata_json: metadataJson,
  });
}

export async function listGroups(scope: ReadScope, stageId: string, page: Page<bigint>, view: View): Promise<Group[]> {
  const stage = await findStageKeys(scope, stageId);
  const { after = -1n, limit } = page;
  const query = scope.engine.kept.page(
    `groups ${view}`,
    limit,
    [stage.key, scope.namespace, after],
    (most, inStage, of, behind) =>
      selectGroups(scope.db, view)
        .where('g.stage', '=', inStage)
        .where('g.namespace', '=', of)
        .where('g.number', '>', behind)
        .orderBy('g.number')
        .limit(most),
  );
  const byIndex = scope.engine.byIndex();
  return readGroups(byIndex, byIndex.db, query);
}

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

/** Counters of a group's rollouts (M2), so that progress need not read terminal rollouts. */
export interface GroupCount extends TimedTurns {
  readonly rollouts: bigint;
  readonly terminalRollouts: bigint;
  /** Terminal rollouts that had an attempt. */
  readonly triedRollouts: bigint;
  readonly terminalTurns: bigint;
}

/** Number of turns with a known duration, and the sum of their durations. */
export interface TimedTurns {
  readonly timedTurns: bigint;
  readonly turnSeconds: number;
}

/**
 * Adds to the counters of groups, by row key; negative numbers subtract. Groups are locked in order of key. A
 * transaction locks no rollouts of others afterwards, so that it does not deadlock. The caller announces the run.
 */
export async function countInGroups(tx: Transaction, counts: ReadonlyMap<bigint, Partial<GroupCount>>): Promise<void> {
  const { engine } = tx;
  if (counts.size === 0) return;
  const mark = await tx.readMark();
  const keys = [...counts.keys()].sort((a, b) => (a < b ? -1 : 1));
  for (const chunk of chunksOf(keys)) {
    if (chunk.length > 1) await lockGroups(tx, chunk);
    const rows = chunk.map((key) => countedRow(key, counts.get(key) ?? {}));
    // Postgres needs the casts, because a CTE of values has no types.
    await sql`with c (key, rollouts, terminal_rollouts, tried_rollouts, terminal_turns, timed_turns, turn_seconds) as (values ${sql.join(rows)})
      update ${engine.sql.table('groups')} as g set rollouts = g.rollouts + c.rollouts, terminal_rollouts = g.terminal_rollouts + c.terminal_rollouts,
        tried_rollouts = g.tried_rollouts + c.tried_rollouts,
        terminal_turns = g.terminal_turns + c.terminal_turns, timed_turns = g.timed_turns + c.timed_turns,
        turn_seconds = g.turn_seconds + c.turn_seconds, revision = g.revision + 1, mark = ${mark}, update_time = ${tx.now}
      from c where g.key = c.key`.execute(tx.db);
  }
}

/** Locks groups for writing, in order of key. */
export async function lockGroups({ engine, db }: Transaction, keys: readonly bigint[]): Promise<void> {
  if (keys.length === 0) return;
  const rows = db
    .selectFrom('groups')
    .select('key')
    .where(engine.sql.among(sql.ref('key'), keys))
    .orderBy('key');
  await engine.locks.rows(rows, 'write').execute();
}

function countedRow(key: bigint, count: Partial<GroupCount>) {
  const { rollouts = 0n, terminalRollouts = 0n, triedRollouts = 0n, terminalTurns = 0n } = count;
  const { timedTurns = 0n, turnSeconds = 0 } = count;
  const whole = [key, rollouts, terminalRollouts, triedRollouts, terminalTurns, timedTurns].map(
    (value) => sql`cast(${value} as bigint)`,
  );
  return sql`(${sql.join(whole)}, cast(${turnSeconds} as double precision))`;
}
