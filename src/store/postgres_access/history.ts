import type pg from 'pg';

/**
 * Where the rows of a database come from. A promotion begins a new timeline of the same cluster. What an earlier
 * timeline has committed can be missing in it, and row keys can be used again.
 */
export interface History {
  /** The identifier of the cluster. */
  readonly cluster: string;
  readonly timeline: number;
}

/** `pg_control_checkpoint` has the timeline of the last checkpoint, which a promotion does not wait for. */
const HISTORY = `select system_identifier::text as cluster, left(pg_walfile_name(pg_current_wal_lsn()), 8) as timeline
  from pg_control_system() where not pg_is_in_recovery()`;

/**
 * Returns undefined on a standby. If the role may not call these functions, or the service does not have them, calls
 * `onRefused`, and returns where the connection leads.
 */
export async function readHistory(
  client: pg.ClientBase,
  onRefused: (error: Error) => void = () => {},
): Promise<History | undefined> {
  try {
    const { rows } = await client.query<{ cluster: string; timeline: string }>(HISTORY);
    const [row] = rows;
    return row && { cluster: row.cluster, timeline: Number.parseInt(row.timeline, 16) };
  } catch (error) {
    if ((error as { severity?: unknown }).severity !== 'ERROR') throw error;
    onRefused(error as Error);
    return untoldHistory(client);
  }
}

/** Stands for the history of a Postgres that does not tell it. */
export function untoldHistory(client: pg.ClientBase): History {
  const { host, port } = client as pg.Client;
  return { cluster: `${host}:${port}`, timeline: 0 };
}

export function isSameHistory(some: History, other: History): boolean {
  return some.cluster === other.cluster && some.timeline === other.timeline;
}
