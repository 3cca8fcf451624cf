import { AnabranchError, stepNotFound, tagNotFound, trajectoryNotFound } from '../../../domain/errors.ts';
import { parseInstant } from '../../../domain/instant.ts';
import type { Page } from '../../contract/page.ts';
import type { Tag } from '../../contract/tag.ts';
import { visibleById } from '../by_id.ts';
import type { Db, Engine } from '../engine.ts';
import { type NamespaceTransaction, type ReadScope, writeIn } from '../transaction.ts';
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
  return writeIn(engine, namespace, async (tx) => {
    await lockOwner(tx, trajectoryId, stepNumber);
    const row = await engine.lock(visible(tx, trajectoryId), 'write').executeTakeFirst();
    if (row === undefined) throw trajectoryNotFound(trajectoryId);
    if (stepNumber >= row.next_step_number) throw stepNotFound(trajectoryId, stepNumber, row.next_step_number);
    const there = await tagOf(tx.db, row, name);
    const at = there?.step_number ?? -1n;
    if (expected !== undefined && expected !== at) throw tagMoved(trajectoryId, name, at, expected);
    const tag = { step_number: stepNumber, update_time: engine.now };
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
    return readTag(trajectoryId, await tagOf(tx.db, row, name), name);
  });
}

/** S14: pruning locks the owner of a step, and must see the tag or come first. Owners are locked before their branches. */
async function lockOwner(tx: NamespaceTransaction, trajectoryId: string, stepNumber: bigint): Promise<void> {
  const row = await visible(tx, trajectoryId).select('branch_point').executeTakeFirst();
  if (row === undefined || row.branch_point === null || stepNumber > row.branch_point) return;
  const owner = await ownerIn(tx, row, stepNumber);
  if (owner === undefined) return;
  const locked = tx.db.selectFrom('trajectories').select('key').where('tree', '=', row.tree).where('key', '=', owner);
  await tx.engine.lock(locked, 'keep').execute();
}

export async function getTag(scope: ReadScope, trajectoryId: string, name: string): Promise<Tag> {
  const row = await requireVisible(scope, trajectoryId);
  return readTag(trajectoryId, await tagOf(scope.db, row, name), name);
}

export async function listTags({ db, namespace }: ReadScope, trajectoryId: string, page: Page<string>): Promise<Tag[]> {
  // One statement, so that a deleted trajectory is not mistaken for one without tags.
  const rows = await db
    .selectFrom('trajectories as t')
    .leftJoin('tags as g', (join) => {
      const own = join.onRef('g.tree', '=', 't.tree').onRef('g.trajectory', '=', 't.key');
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
  return rows.flatMap(({ name, step_number, update_time }) =>
    name === null || step_number === null || update_time === null
      ? []
      : [readTag(trajectoryId, { name, step_number, update_time }, name)],
  );
}

export async function deleteTag(engine: Engine, namespace: string, trajectoryId: string, name: string): Promise<void> {
  await writeIn(engine, namespace, async (tx) => {
    const row = await requireVisible(tx, trajectoryId);
    const { numDeletedRows } = await tx.db
      .deleteFrom('tags')
      .where('tree', '=', row.tree)
      .where('trajectory', '=', row.key)
      .where('name', '=', name)
      .executeTakeFirst();
    if (numDeletedRows === 0n) throw tagNotFound(trajectoryId, name);
  });
}

interface TagRow {
  readonly name: string;
  readonly step_number: bigint;
  readonly update_time: string;
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
