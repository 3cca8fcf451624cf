import type pg from 'pg';
import { StoreOpenError } from '../contract/store.ts';

/** Time limits in milliseconds. */
export interface Bounds {
  readonly statementMs: number;
  readonly lockMs: number;
}

/** How statements on a connection get their settings. */
export interface Session {
  /**
   * Behind a pooler: statements that every transaction must start with. Undefined if the connection keeps its settings.
   */
  readonly beginWith: string | undefined;
}

type Settings = Readonly<Record<string, string>>;

/**
 * Sets everything that the store depends on: time limits, formats of values, and transaction behaviour. Defaults of a
 * role could change them.
 */
export function sessionSettings(bounds: Bounds | undefined): Settings {
  return {
    statement_timeout: `${bounds?.statementMs ?? 0}`,
    lock_timeout: `${bounds?.lockMs ?? 0}`,
    idle_in_transaction_session_timeout: "'30s'",
    timezone: "'UTC'",
    datestyle: "'ISO, YMD'",
    bytea_output: "'hex'",
    extra_float_digits: '1',
    array_nulls: 'on',
    transform_null_equals: 'off',
    // A statement gets one process of the database. Others wait less for a processor, which matters most beside writes.
    max_parallel_workers_per_gather: '0',
    // Statements are short: compiling one takes longer than running it.
    jit: 'off',
  };
}

/**
 * Must be set before the first query of a transaction, so the session sets it. `default_transaction_read_only` is left
 * to the operator (A10).
 */
const TRANSACTION_DEFAULTS: Settings = { default_transaction_isolation: "'read committed'" };

/**
 * Applies the settings to a new connection, unless it leads to a pooler. A pooler may use another connection for each
 * transaction, and share it with other users, who must not get these settings. A pooler is recognised by its invented
 * process id.
 * Errors: StoreOpenError if commits would not be durable (D1). The defaults of a role can change at any time, so each
 * connection is checked.
 */
export async function prepareSession(client: pg.ClientBase, settings: Settings): Promise<Session> {
  const { rows } = await client.query<Record<string, string> & { pid: number }>(
    `select pg_backend_pid() as pid, current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes,
       current_setting('synchronous_commit') as synchronous_commit`,
  );
  const { pid, ...durability } = rows[0]!;
  for (const [setting, value] of Object.entries(durability)) {
    if (value !== 'off') continue;
    throw new StoreOpenError(
      `This Postgres runs with ${setting} = off, so an acked step could be lost: set it to on (for synchronous_commit also: alter role … set synchronous_commit = on).`,
    );
  }
  if (pid !== (client as { processID?: number }).processID) return { beginWith: statements('set local', settings) };
  await client.query(statements('set', { ...settings, ...TRANSACTION_DEFAULTS }));
  return { beginWith: undefined };
}

function statements(verb: 'set' | 'set local', settings: Settings): string {
  return Object.entries(settings)
    .map(([name, value]) => `${verb} ${name} = ${value}`)
    .join('; ');
}
