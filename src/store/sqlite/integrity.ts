import type { CallScope } from '../contract/store.ts';
import { isDamage } from '../file_guard/path.ts';
import type { Integrity } from '../sql/upkeep/verification/database.ts';
import { ReadThreadHandle } from './read_threads.ts';

export class SqliteIntegrity implements Integrity {
  readonly isDamage = isDamage;
  readonly #path: string;
  readonly #call: CallScope | undefined;

  constructor(path: string, call: CallScope | undefined) {
    this.#path = path;
    this.#call = call;
  }

  check(): AsyncGenerator<readonly string[], void, undefined> {
    return checkIntegrity(this.#path, this.#call?.signal);
  }
}

/**
 * Runs `integrity_check` table by table, because the log cannot be restarted while one runs. Uses a thread of its own,
 * because a large table would keep a lane of reads busy.
 */
async function* checkIntegrity(
  path: string,
  signal: AbortSignal | undefined,
): AsyncGenerator<readonly string[], void, undefined> {
  const thread = new ReadThreadHandle(path);
  const read = async (text: string) =>
    (await thread.run({ kind: 'arrays', text, parameters: [] }, signal)).value as readonly (readonly unknown[])[];
  try {
    for (const { table, checks } of checksOf(await read(SCHEMA))) {
      for (const check of checks) {
        try {
          const found = await read(check);
          yield found.filter(([text]) => text !== 'ok').map(([text]) => `table ${table}: ${text}`);
        } catch (error) {
          if (!isDamage(error)) throw error;
          yield [`table ${table} cannot be checked: ${(error as Error).message}`];
        }
      }
    }
  } finally {
    await thread.stop(new Error('the check has ended'));
  }
}

const SCHEMA = `select 'table', 'sqlite_schema', 'sqlite_schema', '' union all
  select type, name, tbl_name, sql from main.sqlite_schema where type in ('table', 'index')`;

function checksOf(schema: readonly (readonly unknown[])[]) {
  const rows = schema.map((row) => row.map(String) as [type: string, name: string, table: string, sql: string]);
  return rows
    .filter(([type]) => type === 'table')
    .map(([, table]) => {
      const integrity = `pragma main.integrity_check('${table.replaceAll("'", "''")}')`;
      const partial = rows.flatMap(([type, name, of, text]) => {
        const [, where] = /\swhere\s(.+)$/is.exec(text) ?? [];
        return type === 'index' && of === table && where !== undefined ? [countEntries(table, name, where)] : [];
      });
      return { table, checks: [integrity, ...partial] };
    });
}

/** `integrity_check` does not count the entries of a partial index. */
function countEntries(table: string, index: string, where: string): string {
  const rows = `select count(*) from main."${table}"`;
  return `select 'index ${index} has ' || entries || ' entries for ' || stored || ' rows' from (select
    (${rows} indexed by "${index}" where ${where}) as entries, (${rows} not indexed where ${where}) as stored)
    where entries <> stored`;
}
