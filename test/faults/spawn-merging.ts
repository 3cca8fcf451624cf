import type { OutsideSql } from '../store/sql.ts';
import { type SpawnedServer, type SpawnOptions, spawnServer } from '../support/spawned-server.ts';

const MERGING_SERVER = 'test/faults/merging-server.ts';

/** Starts the service in a process of its own. It merges segments all the time, so that faults hit merges. */
export function spawnMergingServer(options: SpawnOptions): Promise<SpawnedServer> {
  return spawnServer({ program: MERGING_SERVER, ...options });
}

/** Returns how many rows have steps of several commits. */
export async function countMergedRows(sql: OutsideSql): Promise<number> {
  const [row] = await sql.rows('select count(*) as merged from segments where commits is not null');
  return Number(row?.merged);
}
