import {
  decideOpen,
  fencesAnother,
  type OpenRequest,
  requirePosition,
  requireWritable,
  trajectoryLocked,
} from '../../../../domain/append.ts';
import type { Caller } from '../../../../domain/caller.ts';
import type { Grant } from '../../../contract/append.ts';
import type { TrajectoryCreation } from '../../../contract/trajectory.ts';
import type { LockedHead } from '../../kit/engine.ts';
import { type CallerTransaction, type Transaction, writeAs } from '../../kit/transaction.ts';
import { againWhenRaced } from '../../kit/unique_violation.ts';
import type { AppendsEngine } from '../engine.ts';
import type { EncodedState } from '../states/bytes.ts';
import { createMissing, encodeInline } from '../trajectory/creation.ts';
import { findById, findByKey } from '../trajectory/rows.ts';
import { headOfEmptyRoot } from './heads.ts';

/** Time that an open waits for a row lock, in milliseconds. */
const OPEN_WAIT_MS = 3000;
/** Upper bound of the pause between two attempts to lock the row, in milliseconds. */
const LONGEST_REST_MS = 200;

/**
 * Opens a trajectory for appends, after creating it if it is missing and `create` is given. Pauses between attempts
 * hold no connection, so that many waiting opens do not block other calls.
 */
export async function openForAppend(
  engine: AppendsEngine,
  caller: Caller,
  open: OpenRequest,
  create?: TrajectoryCreation,
): Promise<Grant> {
  const inline = create === undefined ? [] : await encodeInline(create.making);
  const end = performance.now() + OPEN_WAIT_MS;
  for (let rest = 5; ; rest = Math.min(2 * rest, LONGEST_REST_MS)) {
    const granted = await againWhenRaced(() =>
      writeAs(engine, caller, async (tx) => {
        const created = create && (await createAndGrant(tx, open, create, inline));
        return created ?? tryToGrant(tx, open);
      }),
    );
    if (granted !== undefined) return granted;
    if (performance.now() >= end) throw trajectoryLocked(open.trajectoryId, OPEN_WAIT_MS);
    await new Promise((resolve) => setTimeout(resolve, rest * (0.5 + Math.random())));
  }
}

/** Returns undefined if the trajectory exists. */
async function createAndGrant(
  tx: CallerTransaction<AppendsEngine>,
  open: OpenRequest,
  create: TrajectoryCreation,
  inline: readonly EncodedState[],
): Promise<Grant | undefined> {
  const trajectory = await createMissing(tx, create, inline, {
    writer: { id: open.writerId, actor: tx.caller.actor },
  });
  if (trajectory === undefined) return undefined;
  requirePosition(trajectory, open);
  if (trajectory.nextStepNumber === 0n) learnAfterCommit(tx, headOfEmptyRoot(tx.caller, trajectory));
  return { trajectory, epoch: trajectory.writerEpoch, tookOver: false };
}

/** Caches the row for the first append. */
function learnAfterCommit({ engine, afterCommit }: Transaction<AppendsEngine>, locked: LockedHead): void {
  afterCommit(() => engine.known.learnLocked(locked));
}

/** Returns undefined if another transaction holds the row. */
async function tryToGrant(tx: CallerTransaction<AppendsEngine>, open: OpenRequest): Promise<Grant | undefined> {
  const found = await findById(tx, open.trajectoryId);
  const { ref } = requireWritable(found, open.trajectoryId, open.uid);
  const [locked] = await tx.lockHeads([ref], 'never');
  if (locked === undefined) return undefined;
  const row = await findByKey(tx, ref.tree, ref.key);
  const epoch = decideOpen(row, open);
  const { actor } = tx.caller;
  await tx.db
    .updateTable('trajectories')
    .set({ writer_id: open.writerId, writer_epoch: epoch, writer_actor: actor })
    .where('tree', '=', ref.tree)
    .where('key', '=', ref.key)
    .execute();
  const trajectory = requireWritable(row, open.trajectoryId, open.uid);
  const writer = { writerId: open.writerId, writerEpoch: epoch };
  learnAfterCommit(tx, { ...locked, ...writer, writerActor: actor });
  return { trajectory: { ...trajectory, ...writer }, epoch, tookOver: fencesAnother(locked, actor) };
}
