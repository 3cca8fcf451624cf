import { sql } from 'kysely';
import type { Pause } from '../../../../domain/lease.ts';
import type { Task } from '../../../../domain/rollout.ts';
import type { Experiment, Plan, Run, Stage, StageKind } from '../../../../domain/run.ts';
import type { Trajectory } from '../../../../domain/trajectory.ts';
import type { Claim } from '../../../contract/rollout.ts';
import type { Db } from '../../kit/engine.ts';
import { padded } from '../../kit/kept_queries.ts';
import { inOneRoundTrip, type NamespaceTransaction, type Transaction } from '../../kit/transaction.ts';
import { readTrajectory, selectTrajectories } from '../../log/trajectory/rows.ts';
import { readRollout, selectRollouts } from '../rollout/rows.ts';
import { readPauses, readPlan } from '../run/rows.ts';
import { readTask, selectTasks } from '../task/tasks.ts';
import { byTask, selectValidators } from '../task/validators.ts';
import { IS_OPEN, type QueuedRow, type StageName } from './queue.ts';
import type { LockedStartPoint } from './start_points.ts';

/** Row key of a rollout, and the number of the claimed attempt. */
export interface ClaimedAttempt {
  readonly key: bigint;
  readonly attempt: bigint;
}

/** Q2: returns those of the earlier claims that are still live, in the order in which they were claimed. */
export async function readClaims(tx: NamespaceTransaction, granted: readonly ClaimedAttempt[]): Promise<Claim[]> {
  const rows = await selectRollouts(tx.engine, tx.db, 'FULL')
    .select(['r.task', 's.kind', 'u.plan', 't.tree as trajectory_tree', 't.key as trajectory_key'])
    .where('r.namespace', '=', tx.namespace)
    .where(
      tx.engine.sql.among(
        sql.ref('r.key'),
        granted.map(({ key }) => key),
      ),
    )
    .where('r.status', 'in', ['INITIALIZING', 'RUNNING'])
    .execute();
  const [tasks, trajectories] = await inOneRoundTrip([
    readTasks(tx, rows),
    readTrajectories(
      tx,
      rows.flatMap(({ trajectory_key }) => trajectory_key ?? []),
    ),
  ]);
  const byKey = new Map(rows.map((row) => [row.key, row]));
  return granted.flatMap(({ key, attempt }): Claim[] => {
    const row = byKey.get(key);
    const trajectory = row === undefined ? undefined : trajectories.get(row.trajectory_key ?? -1n);
    // Without its trajectory, an attempt cannot be worked on.
    if (row === undefined || row.attempt !== attempt || trajectory === undefined) return [];
    const task = taskOf(row, tasks);
    const planned = plannedTurns(readPlan(row.plan), row.kind as StageKind);
    const maxTurns = row.max_turns ?? task?.maxTurns ?? planned;
    return [{ rollout: readRollout(row), task, trajectory, maxTurns }];
  });
}

async function readTrajectories(tx: NamespaceTransaction, keys: readonly bigint[]) {
  if (keys.length === 0) return new Map<bigint, Trajectory>();
  const rows = await selectTrajectories(tx.db)
    .where('t.namespace', '=', tx.namespace)
    .where(tx.engine.sql.among(sql.ref('t.key'), keys))
    .where('t.hidden', '=', 0)
    .execute();
  return new Map(rows.map((row) => [row.key, readTrajectory(row)]));
}

/** Stage, run and experiment of claimed rollouts, as far as claims return them. */
interface StageContext {
  readonly stage: Pick<Stage, 'key' | 'id' | 'kind'>;
  readonly run: Pick<Run, 'key' | 'id' | 'plan'> & { readonly pauses: readonly Pause[] };
  readonly experiment: Pick<Experiment, 'key' | 'id'>;
}

/** By row key of the stage. */
export type StageContexts = ReadonlyMap<bigint, StageContext>;

/** A locked rollout whose attempt can begin. */
export interface Taken {
  readonly row: QueuedRow;
  readonly context: StageContext;
  /** Undefined if the attempt starts without a prefix. */
  readonly point: LockedStartPoint | undefined;
}

/**
 * Reads the stages of locked rollouts. Must run after the rollouts are locked, because a deletion hides the run before
 * it locks the run's rollouts. Stages are omitted if they
 * or their run are terminal or deleted, or their run is paused.
 */
export async function readContexts(tx: Transaction, rows: readonly QueuedRow[]): Promise<StageContexts> {
  const { engine } = tx;
  const stages = padded([...new Set(rows.map(({ stage }) => stage))]);
  return contextsOf(
    await engine.transactions.ask(
      tx.db,
      engine.kept.of('contexts of stages', [stages], (among) => selectContexts(engine.db).where('s.key', 'in', among)),
    ),
  );
}

/** Reads one stage by name. Used where the lock of the rollouts is sent directly before. */
export async function readContext(tx: Transaction, { namespace, id }: StageName): Promise<StageContexts> {
  const { engine } = tx;
  return contextsOf(
    await engine.transactions.ask(
      tx.db,
      engine.kept.of('context of stage', [namespace, id], (of, named) =>
        selectContexts(engine.db).where('s.namespace', '=', of).where('s.id', '=', named),
      ),
    ),
  );
}

function selectContexts(db: Db) {
  return db
    .selectFrom('stages as s')
    .innerJoin('runs as u', 'u.key', 's.run')
    .innerJoin('experiments as e', 'e.key', 'u.experiment')
    .select(['s.key as stage_key', 's.id as stage_id', 's.kind'])
    .select([
      'u.key as run_key',
      'u.id as run_id',
      'u.plan',
      'u.pauses',
      'e.key as experiment_key',
      'e.id as experiment_id',
    ])
    .where(IS_OPEN);
}

type ContextRow = Awaited<ReturnType<ReturnType<typeof selectContexts>['execute']>>[number];

function contextsOf(rows: readonly ContextRow[]): StageContexts {
  return new Map(
    rows.map((row) => [
      row.stage_key,
      {
        stage: { key: row.stage_key, id: row.stage_id, kind: row.kind as StageKind },
        run: { key: row.run_key, id: row.run_id, plan: readPlan(row.plan), pauses: readPauses(row.pauses) },
        experiment: { key: row.experiment_key, id: row.experiment_id },
      },
    ]),
  );
}

/** Returns the planned turns of a kind of stage; undefined if unset. */
export function plannedTurns(plan: Plan | undefined, kind: StageKind): bigint | undefined {
  const turns = plan?.stagePlans.find((stagePlan) => stagePlan.kind === kind)?.maxTurns ?? 0;
  return turns === 0 ? undefined : BigInt(turns);
}

export type TasksByKey = ReadonlyMap<bigint, Task>;

/**
 * Reads the tasks of rollouts, with their validators. The statements are sent together, and their number does not grow
 * with the rollouts. Entries of `known` are not read again.
 */
export async function readTasks(
  tx: Transaction,
  rollouts: readonly { readonly task: bigint | null }[],
  known: TasksByKey = new Map(),
): Promise<TasksByKey> {
  const { engine } = tx;
  const found = [...new Set(rollouts.flatMap(({ task }) => task ?? []))].filter((task) => !known.has(task));
  if (found.length === 0) return known;
  const { db, kept } = engine;
  const keys = padded(found);
  const [tasks, validators] = await Promise.all([
    engine.transactions.ask(
      tx.db,
      kept.of('tasks by key', [keys], (among) => selectTasks(db).where('k.key', 'in', among)),
    ),
    engine.transactions.ask(
      tx.db,
      kept.of('validators of tasks', [keys], (among) => selectValidators(db).where('v.task', 'in', among)),
    ),
  ]);
  const validatorsOf = byTask(validators);
  return new Map([
    ...known,
    ...tasks.map((row): [bigint, Task] => [row.key, readTask(row, validatorsOf.get(row.key))]),
  ]);
}

export function taskOf({ task }: { readonly task: bigint | null }, tasks: TasksByKey): Task | undefined {
  return task === null ? undefined : tasks.get(task);
}
