import { type RawBuilder, sql } from 'kysely';
import { AnabranchError, trajectoryNotFound } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Deletion, OnBranches } from '../contract/trajectory.ts';
import type { Engine, Tx } from './engine.ts';
import { bindDigest, isSet, readDigest } from './values.ts';

export async function deleteTrajectory(
  engine: Engine,
  namespace: string,
  id: string,
  onBranches: OnBranches,
): Promise<Deletion> {
  const deletion = await engine.write(
    async (tx) => {
      const place = await tx
        .selectFrom('trajectories')
        .select(['tree', 'key'])
        .where('namespace', '=', namespace)
        .where('id', '=', id)
        .executeTakeFirst();
      if (place === undefined) throw trajectoryNotFound(id);
      await engine.lockTree(tx, place.tree);
      return new Pruning(engine, tx, namespace, place.tree).delete(id, place.key, onBranches);
    },
    { unbounded: true },
  );
  engine.announce(deletion.keys);
  return deletion;
}

/**
 * B4: purges a trajectory that went with a run or an experiment, or at most `limit` steps of it, from its end; one that still has branches stays for the
 * time being. The tree is locked. Returns how many rows went.
 */
export async function purgeHidden(
  engine: Engine,
  tx: Tx,
  { namespace, tree, key }: { readonly namespace: string; readonly tree: bigint; readonly key: bigint },
  limit: number,
): Promise<number> {
  return new Pruning(engine, tx, namespace, tree).purgeHidden(key, BigInt(limit));
}

/** Whether a trajectory (`t`) was deleted with its run or experiment (B4) and waits to be purged. What branches off it was deleted with it. */
export function isDoomed(engine: Engine): RawBuilder<boolean | bigint> {
  return sql`(exists (select 1 from ${engine.table('runs')} as b where b.key = t.run and b.hidden)
    or exists (select 1 from ${engine.table('experiments')} as e where e.key = t.experiment and e.hidden))`;
}

interface Child {
  readonly key: bigint;
  readonly id: string;
  readonly branch_point: bigint | null;
  readonly doomed: boolean | bigint;
}

/** Deletes within one tree, under the tree's lock (B2). */
class Pruning {
  private readonly engine: Engine;
  private readonly tx: Tx;
  private readonly namespace: string;
  private readonly tree: bigint;
  private readonly purged: bigint[] = [];

  constructor(engine: Engine, tx: Tx, namespace: string, tree: bigint) {
    this.engine = engine;
    this.tx = tx;
    this.namespace = namespace;
    this.tree = tree;
  }

  async delete(id: string, key: bigint, onBranches: OnBranches): Promise<Deletion> {
    const row = await this.lockRow(key);
    if (row === undefined || isSet(row.hidden)) throw trajectoryNotFound(id);
    const children = await this.childrenOf(key);
    const living = children.filter(({ doomed }) => !isSet(doomed));
    if (living.length > 0 && onBranches === 'REFUSE') throw hasBranches(id, living);
    if (living.length > 0 && onBranches === 'KEEP_SHARED') {
      await this.hide(key, children);
      return { purged: 0n, keptShared: true, keys: [key] };
    }
    for (const descendant of await this.descendantsOf(key)) await this.purge(descendant);
    await this.purge(key);
    await this.release(row.parent);
    return { purged: BigInt(this.purged.length), keptShared: false, keys: this.purged };
  }

  async purgeHidden(key: bigint, limit: bigint): Promise<number> {
    const row = await this.lockRow(key);
    if (row === undefined || !isSet(row.hidden) || !isSet(row.doomed)) return 0;
    if ((await this.childrenOf(key)).length > 0) return 0;
    const begin = row.branch_point === null ? 0n : row.branch_point + 1n;
    const end = row.next_step_number;
    if (end - begin > limit) {
      await this.deleteSteps(key, end - limit);
      await this.tx
        .updateTable('trajectories')
        .set({ next_step_number: end - limit })
        .where('tree', '=', this.tree)
        .where('key', '=', key)
        .execute();
      return Number(limit);
    }
    await this.purge(key);
    await this.release(row.parent);
    return Number(end - begin) + 1;
  }

  /**
   * After a child is gone: a hidden parent is trimmed again, or purged with its last child, and so on up. One that waits for the purge has its own turn
   * there, since it may be large.
   */
  private async release(parent: bigint | null): Promise<void> {
    for (let key = parent; key !== null; ) {
      // Locked before its children are counted, so that no branch is made in between.
      const row = await this.lockRow(key);
      if (row === undefined || !isSet(row.hidden) || isSet(row.doomed)) return;
      const children = await this.childrenOf(key);
      if (children.length > 0) {
        await this.trim(key, children);
        return;
      }
      await this.purge(key);
      key = row.parent;
    }
  }

  private async hide(key: bigint, children: readonly Child[]): Promise<void> {
    await this.tx.deleteFrom('tags').where('tree', '=', this.tree).where('trajectory', '=', key).execute();
    await this.tx
      .updateTable('trajectories')
      .set({ hidden: 1, update_time: this.engine.now })
      .where('tree', '=', this.tree)
      .where('key', '=', key)
      .execute();
    await this.trim(key, children);
  }

  /** Keeps own steps up to the highest branch point. */
  private async trim(key: bigint, children: readonly Child[]): Promise<void> {
    const points = children.flatMap(({ branch_point }) => (branch_point === null ? [] : [branch_point]));
    const end = points.reduce((highest, point) => (point > highest ? point : highest), -1n) + 1n;
    await this.deleteSteps(key, end);
    const last = await this.tx
      .selectFrom('steps')
      .select(['reward_sum', 'byte_sum'])
      .where('tree', '=', this.tree)
      .where('trajectory', '=', key)
      .where('step_number', '=', end - 1n)
      .executeTakeFirst();
    await this.tx
      .updateTable('trajectories')
      .set({ next_step_number: end, ...last })
      .where('tree', '=', this.tree)
      .where('key', '=', key)
      .execute();
  }

  private async purge(key: bigint): Promise<void> {
    await this.deleteSteps(key, 0n);
    await this.tx.deleteFrom('tags').where('tree', '=', this.tree).where('trajectory', '=', key).execute();
    await this.tx
      .deleteFrom('status_changes')
      .where('tree', '=', this.tree)
      .where('entity_kind', '=', 'TRAJECTORY')
      .where('entity', '=', key)
      .execute();
    await this.tx.deleteFrom('trajectories').where('tree', '=', this.tree).where('key', '=', key).execute();
    this.purged.push(key);
  }

  private async deleteSteps(key: bigint, from: bigint): Promise<void> {
    for (const table of ['step_states', 'content_states'] as const) {
      await this.unreference(table, key, from);
      await this.tx
        .deleteFrom(table)
        .where('tree', '=', this.tree)
        .where('trajectory', '=', key)
        .where('step_number', '>=', from)
        .execute();
    }
    await this.tx
      .deleteFrom('steps')
      .where('tree', '=', this.tree)
      .where('trajectory', '=', key)
      .where('step_number', '>=', from)
      .execute();
  }

  /** States of deleted steps may have no step left: the collector looks for another (see `StatesTable`). */
  private async unreference(table: 'step_states' | 'content_states', key: bigint, from: bigint): Promise<void> {
    const rows = await this.tx
      .selectFrom(table)
      .select('digest')
      .distinct()
      .where('tree', '=', this.tree)
      .where('trajectory', '=', key)
      .where('step_number', '>=', from)
      .execute();
    const digests = rows.map(({ digest }) => readDigest(digest)).sort();
    for (let i = 0; i < digests.length; i += CHUNK) {
      const chunk = digests.slice(i, i + CHUNK).map(bindDigest);
      // Locked in order, as appends lock them.
      const locked = this.tx
        .selectFrom('states')
        .select('digest')
        .where('namespace', '=', this.namespace)
        .where('digest', 'in', chunk);
      await this.engine.lock(locked.orderBy('digest'), 'write').execute();
      await this.tx
        .updateTable('states')
        .set((eb) => ({ referenced: 0, version: eb('version', '+', 1n) }))
        .where('namespace', '=', this.namespace)
        .where('digest', 'in', chunk)
        .execute();
    }
  }

  private async lockRow(key: bigint) {
    const query = this.tx
      .selectFrom('trajectories as t')
      .select(['t.hidden', 't.parent', 't.branch_point', 't.next_step_number', isDoomed(this.engine).as('doomed')])
      .where('t.tree', '=', this.tree)
      .where('t.key', '=', key)
      .where('t.namespace', '=', this.namespace);
    return this.engine.lock(query, 'delete').executeTakeFirst();
  }

  private async childrenOf(key: bigint): Promise<Child[]> {
    return this.tx
      .selectFrom('trajectories as t')
      .select(['t.key', 't.id', 't.branch_point', isDoomed(this.engine).as('doomed')])
      .where('t.tree', '=', this.tree)
      .where('t.parent', '=', key)
      .orderBy('t.key')
      .execute();
  }

  /** All below a trajectory, locked, branches before their parents. */
  private async descendantsOf(key: bigint): Promise<bigint[]> {
    const found: bigint[] = [];
    for (let level = [key]; level.length > 0; ) {
      const next: bigint[] = [];
      for (const parent of level) {
        for (const child of await this.childrenOf(parent)) {
          // Under its lock nothing can branch from it any more, so its children can be counted.
          await this.lockRow(child.key);
          next.push(child.key);
        }
      }
      found.push(...next);
      level = next;
    }
    return found.reverse();
  }
}

const CHUNK = 500;

function hasBranches(id: string, children: readonly Child[]): AnabranchError {
  const named = children.slice(0, LIMITS.namedBranches).map((child) => child.id);
  const more = children.length > named.length ? ` and ${children.length - named.length} more` : '';
  return new AnabranchError(
    'HAS_BRANCHES',
    `Trajectory ${id} has branches (${named.join(', ')}${more}): delete them first, or say on_branches CASCADE (delete them too) or KEEP_SHARED (let them live).`,
    { metadata: { branch_ids: named.join(',') } },
  );
}
