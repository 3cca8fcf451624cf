import { type RawBuilder, type SqlBool, sql } from 'kysely';
import { MOST_COUNTED, type WorkCounts } from '../../contract/load.ts';
import type { Engine } from '../kit/engine.ts';

/** Counts rollouts by their partial indexes, up to a bound. */
export async function countWork(engine: Engine): Promise<WorkCounts> {
  const { table } = engine.sql;
  const now = engine.sql.hoursAgo(0);
  const { elapsed, seconds } = engine.aggregates;
  const few = (condition: RawBuilder<SqlBool>) =>
    sql`(select key from ${table('rollouts')} where ${condition} limit ${sql.lit(MOST_COUNTED)}) as few`;
  const leases = (condition: RawBuilder<SqlBool>) =>
    sql`(select count(*) from ${few(sql`status in ('INITIALIZING', 'RUNNING') and ${condition}`)})`;
  const age = seconds(elapsed(sql`r.create_time`, now));
  const { rows } = await sql<Record<keyof WorkCounts, bigint | number | null>>`
    with queue as (select count(*) as size, min(key) as oldest from ${few(sql`status = 'PENDING'`)})
    select queue.size as pending, (select ${age} from ${table('rollouts')} as r where r.key = queue.oldest)
        as ${sql.ref('oldestPendingSeconds')},
      ${leases(sql`lease_end_time > ${now}`)} as ${sql.ref('liveLeases')},
      ${leases(sql`lease_end_time <= ${now}`)} as ${sql.ref('endedLeases')}
    from queue`.execute(engine.byIndex().db);
  const { pending, oldestPendingSeconds, liveLeases, endedLeases } = rows[0]!;
  return {
    pending: Number(pending),
    oldestPendingSeconds: Math.max(0, Number(oldestPendingSeconds)),
    liveLeases: Number(liveLeases),
    endedLeases: Number(endedLeases),
  };
}
