import { sql } from 'kysely';
import type { Caller } from '../../../../domain/caller.ts';
import { runHint, trajectoryHint } from '../../../../domain/change.ts';
import { runNotFound } from '../../../../domain/errors.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import { pausesAfter } from '../../../../domain/lease.ts';
import { isSealed, isTerminal, type SealStatus, type Status } from '../../../../domain/lifecycle.ts';
import { progressOf } from '../../../../domain/progress.ts';
import type { Run } from '../../../../domain/run.ts';
import type { Heartbeat, MoveDetails, RunMove } from '../../../contract/run.ts';
import type { Engine, LockedHead } from '../../kit/engine.ts';
import {
  movedColumns,
  recordStatus,
  type StatusEntity,
  serverIn,
  statusMove,
} from '../../kit/status/status_changes.ts';
import {
  type CallerTransaction,
  type NamespaceTransaction,
  type Transaction,
  write,
  writeIn,
} from '../../kit/transaction.ts';
import { isSet } from '../../kit/values.ts';
import { stillThere } from '../../log/append/append.ts';
import { inLockOrder } from '../../log/append/heads.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { makeBranch, makeRoot } from '../../log/trajectory/create.ts';
import { findByKey } from '../../log/trajectory/rows.ts';
import { sealHeads } from '../../log/trajectory/sealing.ts';
import { WHOLE_RUN } from '../rollout/cancellation.ts';
import { applyVerb, type Movable } from '../verbs.ts';
import { writeWatched } from '../watched_row.ts';
import { bindPauses, findRun, readPauses, readPlan } from './rows.ts';
import { tallyRuns } from './tallies.ts';

/**
 * Locks are taken in the order run, trajectory. The main trajectory is sealed when the run ends, and replaced if a
 * reopened run finds it sealed.
 */
export function moveRun(engine: StatesEngine, caller: Caller, id: string, move: RunMove): Promise<Run> {
  return applyVerb(engine, caller, id, RUNS, move);
}

const RUNS: Movable<'run', LockedRun, RunMove, Run> = {
  noun: 'run',
  lock: lockRun,
  entityOf,
  rolloutsOf: ({ key }) => ({ run: key, stage: WHOLE_RUN }),
  async apply(tx, row, to, move) {
    if (to === undefined) return [];
    const seals = isTerminal(to) && !move.keepTrajectoryOpen;
    const mains = await lockMains(tx, seals || move.verb === 'reopen' ? [row] : [], 'bounded');
    // Read under the locks, so that no step of the trajectory has a later commit time.
    await tx.readNow();
    const [main] = mains.heads;
    if (move.verb === 'reopen' && main !== undefined) await replaceSealedMain(tx, row, main, move);
    await moveLockedRun(tx, row, to, move.details);
    if (!seals) return [runHint(row.key)];
    const ended = { caller: tx.caller, row, status: to, message: move.details.message };
    return [runHint(row.key), ...(await sealMains(tx, mains, [ended])).map(trajectoryHint)];
  },
  read: findRun,
};

/** A run that has ended in this transaction. */
interface EndedRun {
  readonly caller: Caller;
  readonly row: LockedRun;
  readonly status: SealStatus;
  readonly message: string;
}

/** Locked main trajectories of runs. */
interface LockedMains {
  /** Deleted trajectories are omitted. */
  readonly heads: readonly LockedHead[];
  /** Keys of trajectories that other transactions hold; empty unless `never` was requested. */
  readonly held: ReadonlySet<bigint>;
}

/**
 * Locks the main trajectories of locked runs, in the lock order of appends. With `never`, omits those that other
 * transactions hold.
 */
async function lockMains(tx: Transaction, rows: readonly LockedRun[], wait: 'never' | 'bounded'): Promise<LockedMains> {
  const refs = rows.flatMap(({ main_tree: tree, main_trajectory: key }) =>
    tree === null || key === null ? [] : [{ tree, key }],
  );
  if (refs.length === 0) return { heads: [], held: new Set() };
  const heads = await tx.lockHeads(refs.sort(inLockOrder), wait);
  const held = heads.length < refs.length ? await stillThere(tx, refs, heads) : new Set<bigint>();
  return { heads: heads.filter(({ hidden }) => !hidden), held };
}

/** Seals the open main trajectories of runs. Returns their keys. */
async function sealMains(tx: Transaction, { heads }: LockedMains, ended: readonly EndedRun[]): Promise<bigint[]> {
  const runs = new Map(ended.map((each) => [each.row.main_trajectory, each]));
  const seals = heads.flatMap((head) => {
    const run = runs.get(head.key);
    return run === undefined || isSealed(head.status) ? [] : [{ ...run, head }];
  });
  await sealHeads(tx, seals);
  return seals.map(({ head }) => head.key);
}

/**
 * A sealed trajectory accepts no steps. A reopened run continues in a branch at its last step, or in a new trajectory
 * if it has no step. A deleted main trajectory is not replaced.
 */
async function replaceSealedMain(
  tx: CallerTransaction<StatesEngine>,
  row: LockedRun,
  locked: LockedHead,
  { trajectoryId: id, trajectoryUid: uid }: RunMove,
): Promise<void> {
  if (!isSealed(locked.status)) return;
  const main = await findByKey(tx, locked.tree, locked.key);
  if (main === undefined) return;
  const trajectory = { id, uid, name: main.name, labels: main.labels, metadataJson: '' };
  const belonging = { run: row.key, experiment: row.experiment };
  const root = { ...trajectory, taskId: main.taskId, root: undefined };
  const ref =
    main.nextStepNumber === 0n
      ? await makeRoot(tx, root, [], belonging)
      : await makeBranch(tx, main, main.nextStepNumber - 1n, trajectory, belonging);
  await tx.db
    .updateTable('runs')
    .set({ main_tree: ref.tree, main_trajectory: ref.key })
    .where('key', '=', row.key)
    .execute();
}

/** Moves a locked run to an allowed status, and records its StatusChange. The transaction has read the time. */
async function moveLockedRun(tx: CallerTransaction, row: LockedRun, to: Status, details: MoveDetails): Promise<void> {
  const { now } = tx;
  const begins = to === 'RUNNING';
  await writeWatched(tx, 'runs', row.key, {
    ...movedColumns(row, to, details, now),
    // Only an ended run has a result.
    result_json: isTerminal(to) ? details.resultJson : '',
    pauses: bindPauses(pausesAfter(readPauses(row.pauses), row.status as Status, to, parseInstant(now))),
    ...(begins && isSet(row.fail_when_stale) ? heartbeatAt(now, row.heartbeat_timeout_ms) : {}),
  });
  await recordStatus(tx, entityOf(row), statusMove(row, to, details, await percentOf(tx, row, to)));
}

function entityOf({ key }: LockedRun): StatusEntity {
  return { tree: key, noun: 'RUN', key };
}

/** L5: returns the progress of the run at that time (M2). */
async function percentOf(tx: Transaction, row: LockedRun, status: Status): Promise<number | undefined> {
  const tallies = await tallyRuns(tx.in(row.namespace), [row.key]);
  const tally = tallies.get(row.key);
  return tally === undefined ? undefined : progressOf(status, readPlan(row.plan), tally).percent;
}

/** Accepted in every status, so that a worker learns of a pause or an end. */
export async function heartbeatRun(engine: Engine, namespace: string, id: string): Promise<Heartbeat> {
  const { row, now } = await writeIn(engine, namespace, async (tx) => {
    const locked = await lockRun(tx, id);
    const time = await tx.readNow();
    await writeWatched(tx, 'runs', locked.key, heartbeatAt(time, locked.heartbeat_timeout_ms));
    return { row: locked, now: time };
  });
  engine.changes.announce([runHint(row.key)]);
  return { status: row.status as Status, statusMessage: row.status_message, heartbeatTime: parseInstant(now) };
}

/**
 * Fails runs with `fail_when_stale` whose heartbeats have stopped, and seals their main trajectories. Rows that other
 * transactions hold are left to the next sweep.
 */
export async function failStaleRuns(engine: Engine, limit: number): Promise<number> {
  const failed = await write(engine, async (tx) => {
    await tx.readNow();
    const found = await lockStale(tx, limit);
    const mains = await lockMains(tx, found, 'never');
    const stale = found.filter(({ main_trajectory: main }) => main === null || !mains.held.has(main));
    const now = await tx.readNow();
    const ended: EndedRun[] = [];
    for (const row of stale) {
      const caller = serverIn(row.namespace);
      const message = silenceOf(row, now);
      const details = { message, metadataJson: '', phase: undefined, resultJson: '' };
      await moveLockedRun(tx.as(caller), row, 'FAILED', details);
      ended.push({ caller, row, status: 'FAILED', message });
    }
    const sealed = await sealMains(tx, mains, ended);
    return { runs: stale.map(({ key }) => key), sealed };
  });
  engine.changes.announce([...failed.runs.map(runHint), ...failed.sealed.map(trajectoryHint)]);
  return failed.runs.length;
}

async function lockStale(tx: Transaction, limit: number): Promise<LockedRun[]> {
  const query = selectToWrite(tx)
    // Matches the condition of the index of stale runs literally.
    .where(sql<boolean>`r.fail_when_stale and r.status in ('INITIALIZING', 'RUNNING')`)
    .where('r.stale_time', '<', tx.now)
    .orderBy('r.stale_time')
    .limit(limit);
  return tx.engine.locks.freeRows(query, 'write').execute();
}

function silenceOf({ heartbeat_time }: LockedRun, now: string): string {
  const since = parseInstant(now) - parseInstant(heartbeat_time ?? now);
  return `no heartbeat for ${since / 1_000_000_000n} s`;
}

export type LockedRun = Awaited<ReturnType<ReturnType<typeof selectToWrite>['executeTakeFirstOrThrow']>>;

/** Selects the columns of a run (`r`) that writes depend on. */
function selectToWrite(tx: Transaction) {
  return tx.db
    .selectFrom('runs as r')
    .select([
      'r.key',
      'r.namespace',
      'r.id',
      'r.name',
      'r.experiment',
      'r.plan',
      'r.main_tree',
      'r.main_trajectory',
      'r.status',
      'r.status_message',
      'r.phase',
      'r.metrics',
      'r.result_json',
      'r.pauses',
      'r.heartbeat_timeout_ms',
      'r.fail_when_stale',
      'r.heartbeat_time',
      'r.start_time',
      'r.status_changes',
    ])
    .where(sql<boolean>`not r.hidden`);
}

/** Locks a run's row for writing. Errors: RUN_NOT_FOUND. */
export async function lockRun(tx: NamespaceTransaction, id: string): Promise<LockedRun> {
  const query = selectToWrite(tx).where('r.namespace', '=', tx.namespace).where('r.id', '=', id);
  const row = await tx.engine.locks.rows(query, 'write').executeTakeFirst();
  if (row === undefined) throw runNotFound(id);
  return row;
}

/** Columns of a heartbeat at `now`. The run is stale after `timeoutMs` without another one. */
export function heartbeatAt(now: string, timeoutMs: number | bigint) {
  return { heartbeat_time: now, stale_time: formatInstant(parseInstant(now) + BigInt(timeoutMs) * 1_000_000n, 6) };
}
