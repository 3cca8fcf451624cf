import { sql } from 'kysely';
import { parseInstant } from '../../domain/instant.ts';
import type { Task, Validator } from '../../domain/rollout.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { Claim, ClaimRequest } from '../contract/rollout.ts';
import { plannedTurns, type Taken } from './claim_places.ts';
import type { Engine, Tx } from './engine.ts';
import { type RolloutRow, readRollout, selectRollouts } from './rollout_rows.ts';
import { leaseEndFrom } from './rollout_writing.ts';
import { type RecordedMove, recordStatuses } from './status_changes.ts';
import { readTask, selectTasks } from './tasks.ts';
import { together } from './together.ts';
import { insertTrajectories, trajectoryRow } from './trajectory_making.ts';
import { readValidator, selectValidators } from './validators.ts';
import { bindReal } from './values.ts';

/** A rollout that goes to a request. */
export interface Granted extends Taken {
  /** The request's place among all. */
  readonly at: number;
  readonly request: ClaimRequest;
  /** For the attempt's trajectory. */
  readonly ids: { readonly id: string; readonly uid: string };
}

/** Q1: attempts with their trajectories, the moves of their rollouts and what was asked for, in few statements however many. In the order given. */
export async function makeClaims(
  engine: Engine,
  tx: Tx,
  now: string,
  mark: bigint,
  granted: readonly Granted[],
): Promise<Claim[]> {
  if (granted.length === 0) return [];
  const tasks = [...new Set(granted.flatMap(({ row }) => row.task ?? []))];
  const [keys, catalogue, overridden] = await together([
    engine.nextKeys(tx, 'trajectories', granted.length),
    readCatalogue(engine, tx, tasks),
    readOverridden(engine, tx, granted),
  ]);
  const attempts = granted.map((each, i) => attemptOf(each, keys[i]!, taskOf(each, catalogue), now));
  await writeAttempts(engine, tx, now, mark, attempts);
  return attempts.map((attempt) => claimOf(attempt, catalogue, overridden.get(attempt.row.key), now));
}

export interface Catalogue {
  readonly tasks: ReadonlyMap<bigint, Task>;
  readonly validators: ReadonlyMap<bigint, readonly Validator[]>;
}

/** Tasks by key, and their validators by type. */
export async function readCatalogue(engine: Engine, tx: Tx, keys: readonly bigint[]): Promise<Catalogue> {
  if (keys.length === 0) return { tasks: new Map(), validators: new Map() };
  const [tasks, validators] = await together([
    selectTasks(tx)
      .where(engine.among(sql.ref('k.key'), keys))
      .execute(),
    selectValidators(tx)
      .where(engine.among(sql.ref('v.task'), keys))
      .orderBy('v.type')
      .execute(),
  ]);
  const of = Map.groupBy(validators, ({ task }) => task);
  return {
    tasks: new Map(tasks.map((row) => [row.key, readTask(row)])),
    validators: new Map([...of].map(([task, rows]) => [task, rows.map(readValidator)])),
  };
}

function taskOf({ row }: Taken, { tasks }: Catalogue): Task | undefined {
  return row.task === null ? undefined : tasks.get(row.task);
}

/** Few rollouts have an override, and those that have it had an attempt before: only they are read again. */
async function readOverridden(engine: Engine, tx: Tx, granted: readonly Granted[]): Promise<Map<bigint, RolloutRow>> {
  const keys = granted.filter(({ row }) => row.override !== null).map(({ row }) => row.key);
  if (keys.length === 0) return new Map();
  const rows = await selectRollouts(engine, tx, 'FULL')
    .where(engine.among(sql.ref('r.key'), keys))
    .execute();
  return new Map(rows.map((row) => [row.key, row]));
}

interface NewAttempt extends Granted {
  readonly number: bigint;
  readonly trajectory: Trajectory;
  readonly byteSum: bigint;
  readonly leaseEnd: string;
}

/** The trajectory begins from nothing, or is a branch at the start point (B1); it belongs where its rollout does, and is of the same task. */
function attemptOf(granted: Granted, key: bigint, task: Task | undefined, now: string): NewAttempt {
  const { row, place, point, ids, request } = granted;
  const number = row.attempt + 1n;
  const time = parseInstant(now);
  const at = row.start_step ?? 0n;
  const trajectory: Trajectory = {
    ref: { tree: point?.source.ref.tree ?? key, key },
    ...ids,
    treeId: point?.source.treeId ?? ids.id,
    parent: point && { ...point.owner, branchPoint: at },
    name: `rollout ${row.group_number}/${row.number} attempt ${number}`,
    taskId: task?.id ?? '',
    runId: place.run.id,
    experimentId: place.experiment.id,
    labels: new Map(),
    metadataJson: '',
    metrics: new Map(),
    status: 'RUNNING',
    statusMessage: '',
    writerId: '',
    writerEpoch: 0n,
    nextStepNumber: point === undefined ? 0n : at + 1n,
    rewardSum: point?.rewardSum ?? 0,
    createTime: time,
    updateTime: time,
    sealTime: undefined,
    hidden: false,
  };
  return {
    ...granted,
    number,
    trajectory,
    byteSum: point?.byteSum ?? 0n,
    leaseEnd: leaseEndFrom(now, request.leaseMs),
  };
}

async function writeAttempts(
  engine: Engine,
  tx: Tx,
  now: string,
  mark: bigint,
  attempts: readonly NewAttempt[],
): Promise<void> {
  const trajectories = attempts.map((attempt) => trajectoryRowOf(attempt, now));
  await insertTrajectories(engine, tx, trajectories);
  const rows = attempts.map(({ row, number, trajectory, request }) => {
    const { tree, key } = trajectory.ref;
    return [row.key, number, row.namespace, tree, key, 'INITIALIZING', '', request.workerId, now, null];
  });
  await engine.insertRows(tx, 'attempts', ATTEMPT_COLUMNS, rows);
  await recordStatuses(engine, tx, now, attempts.flatMap(movesOf));
  const claimed = attempts.map((attempt) => claimedRow(attempt, now, mark));
  await engine.updateRows(tx, 'rollouts', ['key'], CLAIMED_COLUMNS, claimed);
}

/** The attempt's trajectory as it is written; it has no labels of its own. */
function trajectoryRowOf({ row, place, trajectory, byteSum }: NewAttempt, now: string): unknown[] {
  const { ref, parent, taskId, nextStepNumber, rewardSum } = trajectory;
  return trajectoryRow(row.namespace, trajectory, now, {
    ...ref,
    parent: parent?.key ?? null,
    branch_point: parent?.branchPoint ?? null,
    task_id: taskId,
    next_step_number: nextStepNumber,
    reward_sum: bindReal(rewardSum),
    byte_sum: byteSum,
    run: place.run.key,
    experiment: place.experiment.key,
  });
}

const ATTEMPT_COLUMNS = [
  'rollout',
  'number',
  'namespace',
  'tree',
  'trajectory',
  'status',
  'message',
  'worker_id',
  'claim_time',
  'end_time',
] as const;

/** L5: of the trajectory its creation, of the rollout its move. */
function movesOf({ row, trajectory, request: { caller } }: NewAttempt): RecordedMove[] {
  const { tree, key } = trajectory.ref;
  const creation = { ordinal: 0n, from: null, to: 'RUNNING', message: '' } as const;
  const claim = { ordinal: row.status_changes, from: 'PENDING', to: 'INITIALIZING', message: '' } as const;
  return [
    { caller, entity: { tree, noun: 'TRAJECTORY', key }, move: creation },
    { caller, entity: { tree: row.run, noun: 'ROLLOUT', key: row.key }, move: claim },
  ];
}

const CLAIMED_COLUMNS = [
  'status',
  'status_message',
  'phase',
  'attempt',
  'tree',
  'trajectory',
  'worker_id',
  'lease_ms',
  'lease_end_time',
  'update_time',
  'status_changes',
  'revision',
  'mark',
] as const;

function claimedRow({ row, number, trajectory, request, leaseEnd }: NewAttempt, now: string, mark: bigint): unknown[] {
  const { tree, key } = trajectory.ref;
  return [
    ...[row.key, 'INITIALIZING', '', '', number, tree, key, request.workerId, BigInt(request.leaseMs), leaseEnd, now],
    ...[row.status_changes + 1n, row.revision + 1n, mark],
  ];
}

/** As it would be read now. */
function claimOf(attempt: NewAttempt, catalogue: Catalogue, before: RolloutRow | undefined, now: string): Claim {
  const { row, place, trajectory } = attempt;
  const task = taskOf(attempt, catalogue);
  const rollout = readRollout({
    ...NO_OVERRIDE,
    ...row,
    ...before,
    ...claimedFields(attempt, now),
    run_id: place.run.id,
    stage_id: place.stage.id,
    group_id: place.group.id,
    task_id: task?.id ?? null,
    trajectory_id: trajectory.id,
    branch_point: trajectory.parent?.branchPoint ?? null,
    next_step_number: trajectory.nextStepNumber,
    commit_time: now,
    own_reward: null,
  });
  const validators = (task && catalogue.validators.get(task.key)) ?? [];
  const maxTurns = row.max_turns ?? task?.maxTurns ?? plannedTurns(place.run.plan, place.stage.kind);
  return { rollout, task, validators, trajectory, maxTurns };
}

function claimedFields({ row, number, request, leaseEnd }: NewAttempt, now: string) {
  return {
    status: 'INITIALIZING',
    status_message: '',
    phase: '',
    attempt: number,
    worker_id: request.workerId,
    lease_ms: BigInt(request.leaseMs),
    lease_end_time: leaseEnd,
    update_time: now,
    revision: row.revision + 1n,
  };
}

const NO_OVERRIDE = {
  override_ordinal: null,
  override_success: null,
  override_reason: null,
  override_actor: null,
  override_time: null,
} as const;
