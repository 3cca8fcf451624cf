import { sql, type Updateable } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Engine } from '../../kit/engine.ts';
import type { Tables } from '../../kit/tables.ts';
import { lockTrees, type Transaction, write } from '../../kit/transaction.ts';
import { bindReal, isSet } from '../../kit/values.ts';
import { segmentUntil } from '../../log/append/segment_builder.ts';
import { segmentsOver } from '../../log/read/read_stored.ts';
import { placeKey, sumsAt } from '../../log/read/sums_at.ts';
import { deleteAllSegments, deleteSegments, updateSegment } from '../../log/segments.ts';
import { Unreferencing } from '../../log/states/references.ts';
import {
  findPurging,
  findTrimming,
  fitting,
  isAnyMarked,
  lockTrajectory,
  markBranches,
  markPurging,
} from './purge_marks.ts';

/** Tables that may have several rows for a step. */
const ROWS_OF_STEPS = ['state_refs', 'step_scores'] as const;

/**
 * Removes rows of marked trajectories (see `TRAJECTORIES`): branches before their parents, and steps from the end
 * with their references. One transaction removes at most `limit` steps and about as many references. It checks again
 * under its locks, so that several instances can purge at once. Returns about how many rows were removed; 0 if nothing
 * is marked.
 */
export async function purgeTrajectories(engine: Engine, limit: number): Promise<number> {
  const found = fitting(await findPurging(engine, engine.db), limit);
  if (found.length === 0) return trimAny(engine, limit);
  const trees = [...Map.groupBy(found, ({ tree }) => tree)].sort(([a], [b]) => (a < b ? -1 : 1));
  return write(engine, async (tx) => {
    await lockTrees(
      tx,
      trees.map(([tree]) => tree),
    );
    const states = new Unreferencing(tx);
    let rows = 0;
    for (const [tree, members] of trees) {
      rows += await new TreePurge(tx, tree, states).purge(members, limit);
    }
    await states.write();
    return Math.max(rows, 1);
  });
}

async function trimAny(engine: Engine, limit: number): Promise<number> {
  const found = await findTrimming(engine, engine.db);
  if (found === undefined) return 0;
  return write(engine, async (tx) => {
    await lockTrees(tx, [found.tree]);
    const states = new Unreferencing(tx);
    const rows = await new TreePurge(tx, found.tree, states).trim(found, limit);
    await states.write();
    return Math.max(rows, 1);
  });
}

/** Purges one tree in one transaction. Returns whether one of the trajectories is still marked. */
export async function purgeTree(
  engine: Engine,
  tree: bigint,
  keys: readonly bigint[],
  limit: number,
): Promise<boolean> {
  return write(engine, async (tx) => {
    await lockTrees(tx, [tree]);
    const states = new Unreferencing(tx);
    const purge = new TreePurge(tx, tree, states);
    const found = fitting(await findPurging(engine, tx.db, tree), limit);
    const trimmed = found.length > 0 ? undefined : await findTrimming(engine, tx.db, tree);
    if (found.length > 0) await purge.purge(found, limit);
    if (trimmed !== undefined) await purge.trim(trimmed, limit);
    const left = await isAnyMarked(tx, tree, keys);
    await states.write();
    return left;
  });
}

interface PurgedRow {
  readonly key: bigint;
  readonly parent: bigint | null;
  /** Own steps: [begin, end). */
  readonly begin: bigint;
  readonly end: bigint;
}

/**
 * Removes rows of marked trajectories of one tree, under the tree's lock. References to states are removed first; the
 * states are updated at the end.
 */
class TreePurge {
  readonly #tx: Transaction;
  readonly #tree: bigint;
  readonly #states: Unreferencing;

  constructor(tx: Transaction, tree: bigint, states: Unreferencing) {
    this.#tx = tx;
    this.#tree = tree;
    this.#states = states;
  }

  /**
   * Purges trajectories, or only the last steps of the highest one if they have too many rows. Returns the number of
   * removed rows.
   */
  async purge(wanted: readonly TrajectoryRef[], limit: number): Promise<number> {
    const rows = await this.#lock(wanted.map(({ key }) => key));
    const keys = rows.map(({ key }) => key);
    const highest = rows.at(-1);
    if (highest === undefined) return 0;
    const unmarked = await this.#markMissed(keys);
    if (unmarked > 0) return unmarked;
    const branch = await this.#otherBranch(keys);
    if (branch.length > 0) return this.purge(branch, limit);
    const tags = await this.#deleteTags(keys, limit);
    if (tags >= limit) return tags;
    if (rows.length > 1 && (await this.#haveMoreReferences(keys, limit)))
      return tags + (await this.#purgeEnd(highest, limit));
    return tags + (rows.length === 1 ? await this.#purgeEnd(highest, limit) : await this.#purgeWhole(rows));
  }

  async #purgeWhole(rows: readonly PurgedRow[]): Promise<number> {
    const keys = rows.map(({ key }) => key);
    await this.#deleteSteps(keys, 0n);
    await this.#deleteRows(keys);
    await this.#release(new Set(rows.flatMap(({ parent }) => (parent === null ? [] : [parent]))));
    return rows.reduce((sum, { begin, end }) => sum + Number(end - begin) + 1, 0);
  }

  async #purgeEnd(row: PurgedRow, limit: number): Promise<number> {
    const from = await this.#lastSteps(row.key, row.begin, row.end, limit);
    if (from <= row.begin) return this.#purgeWhole([row]);
    await this.#deleteSteps([row.key], from);
    await this.#setEnd(row.key, { next_step_number: from });
    return Number(row.end - from);
  }

  /** Removes the last steps that no branch needs, at most `limit` of them. Returns the number of removed rows. */
  async trim({ key }: TrajectoryRef, limit: number): Promise<number> {
    const row = await lockTrajectory(this.#tx, { tree: this.#tree, key }, 'delete', 1);
    if (row === undefined || !isSet(row.trimming)) return 0;
    const needed = await this.#lastBranchPoint(key);
    if (needed === undefined) {
      await markPurging(this.#tx, this.#tree, [key]);
      return 0;
    }
    const tags = await this.#deleteTags([key], limit);
    if (tags >= limit) return tags;
    const { next_step_number: before } = row;
    const end = await this.#lastSteps(key, needed + 1n, before, limit);
    if (end < before) await this.#deleteSteps([key], end);
    const sums = await this.#sumsBefore(key, end);
    await this.#setEnd(key, {
      next_step_number: end,
      trimming: end > needed + 1n ? 1 : 0,
      branch_reward_sum: null,
      ...sums,
    });
    return tags + Number(before - end);
  }

  async #lock(keys: readonly bigint[]): Promise<PurgedRow[]> {
    const query = this.#tx.db
      .selectFrom('trajectories')
      .select(['key', 'parent', 'branch_point', 'next_step_number'])
      .where('tree', '=', this.#tree)
      .where(this.#tx.engine.sql.among(sql.ref('key'), keys))
      .where('purging', '=', 1)
      .orderBy('key');
    const rows = await this.#tx.engine.locks.rows(query, 'delete').execute();
    return rows.map(({ key, parent, branch_point, next_step_number: end }) => {
      return { key, parent, begin: branch_point === null ? 0n : branch_point + 1n, end };
    });
  }

  /** Marks branches that an interrupted deletion left unmarked. */
  async #markMissed(keys: readonly bigint[]): Promise<number> {
    return (await markBranches(this.#tx, this.#tree, keys)).marked.length;
  }

  /**
   * Returns a branch of these trajectories that is not among them, which must be purged first. A branch that a claim
   * created may have a lower key than its parent.
   */
  async #otherBranch(keys: readonly bigint[]): Promise<TrajectoryRef[]> {
    return this.#tx.db
      .selectFrom('trajectories')
      .select(['tree', 'key'])
      .where('tree', '=', this.#tree)
      .where(this.#tx.engine.sql.among(sql.ref('parent'), keys))
      .where(({ not }) => not(this.#tx.engine.sql.among(sql.ref('key'), keys)))
      .limit(1)
      .execute();
  }

  async #haveMoreReferences(keys: readonly bigint[], limit: number): Promise<boolean> {
    for (const table of ROWS_OF_STEPS) {
      const beyond = await this.#tx.db
        .selectFrom(table)
        .select('step_number')
        .where('tree', '=', this.#tree)
        .where(this.#tx.engine.sql.among(sql.ref('trajectory'), keys))
        .limit(1)
        .offset(limit)
        .executeTakeFirst();
      if (beyond !== undefined) return true;
    }
    return false;
  }

  /**
   * Returns the start of the last steps before `end` that have about `limit` rows. The range has at least one step, and
   * none before `begin`.
   */
  async #lastSteps(key: bigint, begin: bigint, end: bigint, limit: number): Promise<bigint> {
    let first = end - BigInt(limit) > begin ? end - BigInt(limit) : begin;
    for (const table of ROWS_OF_STEPS) {
      const beyond = await this.#tx.db
        .selectFrom(table)
        .select('step_number')
        .where('tree', '=', this.#tree)
        .where('trajectory', '=', key)
        .where('step_number', '>=', first)
        .orderBy('step_number', 'desc')
        .limit(1)
        .offset(limit)
        .executeTakeFirst();
      if (beyond !== undefined) first = beyond.step_number + 1n < end ? beyond.step_number + 1n : end - 1n;
    }
    return first;
  }

  async #deleteSteps(keys: readonly bigint[], from: bigint): Promise<void> {
    this.#states.add(await this.#deleteOf('state_refs', keys, from).returning(['namespace', 'state']).execute());
    for (const table of ['attached_states', 'step_scores'] as const) await this.#deleteOf(table, keys, from).execute();
    if (from === 0n) return deleteAllSegments(this.#tx, this.#tree, keys);
    for (const key of keys) {
      await deleteSegments(this.#tx, { tree: this.#tree, key }, { from });
      await this.#cutSegment(key, from);
    }
  }

  #deleteOf<T extends 'state_refs' | 'attached_states' | 'step_scores'>(
    table: T,
    keys: readonly bigint[],
    from: bigint,
  ) {
    return this.#tx.db
      .deleteFrom<'state_refs' | 'attached_states' | 'step_scores'>(table)
      .where('tree', '=', this.#tree)
      .where(this.#tx.engine.sql.among(sql.ref('trajectory'), keys))
      .where('step_number', '>=', from);
  }

  async #deleteTags(keys: readonly bigint[], limit: number): Promise<number> {
    const ofKeys = sql`tree = ${this.#tree} and ${this.#tx.engine.sql.among(sql.ref('trajectory'), keys)}`;
    const tags = this.#tx.engine.sql.table('tags');
    const { numAffectedRows = 0n } = await sql`delete from ${tags} where ${ofKeys}
      and (trajectory, name) in (select trajectory, name from ${tags} where ${ofKeys} limit ${limit})`.execute(
      this.#tx.db,
    );
    return Number(numAffectedRows);
  }

  async #deleteRows(keys: readonly bigint[]): Promise<void> {
    await this.#tx.db
      .deleteFrom('status_changes')
      .where('tree', '=', this.#tree)
      .where('entity_kind', '=', 'TRAJECTORY')
      .where(this.#tx.engine.sql.among(sql.ref('entity'), keys))
      .execute();
    await this.#keepIds(keys);
    await this.#tx.db
      .deleteFrom('trajectories')
      .where('tree', '=', this.#tree)
      .where(this.#tx.engine.sql.among(sql.ref('key'), keys))
      .execute();
  }

  /** W1: a trajectory that was created when it was opened is not created again in that way. */
  async #keepIds(keys: readonly bigint[]): Promise<void> {
    const { engine, db } = this.#tx;
    await sql`insert into ${engine.sql.table('deleted_trajectories')} (namespace, id, delete_time)
      select namespace, id, ${engine.sql.now} from ${engine.sql.table('trajectories')}
      where tree = ${this.#tree} and ${engine.sql.among(sql.ref('key'), keys)} and created_by_open
      on conflict do nothing`.execute(db);
  }

  /** B2: hidden parents whose branches were removed are trimmed again, or purged if no branch remains. */
  async #release(parents: ReadonlySet<bigint>): Promise<void> {
    if (parents.size === 0) return;
    const query = this.#tx.db
      .selectFrom('trajectories')
      .select('key')
      .where('tree', '=', this.#tree)
      .where(this.#tx.engine.sql.among(sql.ref('key'), [...parents]))
      .where('hidden', '=', 1)
      .where('purging', '=', 0)
      .orderBy('key');
    // Locked before branches are counted, so that no branch is created in between.
    const hidden = (await this.#tx.engine.locks.rows(query, 'delete').execute()).map(({ key }) => key);
    if (hidden.length === 0) return;
    const needed = await this.#tx.db
      .selectFrom('trajectories as t')
      .select('t.key')
      .where('t.tree', '=', this.#tree)
      .where(this.#tx.engine.sql.among(sql.ref('t.key'), hidden))
      .where(({ exists, selectFrom }) =>
        exists(
          selectFrom('trajectories as c')
            .select('c.key')
            .whereRef('c.tree', '=', 't.tree')
            .whereRef('c.parent', '=', 't.key'),
        ),
      )
      .execute();
    const kept = new Set(needed.map(({ key }) => key));
    await markPurging(
      this.#tx,
      this.#tree,
      hidden.filter((key) => !kept.has(key)),
    );
    for (const key of kept) await this.#setEnd(key, { trimming: 1 });
  }

  /**
   * Returns undefined if there are no branches. Branches that are being purged count, because their own branches may be
   * unmarked.
   */
  async #lastBranchPoint(key: bigint): Promise<bigint | undefined> {
    const row = await this.#tx.db
      .selectFrom('trajectories')
      .select('branch_point')
      .where('tree', '=', this.#tree)
      .where('parent', '=', key)
      .orderBy('branch_point', 'desc')
      .limit(1)
      .executeTakeFirst();
    return row?.branch_point ?? undefined;
  }

  /**
   * Rewrites the segment that has the steps before and after `end` without those after it. A damaged one stays
   * until all its steps are removed, so that damage prevents no deletion.
   */
  async #cutSegment(key: bigint, end: bigint): Promise<void> {
    const ref = { tree: this.#tree, key };
    const [segment] = await segmentsOver(this.#tx, ref, end, end + 1n)
      .select(['s.rewards', 's.ends', 's.state_names', 's.labels', 's.states', 's.states_bytes'])
      .execute();
    const cut = segment && segmentUntil(segment, end);
    if (segment === undefined || cut === undefined) return;
    await updateSegment(this.#tx, ref, segment, cut);
  }

  async #sumsBefore(key: bigint, end: bigint) {
    const place = { tree: this.#tree, owner: key, stepNumber: end - 1n };
    const sums = (await sumsAt(this.#tx, [place])).get(placeKey(place));
    return sums === undefined ? {} : { reward_sum: bindReal(sums.rewardSum), byte_sum: sums.byteSum };
  }

  async #setEnd(key: bigint, changes: Updateable<Tables['trajectories']>): Promise<void> {
    await this.#tx.db
      .updateTable('trajectories')
      .set(changes)
      .where('tree', '=', this.#tree)
      .where('key', '=', key)
      .execute();
  }
}
