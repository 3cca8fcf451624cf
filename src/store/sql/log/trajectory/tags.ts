import { sql } from 'kysely';
import { trajectoryHint } from '../../../../domain/change.ts';
import { AnabranchError, stepNotFound, tagNotFound, trajectoryNotFound } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import type { Page } from '../../../contract/request.ts';
import type { Tag } from '../../../contract/trajectory.ts';
import { visibleById } from '../../kit/by_id.ts';
import type { Db, Engine } from '../../kit/engine.ts';
import { type NamespaceTransaction, type ReadScope, writeIn } from '../../kit/transaction.ts';
import { ownerIn } from './lineage.ts';

interface NewTag {
  readonly name: string;
  readonly stepNumber: bigint;
  /** Step that the tag must point to now; -1: none. Undefined: not checked. */
  readonly expected: bigint | undefined;
}

export async function setTag(
  engine: Engine,
  namespace: string,
  trajectoryId: string,
  { name, stepNumber, expected }: NewTag,
): Promise<Tag> {
  const { key, set } = await writeIn(engine, namespace, async (tx) => {
    await lockOwner(tx, trajectoryId, stepNumber);
    const row = await engine.locks.rows(visible(tx, trajectoryId), 'write').executeTakeFirst();
    if (row === undefined) throw trajectoryNotFound(trajectoryId);
    if (stepNumber >= row.next_step_number) throw stepNotFound(trajectoryId, stepNumber, row.next_step_number);
    const there = await tagOf(tx.db, row, name);
    const at = there?.step_number ?? -1n;
    if (expected !== undefined && expected !== at) throw tagMoved(trajectoryId, name, at, expected);
    const tag = { step_number: stepNumber, update_time: engine.sql.now };
    if (there === undefined)
      await tx.db
        .insertInto('tags')
        .values({ tree: row.tree, trajectory: row.key, name, namespace, ...tag })
        .execute();
    else
      await tx.db
        .updateTable('tags')
        .set(tag)
        .where('tree', '=', row.tree)
        .where('trajectory', '=', row.key)
        .where('name', '=', name)
        .execute();
    return { key: row.key, set: readTag(trajectoryId, await tagOf(tx.db, row, name), name) };
  });
  engine.changes.announce([trajectoryHint(key)]);
  return set;
}

/**
 * S14: pruning locks the owner of a step, and must see the tag or come first. Owners are locked before their branches.
 */
async function lockOwner(tx: NamespaceTransaction, trajectoryId: string, stepNumber: bigint): Promise<void> {
  const row = await visible(tx, trajectoryId).select('branch_point').executeTakeFirst();
  if (row === undefined || row.branch_point === null || stepNumber > row.branch_point) return;
  const owner = await ownerIn(tx, row, stepNumber);
  if (owner === undefined) return;
  const locked = tx.db.selectFrom('trajectories').select('key').where('tree', '=', row.tree).where('key', '=', owner);
  await tx.engine.locks.rows(locked, 'keep').execute();
}

export async function getTag({ engine, db, namespace }: ReadScope, trajectoryId: string, name: string): Promise<Tag> {
  const query = engine.kept.byKey('tag by name', [name, namespace, trajectoryId], (own, of, id) =>
    db
      .selectFrom('trajectories as t')
      .leftJoin('tags as g', (join) =>
        join.onRef('g.tree', '=', 't.tree').onRef('g.trajectory', '=', 't.key').on('g.name', '=', own),
      )
      .select(['g.name', 'g.step_number', 'g.update_time'])
      .where('t.namespace', '=', of)
      .where('t.id', '=', id)
      .where('t.hidden', '=', 0),
  );
  const [row] = (await db.executeQuery(query)).rows;
  if (row === undefined) throw trajectoryNotFound(trajectoryId);
  return readTag(trajectoryId, tagIn(row), name);
}

export async function listTags(
  { db, namespace }: ReadScope,
  trajectoryId: string,
  page: Page<string>,
  name?: string,
): Promise<Tag[]> {
  // One statement, so that a deleted trajectory is not mistaken for one without tags.
  const rows = await db
    .selectFrom('trajectories as t')
    .leftJoin('tags as g', (join) => {
      let own = join.onRef('g.tree', '=', 't.tree').onRef('g.trajectory', '=', 't.key');
      if (name !== undefined) own = own.on('g.name', '=', name);
      return page.after === undefined ? own : own.on('g.name', '>', page.after);
    })
    .select(['g.name', 'g.step_number', 'g.update_time'])
    .where('t.namespace', '=', namespace)
    .where('t.id', '=', trajectoryId)
    .where('t.hidden', '=', 0)
    .orderBy('g.name')
    .limit(page.limit)
    .execute();
  if (rows.length === 0) throw trajectoryNotFound(trajectoryId);
  return rows.flatMap((row) => {
    const tag = tagIn(row);
    return tag === undefined ? [] : [readTag(trajectoryId, tag, tag.name)];
  });
}

/** Tags that a row of a tree shows. */
const SHOWN_TAGS = 16;

/** Finds the name of the last shown tag first, so that a trajectory with many tags costs no more than one with few. */
export async function readTreeTags(
  { engine, db, namespace }: ReadScope,
  tree: bigint,
  keys: readonly bigint[],
): Promise<ReadonlyMap<bigint, readonly Tag[]>> {
  const found = new Map<bigint, Tag[]>();
  if (keys.length === 0) return found;
  const [trajectories, tags] = [engine.sql.table('trajectories'), engine.sql.table('tags')];
  const { rows } = await sql<TagRow & { readonly key: bigint; readonly id: string }>`
    with w as materialized (
      select t.key, t.id, coalesce(
        (select g.name from ${tags} as g where g.tree = ${tree} and g.trajectory = t.key
          order by g.name limit 1 offset ${sql.lit(SHOWN_TAGS - 1)}),
        (select max(g.name) from ${tags} as g where g.tree = ${tree} and g.trajectory = t.key)) as last
      from ${trajectories} as t
      where t.tree = ${tree} and ${engine.sql.among(sql.ref('t.key'), keys)} and t.namespace = ${namespace} and not t.hidden)
    select w.key, w.id, g.name, g.step_number, g.update_time
    from w cross join ${tags} as g
    where g.tree = ${tree} and g.trajectory = w.key and g.name <= w.last
    order by w.key, g.name`.execute(db);
  for (const row of rows) {
    const tag = readTag(row.id, row, row.name);
    const shown = found.get(row.key);
    if (shown === undefined) found.set(row.key, [tag]);
    else shown.push(tag);
  }
  return found;
}

export async function deleteTag(engine: Engine, namespace: string, trajectoryId: string, name: string): Promise<void> {
  const key = await writeIn(engine, namespace, async (tx) => {
    const row = await requireVisible(tx, trajectoryId);
    const { numDeletedRows } = await tx.db
      .deleteFrom('tags')
      .where('tree', '=', row.tree)
      .where('trajectory', '=', row.key)
      .where('name', '=', name)
      .executeTakeFirst();
    if (numDeletedRows === 0n) throw tagNotFound(trajectoryId, name);
    return row.key;
  });
  engine.changes.announce([trajectoryHint(key)]);
}

interface TagRow {
  readonly name: string;
  readonly step_number: bigint;
  readonly update_time: string;
}

/** Returns the tag of a row of an outer join, if it has one. */
function tagIn({ name, step_number, update_time }: { readonly [Name in keyof TagRow]: TagRow[Name] | null }) {
  return name === null || step_number === null || update_time === null ? undefined : { name, step_number, update_time };
}

function visible(scope: ReadScope, id: string) {
  return visibleById(scope, 'trajectories', id).select(['tree', 'key', 'next_step_number']);
}

async function requireVisible(scope: ReadScope, id: string): Promise<{ tree: bigint; key: bigint }> {
  const row = await visible(scope, id).executeTakeFirst();
  if (row === undefined) throw trajectoryNotFound(id);
  return row;
}

async function tagOf(db: Db, { tree, key }: { tree: bigint; key: bigint }, name: string): Promise<TagRow | undefined> {
  return db
    .selectFrom('tags')
    .select(['name', 'step_number', 'update_time'])
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('name', '=', name)
    .executeTakeFirst();
}

function readTag(trajectoryId: string, row: TagRow | undefined, name: string): Tag {
  if (row === undefined) throw tagNotFound(trajectoryId, name);
  return { trajectoryId, name: row.name, stepNumber: row.step_number, updateTime: parseInstant(row.update_time) };
}

function tagMoved(trajectoryId: string, name: string, at: bigint, expected: bigint): AnabranchError {
  const where = at === -1n ? 'is not set' : `points to step ${at}`;
  const wanted = expected === -1n ? '-1 (not set)' : `${expected}`;
  return new AnabranchError(
    'TAG_MOVED',
    `Tag "${name}" of trajectory ${trajectoryId} ${where}, but expected_step_number is ${wanted}. Read the tag again before you retry.`,
    { metadata: { step_number: `${at}` } },
  );
}
