import type { Caller } from '../../domain/caller.ts';
import {
  AnabranchError,
  invalidField,
  stateNotFound,
  stepNotFound,
  tagNotFound,
  trajectoryNotFound,
} from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import { ownerOf } from '../../domain/lineage.ts';
import { contentStates } from '../../domain/step.ts';
import { ownBegin, type Trajectory, type TrajectoryRef } from '../../domain/trajectory.ts';
import type { IdempotencyKey } from '../contract/idempotency.ts';
import type { Page } from '../contract/page.ts';
import type {
  NewBranch,
  NewTrajectory,
  TrajectoryChanges,
  TrajectoryFilter,
  TrajectoryMaking,
} from '../contract/trajectory.ts';
import { type Belonging, lockBelonging } from './belonging.ts';
import type { Db, Engine, Tx } from './engine.ts';
import { segmentsIn } from './lineage.ts';
import { findMade, keepRequest } from './requests.ts';
import { recordStatus } from './status_changes.ts';
import { type EncodedState, encodeStates, StepWriter, type Sums } from './step_writer.ts';
import { findById, findByKey, readNow, readTrajectory, selectTrajectories } from './trajectory_rows.ts';
import { UniqueViolation } from './unique_violation.ts';
import { bindLabels, bindMetrics, bindReal, bindTimeBound, readMetrics, readReal } from './values.ts';

/** L1: what a trajectory begins as. */
const CREATION = { ordinal: 0n, from: null, to: 'RUNNING', message: '' } as const;

export async function createTrajectory(
  engine: Engine,
  caller: Caller,
  making: NewTrajectory,
  key: IdempotencyKey | undefined,
): Promise<Trajectory> {
  const inline = encodeStates(making.states);
  return makeOnce(engine, caller, making, key, async (tx) => {
    const belonging = await lockBelonging(engine, tx, caller.namespace, making.runId, making.experimentId);
    const now = await readNow(tx, engine.now);
    const row = await engine.nextKey(tx, 'trajectories');
    const ref = { tree: row, key: row };
    const sums = await writeRoot(engine, tx, caller, ref, now, making, inline);
    await insertTrajectory(tx, caller, making, now, {
      ...ref,
      ...belonging,
      parent: null,
      branch_point: null,
      task_id: making.taskId,
      next_step_number: making.root === undefined ? 0n : 1n,
      reward_sum: bindReal(sums.rewardSum),
      byte_sum: sums.byteSum,
    });
    await recordStatus(tx, caller, { ...ref, noun: 'TRAJECTORY' }, now, CREATION);
    return ref;
  });
}

/** Step 0, written without an epoch. */
async function writeRoot(
  engine: Engine,
  tx: Tx,
  caller: Caller,
  ref: TrajectoryRef,
  now: string,
  { root }: NewTrajectory,
  inline: readonly EncodedState[],
): Promise<Sums> {
  const empty = { rewardSum: 0, byteSum: 0n };
  if (root === undefined) return empty;
  const writer = new StepWriter(engine, tx, now);
  const here = new Set(inline.map(({ digest }) => digest));
  const referred = [...root.states.map(({ digest }) => digest), ...contentStates(root)];
  await writer.resolve(
    caller.namespace,
    referred.filter((digest) => !here.has(digest)),
  );
  const missing = writer.missingState(caller.namespace, root, here);
  if (missing !== undefined) throw stateNotFound(missing);
  const sums = writer.add(caller.namespace, ref, 0n, empty, [root], inline);
  await writer.write();
  return sums;
}

export async function branchTrajectory(
  engine: Engine,
  caller: Caller,
  making: NewBranch,
  key: IdempotencyKey | undefined,
): Promise<Trajectory> {
  return makeOnce(engine, caller, making, key, async (tx) => {
    const source = await findById(tx, caller.namespace, making.sourceId);
    if (source === undefined || source.hidden) throw trajectoryNotFound(making.sourceId);
    const { runId, experimentId } = source;
    const belonging = await lockBelonging(
      engine,
      tx,
      caller.namespace,
      runId === '' ? undefined : runId,
      experimentId === '' ? undefined : experimentId,
    );
    const at = 'tag' in making.at ? await tagged(tx, source, making.at.tag) : making.at.stepNumber;
    if (at >= source.nextStepNumber) throw branchPointBeyondEnd(source, at);
    const owner = await ownerKey(tx, caller.namespace, source, at);
    // Under this lock the owner cannot be deleted or trimmed; its writer goes on beside it.
    const locked = await engine
      .lock(
        tx.selectFrom('trajectories').select('key').where('tree', '=', source.ref.tree).where('key', '=', owner),
        'keep',
      )
      .executeTakeFirst();
    const step = await tx
      .selectFrom('steps')
      .select(['reward_sum', 'byte_sum'])
      .where('tree', '=', source.ref.tree)
      .where('trajectory', '=', owner)
      .where('step_number', '=', at)
      .executeTakeFirst();
    if (locked === undefined || step === undefined) throw trajectoryNotFound(making.sourceId);
    const now = await readNow(tx, engine.now);
    const ref = { tree: source.ref.tree, key: await engine.nextKey(tx, 'trajectories') };
    await insertTrajectory(tx, caller, making, now, {
      ...ref,
      ...belonging,
      parent: owner,
      branch_point: at,
      task_id: source.taskId,
      next_step_number: at + 1n,
      reward_sum: bindReal(readReal(step.reward_sum)),
      byte_sum: step.byte_sum,
    });
    await recordStatus(tx, caller, { ...ref, noun: 'TRAJECTORY' }, now, CREATION);
    return ref;
  });
}

/** ID1 around a making: at most one is made under a key, also when several race. */
async function makeOnce(
  engine: Engine,
  caller: Caller,
  making: TrajectoryMaking,
  key: IdempotencyKey | undefined,
  make: (tx: Tx) => Promise<{ tree: bigint; key: bigint }>,
): Promise<Trajectory> {
  try {
    return await engine.write(async (tx) => {
      const before = await findMade(tx, caller.namespace, key);
      if (before !== undefined) return before;
      await refuseTaken(tx, caller.namespace, making.id);
      const ref = await make(tx);
      await keepRequest(engine, tx, caller.namespace, key, ref, making.id);
      const made = await findByKey(tx, caller.namespace, ref.tree, ref.key);
      if (made === undefined) throw new Error('a trajectory made in this transaction is not there');
      return made;
    });
  } catch (error) {
    if (!(error instanceof UniqueViolation || isTaken(error))) throw error;
    // Perhaps a racer with the same key won: what it made is the answer.
    const made = await findMade(engine.db, caller.namespace, key);
    if (made !== undefined) return made;
    throw trajectoryExists(making.id);
  }
}

function isTaken(error: unknown): boolean {
  return error instanceof AnabranchError && error.reason === 'TRAJECTORY_EXISTS';
}

async function refuseTaken(tx: Tx, namespace: string, id: string): Promise<void> {
  const taken = await tx
    .selectFrom('trajectories')
    .select('key')
    .where('namespace', '=', namespace)
    .where('id', '=', id)
    .executeTakeFirst();
  if (taken !== undefined) throw trajectoryExists(id);
}

interface Placement extends Belonging {
  readonly tree: bigint;
  readonly key: bigint;
  readonly parent: bigint | null;
  readonly branch_point: bigint | null;
  readonly task_id: string;
  readonly next_step_number: bigint;
  readonly reward_sum: number | string;
  readonly byte_sum: bigint;
}

async function insertTrajectory(
  tx: Tx,
  caller: Caller,
  making: TrajectoryMaking,
  now: string,
  placement: Placement,
): Promise<void> {
  await tx
    .insertInto('trajectories')
    .values({
      ...placement,
      namespace: caller.namespace,
      id: making.id,
      uid: making.uid,
      name: making.name,
      labels: bindLabels(making.labels),
      metadata_json: making.metadataJson,
      metrics: '{}',
      status: 'RUNNING',
      status_message: '',
      writer_id: '',
      writer_epoch: 0n,
      hidden: 0,
      create_time: now,
      update_time: now,
      seal_time: null,
    })
    .execute();
}

async function ownerKey(tx: Tx, namespace: string, source: Trajectory, at: bigint): Promise<bigint> {
  if (at >= ownBegin(source)) return source.ref.key;
  const owner = ownerOf(await segmentsIn(tx, namespace, source), at);
  if (owner === undefined) throw stepNotFound(source.id, at, source.nextStepNumber);
  return owner;
}

async function tagged(tx: Tx, source: Trajectory, tag: string): Promise<bigint> {
  const row = await tx
    .selectFrom('tags')
    .select('step_number')
    .where('tree', '=', source.ref.tree)
    .where('trajectory', '=', source.ref.key)
    .where('name', '=', tag)
    .executeTakeFirst();
  if (row === undefined) throw tagNotFound(source.id, tag);
  return row.step_number;
}

export async function listTrajectories(
  engine: Engine,
  namespace: string,
  filter: TrajectoryFilter,
  page: Page<bigint>,
): Promise<Trajectory[]> {
  if (filter.statuses?.length === 0) return [];
  let query = selectTrajectories(engine.db).where('t.namespace', '=', namespace).where('t.hidden', '=', 0);
  if (filter.taskId !== undefined) query = query.where('t.task_id', '=', filter.taskId);
  if (filter.runId !== undefined) query = query.where('t.run', '=', keyOfRun(engine.db, namespace, filter.runId));
  if (filter.experimentId !== undefined)
    query = query.where('t.experiment', '=', keyOfExperiment(engine.db, namespace, filter.experimentId));
  if (filter.name !== undefined) query = query.where('t.name', '=', filter.name);
  if (filter.statuses !== undefined) query = query.where('t.status', 'in', filter.statuses);
  if (filter.rootsOnly === true) query = query.where('t.parent', 'is', null);
  if (filter.branchPoint !== undefined) query = query.where('t.branch_point', '=', filter.branchPoint);
  if (filter.createTimeFrom !== undefined)
    query = query.where('t.create_time', '>=', bindTimeBound(filter.createTimeFrom));
  if (filter.createTimeTo !== undefined) query = query.where('t.create_time', '<', bindTimeBound(filter.createTimeTo));
  for (const [key, value] of filter.labels ?? []) {
    query = query.where((eb) => engine.hasPair(eb.ref('t.labels'), key, value));
  }
  const places = await Promise.all([
    placeOf(engine.db, namespace, filter.parentId),
    placeOf(engine.db, namespace, filter.treeId),
  ]);
  const [parent, root] = places;
  if (parent === 'nowhere' || root === 'nowhere') return [];
  if (parent !== undefined) query = query.where('t.tree', '=', parent.tree).where('t.parent', '=', parent.key);
  if (root !== undefined) query = query.where('t.tree', '=', root.key);
  if (page.after !== undefined) query = query.where('t.key', '<', page.after);
  const rows = await query.orderBy('t.key', 'desc').limit(page.limit).execute();
  return rows.map(readTrajectory);
}

function keyOfRun(db: Db, namespace: string, id: string) {
  return db.selectFrom('runs').select('key').where('namespace', '=', namespace).where('id', '=', id);
}

function keyOfExperiment(db: Db, namespace: string, id: string) {
  return db.selectFrom('experiments').select('key').where('namespace', '=', namespace).where('id', '=', id);
}

/** Where the trajectory of an id stands, hidden ones included, since their branches live on. */
async function placeOf(
  db: Db,
  namespace: string,
  id: string | undefined,
): Promise<{ tree: bigint; key: bigint } | 'nowhere' | undefined> {
  if (id === undefined) return undefined;
  const row = await db
    .selectFrom('trajectories')
    .select(['tree', 'key'])
    .where('namespace', '=', namespace)
    .where('id', '=', id)
    .executeTakeFirst();
  return row ?? 'nowhere';
}

export async function listTree(
  engine: Engine,
  namespace: string,
  tree: bigint,
  page: Page<bigint>,
): Promise<Trajectory[]> {
  let query = selectTrajectories(engine.db).where('t.tree', '=', tree).where('t.namespace', '=', namespace);
  if (page.after !== undefined) query = query.where('t.key', '>', page.after);
  const rows = await query.orderBy('t.key').limit(page.limit).execute();
  return rows.map(readTrajectory);
}

export async function updateTrajectory(
  engine: Engine,
  namespace: string,
  id: string,
  changes: TrajectoryChanges,
): Promise<Trajectory> {
  return engine.write(async (tx) => {
    const row = await engine
      .lock(
        tx
          .selectFrom('trajectories')
          .select(['tree', 'key', 'metrics'])
          .where('namespace', '=', namespace)
          .where('id', '=', id)
          .where('hidden', '=', 0),
        'write',
      )
      .executeTakeFirst();
    if (row === undefined) throw trajectoryNotFound(id);
    await tx
      .updateTable('trajectories')
      .set({
        update_time: engine.now,
        ...(changes.name === undefined ? {} : { name: changes.name }),
        ...(changes.labels === undefined ? {} : { labels: bindLabels(changes.labels) }),
        ...(changes.metadataJson === undefined ? {} : { metadata_json: changes.metadataJson }),
        ...(changes.metrics === undefined ? {} : { metrics: bindMetrics(mergeMetrics(row.metrics, changes.metrics)) }),
      })
      .where('tree', '=', row.tree)
      .where('key', '=', row.key)
      .execute();
    const updated = await findByKey(tx, namespace, row.tree, row.key);
    if (updated === undefined) throw trajectoryNotFound(id);
    return updated;
  });
}

function mergeMetrics(stored: string, changes: ReadonlyMap<string, number>): Map<string, number> {
  const merged = readMetrics(stored);
  for (const [key, value] of changes) merged.set(key, value);
  if (merged.size > LIMITS.metrics) {
    throw invalidField('metrics', `would make ${merged.size} metrics; at most ${LIMITS.metrics} are kept`);
  }
  return merged;
}

function trajectoryExists(id: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_EXISTS',
    `The id ${id} is taken (perhaps by a deleted trajectory whose steps its branches still need): use another, or none.`,
    { metadata: { trajectory_id: id } },
  );
}

function branchPointBeyondEnd(source: Trajectory, at: bigint): AnabranchError {
  const holds =
    source.nextStepNumber === 0n ? 'it has no steps yet' : `it holds steps 0 to ${source.nextStepNumber - 1n}`;
  return new AnabranchError(
    'BRANCH_POINT_BEYOND_END',
    `step_number ${at} is not a step of trajectory ${source.id}: ${holds}.`,
    { metadata: { step_number: `${at}`, next_step_number: `${source.nextStepNumber}` } },
  );
}
