import type { Caller } from '../../domain/caller.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';
import type { Tx } from './engine.ts';

export interface StatusMove {
  readonly ordinal: bigint;
  readonly from: Status | null;
  readonly to: Status;
  readonly message: string;
}

/** L5: every move of a status is written down in its own transaction; the creation is the first. */
export async function recordStatus(
  tx: Tx,
  caller: Caller,
  trajectory: TrajectoryRef,
  now: string,
  move: StatusMove,
): Promise<void> {
  await tx
    .insertInto('status_changes')
    .values({
      tree: trajectory.tree,
      entity_kind: 'TRAJECTORY',
      entity: trajectory.key,
      ordinal: move.ordinal,
      namespace: caller.namespace,
      old_status: move.from,
      new_status: move.to,
      phase: '',
      message: move.message,
      metadata_json: '',
      actor: caller.actor,
      progress_percent: null,
      change_time: now,
    })
    .execute();
}
