import { DatabaseSync } from 'node:sqlite';

/** The table as the Factorio Learning Environment makes it. */
const SCHEMA = `CREATE TABLE programs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, code TEXT NOT NULL, value REAL DEFAULT 0.0, visits INTEGER DEFAULT 0, parent_id INTEGER,
  state_json TEXT, conversation_json TEXT NOT NULL, completion_token_usage INTEGER, prompt_token_usage INTEGER, token_usage INTEGER,
  response TEXT, holdout_value REAL, raw_reward REAL, version INTEGER DEFAULT 1, version_description TEXT DEFAULT '',
  model TEXT DEFAULT 'gpt-4o', meta TEXT, achievements_json TEXT, instance INTEGER DEFAULT -1, depth REAL DEFAULT 0.0,
  advantage REAL DEFAULT 0.0, ticks INTEGER DEFAULT 0, created_at DATETIME DEFAULT CURRENT_TIMESTAMP)`;

/** What the interesting rows hold; everything else has its default. */
export const STATE_OF_TWO = '{"inventory": {"iron-plate": 2}, "größe": "日本語 🏭"}';

/**
 * A file with that table: a chain 1–2–3–6, branches from 2 (4, then 7) and from 1 (5), a second root (8), one whose parent is gone (9), and
 * in them everything that SQLite lets such columns hold.
 */
export function makeFleDatabase(file: string): void {
  const database = new DatabaseSync(file);
  database.exec(SCHEMA);
  const big = JSON.stringify({ entities: Array.from({ length: 40_000 }, (_, i) => ({ i, name: `belt ${i}` })) });
  const insert = (row: Record<string, string | number | bigint | null | Uint8Array>) => {
    const all = { code: 'pass', conversation_json: '{"messages": []}', ...row };
    const names = Object.keys(all);
    const statement = database.prepare(
      `INSERT INTO programs (${names.join(', ')}) VALUES (${names.map(() => '?').join(', ')})`,
    );
    statement.run(...Object.values(all));
  };
  insert({
    code: 'print("hello")\n',
    response: "1: ('hello',)\n",
    value: 12.5,
    raw_reward: 0.1,
    depth: 0.5,
    token_usage: 32395,
  });
  insert({ parent_id: 1, state_json: STATE_OF_TWO, value: null, meta: '{"model": "m"}', response: '' });
  insert({
    parent_id: 2,
    code: '',
    state_json: '',
    value: 0.25,
    advantage: Infinity,
    depth: -Infinity,
    raw_reward: 5e-324,
  });
  insert({ parent_id: 2, state_json: big, conversation_json: `${big} `, value: 1e308 });
  insert({
    parent_id: 1,
    visits: 2n ** 63n - 1n,
    ticks: -(2n ** 63n),
    instance: 2 ** 40,
    code: `x = "${'long '.repeat(30_000)}"`,
  });
  insert({ parent_id: 3, state_json: STATE_OF_TWO, value: 3, version_description: '\u{1F3ED} é\u0301 \u0000 end' });
  insert({ parent_id: 4, state_json: Uint8Array.of(0x80, 4, 0x95, 0, 0xff), meta: Uint8Array.of(0, 1, 2), value: -7 });
  insert({ value: 0, created_at: '2025-06-04 01:12:33', achievements_json: 'not json {' });
  insert({ parent_id: 999, response: 'a\u0000b', holdout_value: 1 });
  // Texts that are no UTF-8: SQLite keeps them, and so must we.
  database.exec(`UPDATE programs SET code = CAST(x'ff00fe' AS TEXT), model = CAST(x'c328' AS TEXT) WHERE id = 9`);
  database.exec(`UPDATE programs SET state_json = CAST(x'efbbbf7b7dff' AS TEXT) WHERE id = 8`);
  database.close();
}
