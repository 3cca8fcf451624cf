import { sql } from 'kysely';
import { parseInstant } from '../../../../domain/instant.ts';
import type { AttachedState } from '../../../../domain/step.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Db } from '../../kit/engine.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { readDigest, readOptionalTime } from '../../kit/values.ts';

/** A state that was attached to a step (W10), as its row of `attached_states` has it. */
export interface Attachment {
  readonly stepNumber: bigint;
  readonly state: AttachedState;
}

/** Reads the rows of `attached_states` of own steps [from, to) of a trajectory. */
export async function readAttachments(
  db: Db,
  { tree, key }: TrajectoryRef,
  { from, to }: { readonly from: bigint; readonly to: bigint },
): Promise<Attachment[]> {
  const rows = await db
    .selectFrom('attached_states')
    .select(['step_number', 'name', 'digest', 'media_type', 'size', 'data', 'pruned_time', 'attach_time'])
    .where('tree', '=', tree)
    .where('trajectory', '=', key)
    .where('step_number', '>=', from)
    .where('step_number', '<', to)
    .orderBy('step_number')
    .orderBy('name')
    .execute();
  return rows.map(({ step_number: stepNumber, name, digest, media_type: mediaType, size, data, ...times }) => {
    const [prunedTime, attachTime] = [readOptionalTime(times.pruned_time), parseInstant(times.attach_time)];
    const state = { name, digest: readDigest(digest), mediaType, size: Number(size), prunedTime, attachTime };
    return { stepNumber, state: data === null ? state : { ...state, data } };
  });
}

/** Whether no state was attached, pruned or attached again between two readings. */
export function sameAttachments(some: readonly Attachment[], others: readonly Attachment[]): boolean {
  const isSame = ({ stepNumber, state }: Attachment, i: number) => {
    const other = others[i]!;
    return (
      other.stepNumber === stepNumber &&
      other.state.name === state.name &&
      other.state.attachTime === state.attachTime &&
      other.state.prunedTime === state.prunedTime
    );
  };
  return some.length === others.length && some.every(isSame);
}

export async function deleteAttachments(
  tx: Transaction,
  { tree, key }: TrajectoryRef,
  attached: readonly Attachment[],
): Promise<void> {
  for (const [name, some] of Map.groupBy(attached, ({ state }) => state.name)) {
    const numbers = some.map(({ stepNumber }) => stepNumber);
    await tx.db
      .deleteFrom('attached_states')
      .where('tree', '=', tree)
      .where('trajectory', '=', key)
      .where(tx.engine.sql.among(sql.ref('step_number'), numbers))
      .where('name', '=', name)
      .execute();
  }
}
