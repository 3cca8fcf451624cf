import { AnabranchError, trajectoryNotFound } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import { beginLease, type Lease } from '../../../../domain/lease.ts';
import type { Task } from '../../../../domain/rollout.ts';
import type { Trajectory } from '../../../../domain/trajectory.ts';
import type { Claim, ClaimRequest, NewClaims } from '../../../contract/rollout.ts';
import { Contended } from '../../../contract/store.ts';
import { Later } from '../../kit/engine.ts';
import { NO_SUMS, type Sums, sumColumns } from '../../kit/running_sums.ts';
import { type RecordedMove, recordStatuses } from '../../kit/status/status_changes.ts';
import { ATTEMPTS } from '../../kit/tables/attempts.ts';
import { ROLLOUTS } from '../../kit/tables/rollouts.ts';
import { type RowOf, rowUpdate, type UpdateOf } from '../../kit/tables/table.ts';
import { TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import { type CallerTransaction, inOneRoundTrip, type Transaction } from '../../kit/transaction.ts';
import { trajectoryRow } from '../../log/trajectory/create.ts';
import { NO_ATTEMPT_VALUES } from '../attempt/attempts.ts';
import { bindLease, LEASE_COLUMNS, readRollout, readStart } from '../rollout/rows.ts';
import { bindPauses } from '../run/rows.ts';
import type { KeptStage } from '../stage/rows.ts';
import { lockByKey, type QueuedRow } from './queue.ts';
import { plannedTurns, readContexts, readTasks, type Taken, type TasksByKey, taskOf } from './reading.ts';
import { type FoundPoint, holdStartPoints, type LockedStartPoint, nameOf } from './start_points.ts';

/** A rollout that is assigned to a request. */
export interface Granted extends Taken {
  /** Index of the request in the list of all requests. */
  readonly at: number;
  readonly request: Pick<ClaimRequest, 'caller' | 'key' | 'workerId' | 'leaseMs'>;
  /** Ids of the attempt's trajectory. */
  readonly ids: { readonly id: string; readonly uid: string };
}

/** Returns the claims that `createClaims` would create. Writes nothing. */
export function previewClaims(granted: readonly Granted[], tasks: TasksByKey, now: string): Claim[] {
  return granted.map((each) => claimOf(attemptOf(each, now), taskOf(each.row, tasks), now));
}

/**
 * Q1: creates attempts and their trajectories, moves their rollouts, and returns the claims in the order given. The
 * number of statements does not grow with the claims. The result is a `Later`, because the transaction need not wait
 * for tasks and validators. `known` holds those that were read before.
 */
export async function createClaims(
  tx: Transaction,
  granted: readonly Granted[],
  known: TasksByKey,
): Promise<Later<Claim[]>> {
  if (granted.length === 0) return new Later(Promise.resolve([]));
  const { now } = tx;
  const attempts = granted.map((each) => attemptOf(each, now));
  const reading = readTasks(
    tx,
    granted.map(({ row }) => row),
    known,
  );
  const claims = reading.then((tasks) => attempts.map((attempt) => claimOf(attempt, taskOf(attempt.row, tasks), now)));
  const later = new Later(claims);
  await writeAttempts(tx, attempts);
  return later;
}

interface NewAttempt extends Granted {
  readonly number: bigint;
  readonly made: Trajectory;
  readonly sums: Sums;
  readonly lease: Lease;
}

/**
 * Builds an attempt. Its trajectory is empty, or a branch at the start point (B1), and inherits run, experiment and
 * task from the rollout.
 */
function attemptOf(granted: Granted, now: string): NewAttempt {
  const { row, context, point, ids, request } = granted;
  const key = row.next_trajectory;
  const number = row.attempt + 1n;
  const time = parseInstant(now);
  const at = row.start_step ?? 0n;
  const made: Trajectory = {
    ref: { tree: point?.source.ref.tree ?? key, key },
    ...ids,
    treeId: point?.source.treeId ?? ids.id,
    parent: point && { key: point.owner.key, id: point.owner.id, branchPoint: at },
    name: `rollout ${row.group_number}/${row.number} attempt ${number}`,
    taskId: row.task_id ?? '',
    runId: context.run.id,
    experimentId: context.experiment.id,
    labels: new Map(),
    metadataJson: '',
    metrics: new Map(),
    scoredMetrics: point?.source.scoredMetrics ?? [],
    status: 'RUNNING',
    statusMessage: '',
    writerId: '',
    writerEpoch: 0n,
    nextStepNumber: point === undefined ? 0n : at + 1n,
    rewardSum: point?.sums.rewardSum ?? 0,
    branchRewardSum: undefined,
    createTime: time,
    updateTime: time,
    sealTime: undefined,
    hidden: false,
  };
  return {
    ...granted,
    number,
    made,
    sums: point?.sums ?? NO_SUMS,
    lease: beginLease(time, BigInt(request.leaseMs), row.attempt_timeout_ms ?? undefined, context.run.pauses),
  };
}

async function writeAttempts(tx: Transaction, attempts: readonly NewAttempt[]): Promise<void> {
  const { now } = tx;
  await tx.engine.bulk.insert(
    tx.db,
    TRAJECTORIES,
    attempts.map((attempt) => trajectoryRowOf(attempt, now)),
  );
  await tx.engine.bulk.insert(
    tx.db,
    ATTEMPTS,
    attempts.map((attempt) => attemptRow(attempt, now)),
  );
  await recordStatuses(tx, attempts.flatMap(movesOf));
  await tx.engine.bulk.update(
    tx.db,
    CLAIM,
    attempts.map((attempt) => claimedRow(attempt, now, tx.mark)),
  );
}

/** Returns the row of the attempt's trajectory, which has no labels. */
function trajectoryRowOf({ row, context, point, made, sums }: NewAttempt, now: string): RowOf<typeof TRAJECTORIES> {
  const { ref, parent, taskId, nextStepNumber } = made;
  return trajectoryRow(row.namespace, made, now, {
    ...ref,
    parent: parent?.key ?? null,
    branch_point: parent?.branchPoint ?? null,
    task_id: taskId,
    next_step_number: nextStepNumber,
    ...sumColumns(sums),
    depth: point === undefined ? 0n : point.owner.depth + 1n,
    run: context.run.key,
    experiment: context.experiment.key,
  });
}

function attemptRow({ row, number, made, request }: NewAttempt, now: string): RowOf<typeof ATTEMPTS> {
  return {
    rollout: row.key,
    number,
    namespace: row.namespace,
    tree: made.ref.tree,
    trajectory: made.ref.key,
    status: 'INITIALIZING',
    message: '',
    worker_id: request.workerId,
    claim_time: now,
    end_time: null,
    ...NO_ATTEMPT_VALUES,
    claimable_time: row.claimable_time,
    end_digest: '',
  };
}

/** L5: the status changes of an attempt are the creation of its trajectory and the move of its rollout. */
function movesOf({ row, made, request: { caller } }: NewAttempt): RecordedMove[] {
  const { tree, key } = made.ref;
  const creation = { ordinal: 0n, from: null, to: 'RUNNING', message: '' } as const;
  const claim = { ordinal: row.status_changes, from: 'PENDING', to: 'INITIALIZING', message: '' } as const;
  return [
    { caller, entity: { tree, noun: 'TRAJECTORY', key }, move: creation },
    { caller, entity: { tree: row.run, noun: 'ROLLOUT', key: row.key }, move: claim },
  ];
}

const CLAIM = rowUpdate(
  ROLLOUTS,
  ['key'],
  [
    'status',
    'status_message',
    'phase',
    'attempt',
    'tree',
    'trajectory',
    'worker_id',
    'claimer',
    ...LEASE_COLUMNS,
    'update_time',
    'status_changes',
    'revision',
    'mark',
  ],
);

function claimedRow(attempt: NewAttempt, now: string, mark: bigint): UpdateOf<typeof CLAIM> {
  const { row, made } = attempt;
  const { tree, key: trajectory } = made.ref;
  const status_changes = row.status_changes + 1n;
  return { key: row.key, ...claimedFields(attempt, now), tree, trajectory, status_changes, mark };
}

/** Returns the claim as a read after the commit would. */
function claimOf(attempt: NewAttempt, task: Task | undefined, now: string): Claim {
  const { row, context, made: trajectory } = attempt;
  const rollout = readRollout({
    ...NO_OVERRIDE,
    ...row,
    ...claimedFields(attempt, now),
    run_id: context.run.id,
    pauses: bindPauses(context.run.pauses),
    stage_id: context.stage.id,
    trajectory_id: trajectory.id,
    branch_point: trajectory.parent?.branchPoint ?? null,
    next_step_number: trajectory.nextStepNumber,
    last_append: null,
    own_reward: null,
  });
  const maxTurns = row.max_turns ?? task?.maxTurns ?? plannedTurns(context.run.plan, context.stage.kind);
  return { rollout, task, trajectory, maxTurns };
}

function claimedFields({ row, number, request, lease }: NewAttempt, now: string) {
  return {
    status: 'INITIALIZING',
    status_message: '',
    phase: '',
    attempt: number,
    worker_id: request.workerId,
    claimer: request.caller.actor,
    ...bindLease(lease),
    update_time: now,
    revision: row.revision + 1n,
  };
}

const NO_OVERRIDE = {
  override_ordinal: null,
  override_attempt: null,
  override_success: null,
  override_reason: null,
  override_actor: null,
  override_time: null,
} as const;

/**
 * Claims rollouts of one stage that this transaction has created, all of them, in order of key. Errors:
 * STAGE_NOT_CLAIMABLE, CLAIMS_TOO_LARGE, TRAJECTORY_NOT_FOUND and BRANCH_TOO_DEEP (start point).
 */
export async function claimCreated(
  tx: CallerTransaction,
  stage: KeptStage,
  keys: readonly bigint[],
  claim: NewClaims,
): Promise<Claim[]> {
  if (keys.length === 0) return [];
  const rows = (await lockByKey(tx, keys)).sort((a, b) => (a.key < b.key ? -1 : 1));
  const [contexts, points, tasks] = await inOneRoundTrip([
    readContexts(tx, rows),
    holdStartPoints(
      tx,
      rows.flatMap((row) => readStart(row) ?? []),
    ),
    readTasks(tx, rows),
  ]);
  const context = contexts.get(stage.key);
  if (context === undefined) throw stageNotClaimable(stage);
  const request = { ...claim, caller: tx.caller, key: undefined };
  const granted = rows.map((row, i): Granted => {
    return { row, context, point: pointOf(row, points), at: 0, request, ids: claim.trajectories[i]! };
  });
  const fitting = claim.countFitting(previewClaims(granted, tasks, tx.now));
  if (fitting < granted.length) throw claimsTooLarge(granted.length, fitting);
  return (await createClaims(tx, granted, tasks)).value;
}

/** A claim from the queue skips or fails a rollout that cannot begin. This one is refused with its creation. */
function pointOf(row: QueuedRow, points: ReadonlyMap<string, FoundPoint>): LockedStartPoint | undefined {
  const start = readStart(row);
  if (start === undefined) return undefined;
  const point = points.get(nameOf(start));
  if (point === 'missing') throw trajectoryNotFound(start.trajectoryId);
  if (point instanceof AnabranchError) throw point;
  if (point === 'busy') {
    throw new Contended(
      'DATABASE_UNAVAILABLE',
      `A deletion holds the trajectory of start point ${start.trajectoryId}. Nothing was stored. Retry the call.`,
    );
  }
  return point;
}

function stageNotClaimable({ id, status, runStatus }: KeptStage): AnabranchError {
  return new AnabranchError(
    'STAGE_NOT_CLAIMABLE',
    `Stage ${id} is ${status} and its run is ${runStatus}, so its rollouts cannot be claimed. None was created. Resume the run, and reopen what has ended, first, or create the rollouts without \`claim\`.`,
    { metadata: { stage: id, stage_status: status, run_status: runStatus } },
  );
}

function claimsTooLarge(count: number, fitting: number): AnabranchError {
  return new AnabranchError(
    'CLAIMS_TOO_LARGE',
    `The claims of ${count} rollouts, with their tasks and validators, do not fit into one response. None was created. Create at most ${fitting} rollouts in a call with \`claim\`.`,
    { metadata: { rollouts: `${fitting}` } },
  );
}
