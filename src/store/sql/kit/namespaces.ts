import { sql } from 'kysely';
import type { Engine } from './engine.ts';
import type { Tables } from './tables.ts';

/** Tables whose rows do not belong to rows of others. Each has an index that begins with the namespace. */
const ROOTS = [
  'tasks',
  'validators',
  'experiments',
  'runs',
  'trajectories',
  'deleted_trajectories',
] as const satisfies readonly (keyof Tables)[];

/** Returns the namespaces that have rows, in order. Each is found by one step in an index per table. */
export async function listNamespaces(engine: Engine): Promise<string[]> {
  const found = new Set<string>();
  for (const table of ROOTS) {
    for (let last: string | null = ''; last !== null; ) {
      last = await nextNamespace(engine, table, last);
      if (last !== null) found.add(last);
    }
  }
  return [...found].sort();
}

async function nextNamespace(engine: Engine, table: keyof Tables, after: string): Promise<string | null> {
  const { rows } = await sql<{ namespace: string | null }>`
    select min(namespace) as namespace from ${engine.sql.table(table)} where namespace > ${after}`.execute(engine.db);
  return rows[0]?.namespace ?? null;
}
