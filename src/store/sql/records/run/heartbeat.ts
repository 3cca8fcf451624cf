import { sql } from 'kysely';
import { parseInstant } from '../../../../domain/instant.ts';
import type { Status } from '../../../../domain/lifecycle.ts';
import type { Heartbeat } from '../../../contract/run.ts';
import type { Engine } from '../../kit/engine.ts';
import { type Transaction, write, writeIn } from '../../kit/transaction.ts';
import { type EndedRun, lockMains, moveLockedRun, sealMains } from './moves.ts';
import { heartbeatAt, type LockedRun, lockRun, selectToWrite, writeRun } from './writing.ts';

/** Accepted in every status, so that a worker learns of a pause or an end. */
export async function heartbeatRun(engine: Engine, namespace: string, id: string): Promise<Heartbeat> {
  const { row, now } = await writeIn(engine, namespace, async (tx) => {
    const locked = await lockRun(tx, id);
    const time = await tx.readNow();
    await writeRun(tx, locked.key, heartbeatAt(time, locked.heartbeat_timeout_ms));
    return { row: locked, now: time };
  });
  engine.changes.announce([row.key]);
  return { status: row.status as Status, statusMessage: row.status_message, heartbeatTime: parseInstant(now) };
}

/** Actor of the status changes of stale runs. */
const SWEEPER = 'anabranch';

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
      const caller = { namespace: row.namespace, actor: SWEEPER };
      const message = silenceOf(row, now);
      const details = { message, metadataJson: '', phase: undefined, resultJson: '' };
      await moveLockedRun(tx.as(caller), row, 'FAILED', details);
      ended.push({ caller, row, status: 'FAILED', message });
    }
    const sealed = await sealMains(tx, mains, ended);
    return { runs: stale.map(({ key }) => key), sealed };
  });
  engine.changes.announce([...failed.runs, ...failed.sealed]);
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
