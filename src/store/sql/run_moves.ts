import type { Caller } from '../../domain/caller.ts';
import { decideMove, isTerminal, type Status, type Verb } from '../../domain/lifecycle.ts';
import { progressOf } from '../../domain/progress.ts';
import type { Run } from '../../domain/run.ts';
import type { Said } from '../contract/run.ts';
import type { Engine, Tx } from './engine.ts';
import { findRun } from './run_rows.ts';
import { readPlan } from './run_values.ts';
import { beat, type LockedRun, lockRun, writeRun } from './run_writing.ts';
import { messageOfEnd, recordStatus, type StatusEntity } from './status_changes.ts';
import { tallyRuns } from './tallies.ts';
import { readNow } from './trajectory_rows.ts';
import { isSet } from './values.ts';

/** L2, L5: a verb moves the run's status, or finds it in effect already and writes nothing. */
export async function moveRun(engine: Engine, caller: Caller, id: string, verb: Verb, said: Said): Promise<Run> {
  const { run, moved } = await engine.write(async (tx) => {
    const row = await lockRun(engine, tx, caller.namespace, id);
    const stored = { message: await messageOfEnd(tx, entityOf(row), row), resultJson: row.result_json };
    const to = decideMove('run', row.status as Status, stored, verb, said);
    if (to !== undefined) await moveLocked(engine, tx, caller, row, await readNow(tx, engine.now), to, said);
    const after = await findRun(engine, tx, caller.namespace, row);
    if (after === undefined) throw new Error('a run locked in this transaction is not there');
    return { run: after, moved: to !== undefined };
  });
  if (moved) engine.announce([run.key]);
  return run;
}

/** Moves a run whose row is locked to a status that it may move to, with its StatusChange. */
export async function moveLocked(
  engine: Engine,
  tx: Tx,
  caller: Caller,
  row: LockedRun,
  now: string,
  to: Status,
  said: Said,
): Promise<void> {
  const begins = to === 'RUNNING';
  const phase = said.phase ?? row.phase;
  await writeRun(engine, tx, row.key, now, {
    status: to,
    status_message: said.message,
    phase,
    // What came out is of the end: a run that goes on has nothing yet.
    result_json: isTerminal(to) ? said.resultJson : '',
    start_time: row.start_time ?? (begins ? now : null),
    end_time: isTerminal(to) ? now : null,
    status_changes: row.status_changes + 1n,
    ...(begins && isSet(row.fail_when_stale) ? beat(now, row.heartbeat_timeout_ms) : {}),
  });
  await recordStatus(engine, tx, caller, entityOf(row), now, {
    ordinal: row.status_changes,
    from: row.status as Status,
    to,
    message: said.message,
    phase,
    metadataJson: said.metadataJson,
    progressPercent: await percentOf(engine, tx, row, to),
  });
}

function entityOf({ key }: LockedRun): StatusEntity {
  return { tree: key, noun: 'RUN', key };
}

/** L5: how far the run is at that time (M2). */
async function percentOf(engine: Engine, tx: Tx, row: LockedRun, status: Status): Promise<number | undefined> {
  const tallies = await tallyRuns(engine, tx, row.namespace, [row.key]);
  const tally = tallies.get(row.key);
  return tally === undefined ? undefined : progressOf(status, readPlan(row.plan), tally).percent;
}
