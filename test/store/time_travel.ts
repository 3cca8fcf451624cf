import { bindPauses, readPauses } from '../../src/store/sql/records/run/rows.ts';
import type { OutsideSql } from './sql.ts';

/**
 * Moves all times of a namespace from which leases, timeouts of attempts and delays are counted this many seconds into
 * the past.
 */
export async function letPass(
  sql: OutsideSql,
  { namespace }: { readonly namespace: string },
  seconds: number,
): Promise<void> {
  const own = `namespace = '${namespace}'`;
  for (const column of ['lease_end_time', 'attempt_end_time', 'claimable_time']) {
    await sql.rows(
      `update rollouts set ${column} = ${sql.earlier(column, seconds)} where ${own} and ${column} is not null`,
    );
  }
  await sql.rows(`update segments set commit_time = ${sql.earlier('commit_time', seconds)} where ${own}`);
  const nanos = BigInt(seconds) * 1_000_000_000n;
  for (const { key, pauses } of await sql.rows(`select key, pauses from runs where ${own} and pauses <> ''`)) {
    const moved = readPauses(String(pauses)).map(({ start, end }) => ({
      start: start - nanos,
      end: end === undefined ? undefined : end - nanos,
    }));
    await sql.rows(`update runs set pauses = '${bindPauses(moved)}' where key = ${key}`);
  }
}
