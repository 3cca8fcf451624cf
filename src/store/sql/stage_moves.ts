import type { Caller } from '../../domain/caller.ts';
import { decideMove, isTerminal, type Status, type Verb } from '../../domain/lifecycle.ts';
import type { Stage } from '../../domain/run.ts';
import type { Said } from '../contract/run.ts';
import type { Engine, Tx } from './engine.ts';
import { findStage } from './stage_rows.ts';
import { endOfStage, type LockedStage, lockStage, writeStage } from './stage_writing.ts';
import { messageOfEnd, recordStatus, type StatusEntity } from './status_changes.ts';
import { readNow } from './trajectory_rows.ts';

/** L2, L5: a verb moves the stage's status, or finds it in effect already and writes nothing. */
export async function moveStage(engine: Engine, caller: Caller, id: string, verb: Verb, said: Said): Promise<Stage> {
  const { stage, moved } = await engine.write(async (tx) => {
    const row = await lockStage(engine, tx, caller.namespace, id);
    const stored = { message: await messageOfEnd(tx, entityOf(row), row), resultJson: '' };
    const to = decideMove('stage', row.status as Status, stored, verb, said);
    if (to !== undefined) await moveLocked(engine, tx, caller, row, to, said);
    const after = await findStage(tx, caller.namespace, { id });
    if (after === undefined) throw new Error('a stage locked in this transaction is not there');
    return { stage: after, moved: to !== undefined };
  });
  if (moved) engine.announce([stage.run.key]);
  return stage;
}

async function moveLocked(
  engine: Engine,
  tx: Tx,
  caller: Caller,
  row: LockedStage,
  to: Status,
  said: Said,
): Promise<void> {
  const now = await readNow(tx, engine.now);
  const begins = to === 'RUNNING';
  const look = () => endOfStage(engine, tx, caller.namespace, row);
  // A stage that is terminal is not counted as open: it is looked at before the move.
  const end = to === 'FAILED' || to === 'CANCELLED' ? await look() : undefined;
  const phase = said.phase ?? row.phase;
  await writeStage(engine, tx, row.key, now, {
    status: to,
    status_message: said.message,
    phase,
    start_time: row.start_time ?? (begins ? now : null),
    end_time: isTerminal(to) ? now : null,
    end_expected_turns: end?.expectedTurns ?? null,
    end_expected_substeps: end?.expectedSubsteps ?? null,
    end_share: end?.share ?? null,
    status_changes: row.status_changes + 1n,
    // The time that it stood still is nobody's.
    ...(begins && row.substeps_time !== null ? { substeps_time: now } : {}),
  });
  const share = to === 'COMPLETED' ? 1 : (end ?? (await look())).share;
  await recordStatus(engine, tx, caller, entityOf(row), now, {
    ordinal: row.status_changes,
    from: row.status as Status,
    to,
    message: said.message,
    phase,
    metadataJson: said.metadataJson,
    progressPercent: share === undefined ? undefined : share * 100,
  });
}

function entityOf({ run, key }: LockedStage): StatusEntity {
  return { tree: run, noun: 'STAGE', key };
}
