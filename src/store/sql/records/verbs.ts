import type { Caller } from '../../../domain/caller.ts';
import type { Hint } from '../../../domain/change.ts';
import { decideMove, type Noun, type Status, type VerbOf } from '../../../domain/lifecycle.ts';
import type { MoveDetails } from '../../contract/run.ts';
import { messageOfEnd, type StatusEntity, type StatusRow } from '../kit/status/status_changes.ts';
import { type CallerTransaction, writeAs } from '../kit/transaction.ts';
import type { StatesEngine } from '../log/engine.ts';
import { type Cancelled, markRollouts, unmarkRollouts } from './rollout/cancellation.ts';

/** A verb as it is called. */
export interface Move<N extends Noun> {
  readonly verb: VerbOf<N>;
  readonly details: MoveDetails;
  /** For Cancel: requests the cancellation of the rollouts. Reopen withdraws the request. */
  readonly cancelRollouts?: boolean;
}

/** How verbs are applied to one noun: runs or stages. */
export interface Movable<N extends Noun, Row extends StatusRow, Of extends Move<N>, Resource> {
  readonly noun: N;
  /** Locks the row for the verb. Errors: not found. */
  lock(tx: CallerTransaction, id: string, verb: Of['verb']): Promise<Row>;
  entityOf(row: Row): StatusEntity;
  /** The rollouts that Cancel can cancel. */
  rolloutsOf(row: Row): Cancelled;
  /**
   * Moves the locked row and records its StatusChange. `to` is undefined if the verb is already in effect. Returns the
   * hints to announce; none if nothing changed.
   */
  apply(tx: CallerTransaction<StatesEngine>, row: Row, to: Status | undefined, move: Of): Promise<readonly Hint[]>;
  /** Reads the resource, whose row is locked. */
  read(tx: CallerTransaction, row: Row): Promise<Resource | undefined>;
}

/** L2, L5: applies a verb. Writes no StatusChange if the verb is already in effect. */
export async function applyVerb<N extends Noun, Row extends StatusRow, Of extends Move<N>, Resource>(
  engine: StatesEngine,
  caller: Caller,
  id: string,
  of: Movable<N, Row, Of, Resource>,
  move: Of,
): Promise<Resource> {
  const { verb, details } = move;
  const { moved, changed } = await writeAs(engine, caller, async (tx) => {
    const row = await of.lock(tx, id, verb);
    const stored = { message: await messageOfEnd(tx, of.entityOf(row), row), resultJson: row.result_json ?? '' };
    const to = decideMove(of.noun, row.status as Status, stored, verb, details);
    if (verb === 'cancel' && move.cancelRollouts === true) await markRollouts(tx, of.rolloutsOf(row), details);
    if (verb === 'reopen') await unmarkRollouts(tx, of.rolloutsOf(row));
    const hints = await of.apply(tx, row, to, move);
    const after = await of.read(tx, row);
    if (after === undefined) throw new Error(`the ${of.noun} that this transaction has locked is missing`);
    return { moved: after, changed: hints };
  });
  engine.changes.announce(changed);
  return moved;
}
