import type { Caller } from '../../../../domain/caller.ts';
import { isTerminal, type StageVerb, type Status } from '../../../../domain/lifecycle.ts';
import type { Stage } from '../../../../domain/run.ts';
import type { MoveDetails } from '../../../contract/run.ts';
import type { Engine } from '../../kit/engine.ts';
import { movedColumns, statusMove } from '../../kit/status/moved_status.ts';
import { recordStatus, type StatusEntity } from '../../kit/status/status_changes.ts';
import { type CallerTransaction, writeIn } from '../../kit/transaction.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { applyVerb, type Movable, type Move } from '../verbs.ts';
import { findStage } from './rows.ts';
import { endOfStage, type LockedStage, lockStage, writeStage } from './writing.ts';

export function moveStage(engine: StatesEngine, caller: Caller, id: string, move: StageMove): Promise<Stage> {
  return applyVerb(engine, caller, id, STAGES, move);
}

type StageMove = Move<'stage'>;

const STAGES: Movable<'stage', LockedStage, StageMove, Stage> = {
  noun: 'stage',
  lock: (tx, id, verb) => lockStage(tx, id, CLOSING.has(verb) ? 'delete' : 'write'),
  entityOf,
  rolloutsOf: ({ run, key }) => ({ run, stage: key }),
  /** A reopening of a RUNNING stage opens its closed queue. */
  async apply(tx, row, to, { verb, details }) {
    const opens = to === undefined && verb === 'reopen' && row.queue_close_time !== null;
    if (to === undefined && !opens) return [];
    await tx.readNow();
    if (to === undefined) await writeStage(tx, row.key, { queue_close_time: null });
    else await moveLocked(tx, row, to, details);
    return [row.run];
  },
  read: (tx, { id }) => findStage(tx, { id }),
};

const CLOSING: ReadonlySet<StageVerb> = new Set(['complete', 'fail', 'cancel']);

/** Closes the queue of a stage if it is open. After the commit, no transaction creates a rollout in the stage. */
export async function closeQueue(engine: Engine, namespace: string, id: string): Promise<Stage> {
  const { stage, closed } = await writeIn(engine, namespace, async (tx) => {
    const row = await lockStage(tx, id, 'delete');
    const closes = row.queue_close_time === null;
    if (closes) {
      await writeStage(tx, row.key, { queue_close_time: await tx.readNow() });
    }
    const after = await findStage(tx, { id });
    if (after === undefined) throw new Error('a stage locked in this transaction is missing');
    return { stage: after, closed: closes };
  });
  if (closed) engine.changes.announce([stage.run.key]);
  return stage;
}

/** The transaction has read the time. */
async function moveLocked(tx: CallerTransaction, row: LockedStage, to: Status, details: MoveDetails): Promise<void> {
  const { now } = tx;
  const begins = to === 'RUNNING';
  const look = () => endOfStage(tx, row);
  // Progress counts only stages that are not terminal as open, so it is computed before the move.
  const end = to === 'FAILED' || to === 'CANCELLED' ? await look() : undefined;
  await writeStage(tx, row.key, {
    ...movedColumns(row, to, details, now),
    end_expected_turns: end?.expectedTurns ?? null,
    end_expected_substeps: end?.expectedSubsteps ?? null,
    end_share: end?.share ?? null,
    queue_close_time: queueCloseTime(row, to, now),
    // The time that it stood still is nobody's.
    ...(begins && row.substeps_time !== null ? { substeps_time: now } : {}),
  });
  const share = to === 'COMPLETED' ? 1 : (end ?? (await look())).share;
  const percent = share === undefined ? undefined : share * 100;
  await recordStatus(tx, entityOf(row), statusMove(row, to, details, percent));
}

/** A terminal stage has a closed queue, and a reopened stage an open one. */
function queueCloseTime({ status, queue_close_time }: LockedStage, to: Status, now: string): string | null {
  if (isTerminal(to)) return queue_close_time ?? now;
  return isTerminal(status as Status) ? null : queue_close_time;
}

function entityOf({ run, key }: LockedStage): StatusEntity {
  return { tree: run, noun: 'STAGE', key };
}
