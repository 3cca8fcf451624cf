import type pg from 'pg';

/**
 * Where the rows of a database come from. A promotion begins a new timeline of the same cluster. What an earlier
 * timeline has committed can be missing in it, and row keys can be used again.
 */
export interface History {
  /** The identifier of the cluster. */
  readonly cluster: string;
  /** 0 on a standby, which may lack what its primary has committed. */
  readonly timeline: number;
  /** When the server started, which tells standbys apart. A promotion does not change it. */
  readonly started: string;
}

/** `pg_control_checkpoint` has the timeline of the last checkpoint, which a promotion does not wait for. */
const HISTORY = `select system_identifier::text as cluster,
    case when pg_is_in_recovery() then '0' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end as timeline,
    pg_postmaster_start_time()::text as started
  from pg_control_system()`;

/**
 * If the role may not call these functions, or the service does not have them, calls `onRefused`, and returns where the
 * connection leads.
 */
export async function readHistory(
  client: pg.ClientBase,
  onRefused: (error: Error) => void = () => {},
): Promise<History> {
  try {
    const { rows } = await client.query<{ cluster: string; timeline: string; started: string }>(HISTORY);
    const { cluster, timeline, started } = rows[0]!;
    return { cluster, timeline: Number.parseInt(timeline, 16), started };
  } catch (error) {
    if ((error as { severity?: unknown }).severity !== 'ERROR') throw error;
    onRefused(error as Error);
    return untoldHistory(client);
  }
}

/** Stands for the history of a Postgres that does not tell it. */
export function untoldHistory(client: pg.ClientBase): History {
  const { host, port } = client as pg.Client;
  return { cluster: `${host}:${port}`, timeline: 0, started: '' };
}

/** Whether the database has all that it had before: it is of the same timeline, or is the same standby, or was it. */
export function isSameHistory(before: History, now: History): boolean {
  const isSameTimeline = before.timeline > 0 && before.timeline === now.timeline;
  const isSameStandby = before.timeline === 0 && before.started === now.started;
  return before.cluster === now.cluster && (isSameTimeline || isSameStandby);
}
