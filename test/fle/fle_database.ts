/** Databases as the Factorio Learning Environment creates them, on both of its engines. */
import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { createDatabase, type Engine } from '../support/database.ts';

/** The table as FLE creates it; `id` and `created_at` differ between the engines. */
function schema(id: string, time: string): string {
  return `CREATE TABLE programs (
    id ${id}, code TEXT NOT NULL, value REAL DEFAULT 0.0, visits INTEGER DEFAULT 0, parent_id INTEGER,
    state_json TEXT, conversation_json TEXT NOT NULL, completion_token_usage INTEGER, prompt_token_usage INTEGER, token_usage INTEGER,
    response TEXT, holdout_value REAL, raw_reward REAL, version INTEGER DEFAULT 1, version_description TEXT DEFAULT '',
    model TEXT DEFAULT 'gpt-4o', meta TEXT, achievements_json TEXT, instance INTEGER DEFAULT -1, depth REAL DEFAULT 0.0,
    advantage REAL DEFAULT 0.0, ticks INTEGER DEFAULT 0, created_at ${time} DEFAULT CURRENT_TIMESTAMP, timing_metrics_json TEXT)`;
}

const SCHEMAS: Readonly<Record<Engine, string>> = {
  sqlite: schema('INTEGER PRIMARY KEY AUTOINCREMENT', 'DATETIME'),
  postgres: schema('SERIAL PRIMARY KEY', 'TIMESTAMP'),
};

export type Value = string | number | bigint | null | Uint8Array;
export type Values = Readonly<Record<string, Value>>;

export interface FleDatabase {
  readonly engine: Engine;
  /** The source argument of `import-fle`. */
  readonly source: string;
  /** Inserts programs. `code` and `conversation_json` have defaults, because FLE requires them. */
  insert(...rows: readonly Values[]): Promise<void>;
  exec(sql: string): Promise<void>;
  drop(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

export async function createFleDatabase(engine: Engine): Promise<FleDatabase> {
  const database = await createDatabase(engine);
  const file = database.url.replace(/^sqlite:/, '');
  const source = engine === 'sqlite' ? file : database.url;
  const execute = engine === 'sqlite' ? onSqlite(file) : onPostgres(database.adminUrl);
  // The role of the importer has only SELECT.
  await execute([
    [SCHEMAS[engine]],
    ...(engine === 'postgres' ? [['GRANT SELECT ON programs TO PUBLIC'] as const] : []),
  ]);
  return {
    engine,
    source,
    async insert(...rows) {
      const insertions = rows.map((row): Statement => {
        const entries = Object.entries({ code: 'pass', conversation_json: '{"messages": []}', ...row });
        const places = entries.map((_, i) => (engine === 'sqlite' ? '?' : `$${i + 1}`));
        const names = entries.map(([name]) => name);
        const sql = `INSERT INTO programs (${names.join(', ')}) VALUES (${places.join(', ')})`;
        return [sql, entries.map(([, value]) => value)];
      });
      await execute([['BEGIN'], ...insertions, ['COMMIT']]);
    },
    exec: (sql) => execute([[sql]]),
    drop: () => database.drop(),
    [Symbol.asyncDispose]: () => database.drop(),
  };
}

type Statement = readonly [sql: string, values?: readonly Value[]];
/** Executes statements on one connection. */
type Execute = (statements: readonly Statement[]) => Promise<void>;

function onSqlite(file: string): Execute {
  return async (statements) => {
    const database = new DatabaseSync(file);
    for (const [sql, values] of statements) {
      if (values === undefined) database.exec(sql);
      else database.prepare(sql).run(...values);
    }
    database.close();
  };
}

function onPostgres(url: string): Execute {
  return async (statements) => {
    const client = new pg.Client({ connectionString: url });
    await client.connect();
    try {
      for (const [sql, values = []] of statements) await client.query(sql, [...values]);
    } finally {
      await client.end();
    }
  };
}

/** A SQLite file with the table of FLE and one program. */
export function makeFleFile(file: string): void {
  const database = new DatabaseSync(file);
  database.exec(SCHEMAS.sqlite);
  database.exec("INSERT INTO programs (code, conversation_json) VALUES ('pass', '{}')");
  database.close();
}

export const TASK = { PLATES: 'iron_plate_throughput_16', OPEN: 'open_play' };
export const MODEL = { SONNET: 'claude-3-5-sonnet', GPT: 'gpt-4o' };

function program(
  id: number,
  parentId: number | null,
  more: Values,
): Values & { readonly id: number; readonly meta: string } {
  return {
    ...{ id, parent_id: parentId, code: `print(${id})`, response: `1: (${id},)`, value: id, token_usage: 100 + id },
    ...{ state_json: `{"inventory": ${id}}`, created_at: `2025-06-04 01:12:${String(id).padStart(2, '0')}` },
    ...{ meta: '{}', ...more },
  };
}

function first(process: number, more: object = {}): Values & { readonly meta: string } {
  const meta = { task_key: TASK.PLATES, process_id: process, error_occurred: false, ...more };
  const model = MODEL.SONNET;
  return { version: 1, instance: process, model, version_description: 'type: plates', meta: JSON.stringify(meta) };
}

function second(): Values & { readonly meta: string } {
  const meta = { task_key: TASK.OPEN, process_id: 0, error_occurred: false };
  return { version: 2, instance: 0, model: MODEL.GPT, meta: JSON.stringify(meta) };
}

/**
 * Two versions. In the first, process 0 played 1–2–3 and, again from 2, 4–6; process 1 played 5–8, and resumed from
 * program 2 of process 0 with 7. In the second version: 9–10. 11 continues a program of the first version, 12 one that
 * was deleted.
 */
export const TREES: readonly ReturnType<typeof program>[] = [
  program(1, null, first(0)),
  program(2, 1, first(0)),
  program(3, 2, first(0, { error_occurred: true })),
  program(4, 2, first(0)),
  program(5, null, first(1)),
  program(6, 4, first(0)),
  program(7, 2, first(1)),
  program(8, 5, first(1)),
  program(9, null, second()),
  program(10, 9, second()),
  program(11, 3, second()),
  program(12, 999, second()),
];

/** By name of the trajectory, the programs of its path, including shared ones. */
export const PATHS: Readonly<Record<string, readonly number[]>> = {
  'fle-1, instance 0, process 0': [1, 2, 3],
  'fle-1, instance 0, process 0, program 4': [1, 2, 4, 6],
  'fle-1, instance 1, process 1': [5, 8],
  'fle-1, instance 1, process 1, program 7': [1, 2, 7],
  'fle-2, instance 0, process 0': [9, 10],
  'fle-2, instance 0, process 0, program 11': [11],
  'fle-2, instance 0, process 0, program 12': [12],
};

/** A state with characters outside ASCII. */
export const STATE_OF_TWO = '{"inventory": {"iron-plate": 2}, "größe": "日本語 🏭"}';

/** Values at the limits of FLE's columns on both engines. */
export const EXTREMES: readonly Values[] = [
  {
    code: 'print("hello")\n',
    response: "1: ('hello',)\n",
    value: 12.5,
    raw_reward: 0.1,
    depth: 0.5,
    token_usage: 32395,
  },
  { parent_id: 1, state_json: STATE_OF_TWO, value: null, meta: '{"model": "m",  "n": 1.0}', response: '' },
  {
    parent_id: 2,
    code: '',
    state_json: '',
    value: 0.25,
    advantage: Infinity,
    depth: -Infinity,
    raw_reward: Number.NaN,
  },
  { parent_id: 2, state_json: large('belt'), conversation_json: `${large('belt')} `, value: 1e30 },
  { parent_id: 1, visits: 2147483647, ticks: -2147483648, instance: 2 ** 30, code: `x = "${'long '.repeat(30_000)}"` },
  {
    parent_id: 3,
    value: -0,
    version_description: '\u{1F3ED} é\u0301 end',
    meta: '{"process_id": NaN, "task_key": "t"}',
  },
  { value: 0, created_at: '2025-06-04 01:12:33', achievements_json: 'not json {', timing_metrics_json: large('ms') },
  { parent_id: 999, meta: `{"pad": "${'p'.repeat(100_000)}"}`, model: null, instance: null, version: null },
  {
    parent_id: 8,
    response: null,
    meta: '{"error_occurred": true}',
    version: null,
    model: 'm'.repeat(300),
    instance: null,
  },
];

/** Values that only SQLite accepts. */
export const SQLITE_EXTREMES: readonly Values[] = [
  {
    visits: 2n ** 63n - 1n,
    ticks: -(2n ** 63n),
    instance: 2 ** 40,
    raw_reward: 5e-324,
    version_description: 'a \u0000 b',
  },
  { state_json: Uint8Array.of(0x80, 4, 0x95, 0, 0xff), meta: Uint8Array.of(0, 1, 2), value: 'not a number' },
  { response: 'a\u0000b', parent_id: 'none', created_at: 'yesterday' },
];

/** Converts texts to ones that are not UTF-8. */
export const NOT_UTF8 = `UPDATE programs SET code = CAST(x'ff00fe' AS TEXT), model = CAST(x'c328' AS TEXT),
  state_json = CAST(x'efbbbf7b7dff' AS TEXT) WHERE id = 9`;

/** More than is sent inline. */
function large(name: string): string {
  return JSON.stringify({ entities: Array.from({ length: 20_000 }, (_, i) => ({ i, name: `${name} ${i}` })) });
}
