import type { Caller } from '../../domain/caller.ts';
import type { Status } from '../../domain/lifecycle.ts';
import type { StatusOwner } from '../contract/status_change.ts';
import type { Tx } from './engine.ts';

/** Whose status: its noun, its row key, and the tree that its history stands under: a trajectory's own; of a run and its stages the run's key. */
export interface StatusEntity {
  readonly tree: bigint;
  readonly noun: StatusOwner['noun'];
  readonly key: bigint;
}

export interface StatusMove {
  /** How many changes there were before. */
  readonly ordinal: bigint;
  readonly from: Status | null;
  readonly to: Status;
  readonly message: string;
  readonly phase?: string;
  readonly metadataJson?: string;
  /** Undefined: not known. */
  readonly progressPercent?: number | undefined;
}

/** L5: every move of a status is written down in its own transaction; the creation is the first. */
export async function recordStatus(
  tx: Tx,
  caller: Caller,
  entity: StatusEntity,
  now: string,
  move: StatusMove,
): Promise<void> {
  await tx
    .insertInto('status_changes')
    .values({
      tree: entity.tree,
      entity_kind: entity.noun,
      entity: entity.key,
      ordinal: move.ordinal,
      namespace: caller.namespace,
      old_status: move.from,
      new_status: move.to,
      phase: move.phase ?? '',
      message: move.message,
      metadata_json: move.metadataJson ?? '',
      actor: caller.actor,
      progress_percent: move.progressPercent ?? null,
      change_time: now,
    })
    .execute();
}
