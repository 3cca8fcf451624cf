import { sql } from 'kysely';
import { chunksOf } from '../../kit/statement_shapes.ts';
import type { Transaction } from '../../kit/transaction.ts';

/** Counters of a group's rollouts (M2), so that progress need not read terminal rollouts. */
export interface GroupCount extends TimedTurns {
  readonly rollouts: bigint;
  readonly terminalRollouts: bigint;
  /** Terminal rollouts that had an attempt. */
  readonly triedRollouts: bigint;
  readonly terminalTurns: bigint;
}

/** Number of turns with a known duration, and the sum of their durations. */
export interface TimedTurns {
  readonly timedTurns: bigint;
  readonly turnSeconds: number;
}

/**
 * Adds to the counters of groups, by row key; negative numbers subtract. Groups are locked in order of key. A
 * transaction locks no rollouts of others afterwards, so that it does not deadlock. The caller announces the run.
 */
export async function countInGroups(tx: Transaction, counts: ReadonlyMap<bigint, Partial<GroupCount>>): Promise<void> {
  const { engine } = tx;
  if (counts.size === 0) return;
  const mark = await tx.readMark();
  const keys = [...counts.keys()].sort((a, b) => (a < b ? -1 : 1));
  for (const chunk of chunksOf(keys)) {
    if (chunk.length > 1) await lockGroups(tx, chunk);
    const rows = chunk.map((key) => valuesOf(key, counts.get(key) ?? {}));
    // Postgres needs the casts, because a CTE of values has no types.
    await sql`with c (key, rollouts, terminal_rollouts, tried_rollouts, terminal_turns, timed_turns, turn_seconds) as (values ${sql.join(rows)})
      update ${engine.table('groups')} as g set rollouts = g.rollouts + c.rollouts, terminal_rollouts = g.terminal_rollouts + c.terminal_rollouts,
        tried_rollouts = g.tried_rollouts + c.tried_rollouts,
        terminal_turns = g.terminal_turns + c.terminal_turns, timed_turns = g.timed_turns + c.timed_turns,
        turn_seconds = g.turn_seconds + c.turn_seconds, revision = g.revision + 1, mark = ${mark}, update_time = ${tx.now}
      from c where g.key = c.key`.execute(tx.db);
  }
}

/** Locks groups for writing, in order of key. */
export async function lockGroups({ engine, db }: Transaction, keys: readonly bigint[]): Promise<void> {
  if (keys.length === 0) return;
  const rows = db
    .selectFrom('groups')
    .select('key')
    .where(engine.among(sql.ref('key'), keys))
    .orderBy('key');
  await engine.locks.rows(rows, 'write').execute();
}

function valuesOf(key: bigint, count: Partial<GroupCount>) {
  const { rollouts = 0n, terminalRollouts = 0n, triedRollouts = 0n, terminalTurns = 0n } = count;
  const { timedTurns = 0n, turnSeconds = 0 } = count;
  const whole = [key, rollouts, terminalRollouts, triedRollouts, terminalTurns, timedTurns].map(
    (value) => sql`cast(${value} as bigint)`,
  );
  return sql`(${sql.join(whole)}, cast(${turnSeconds} as double precision))`;
}
