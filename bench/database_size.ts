import { stat } from 'node:fs/promises';
import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';

/** Returns the size of a database in bytes, with indexes and free pages. The server must have stopped on SQLite. */
export async function databaseBytes(database: string): Promise<number> {
  if (database.startsWith(SQLITE)) return (await stat(database.slice(SQLITE.length))).size;
  return numberOf(database, 'select pg_database_size(current_database())::float8 as number');
}

/** Returns the bytes of steps in rows that were not compressed by a merge. */
export function rawStepBytes(database: string): Promise<number> {
  return numberOf(
    database,
    `select cast(coalesce(sum(octet_length(body) + octet_length(states)), 0) as float) as number
     from ${tableOf(database, 'segments')} where body_bytes is null and states_bytes is null`,
  );
}

/** Returns the number of rows in which steps are stored. */
export function countSegments(database: string): Promise<number> {
  return numberOf(database, `select cast(count(*) as float) as number from ${tableOf(database, 'segments')}`);
}

const SQLITE = 'sqlite:';

function tableOf(database: string, name: string): string {
  return database.startsWith(SQLITE) ? name : `anabranch.${name}`;
}

/** Returns the column `number` of the only row. */
async function numberOf(database: string, query: string): Promise<number> {
  if (database.startsWith(SQLITE)) {
    const file = new DatabaseSync(database.slice(SQLITE.length), { readOnly: true, timeout: 5000 });
    try {
      return Number(file.prepare(query).get()?.number);
    } finally {
      file.close();
    }
  }
  const client = new pg.Client(database);
  await client.connect();
  try {
    const { rows } = await client.query<{ number: number }>(query);
    return rows[0]!.number;
  } finally {
    await client.end();
  }
}
