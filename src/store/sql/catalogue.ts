import type { Engine, Tx } from './engine.ts';
import { readNow } from './trajectory_rows.ts';

/** A table of the catalogue: rows found by a name, made where they are missing, changed where what is given differs. */
export interface Catalogue<Given, Row> {
  nameOf(given: Given): string;
  /** The names of those that are there. */
  find(tx: Tx, given: readonly Given[]): Promise<ReadonlySet<string>>;
  /** Those that are there, by name, locked in order of their names. */
  lock(tx: Tx, given: readonly Given[]): Promise<ReadonlyMap<string, Row>>;
  /** Makes those that are not there, in the order given; one that a racer made meanwhile stays as it is. Gives the names of those made. */
  insert(tx: Tx, given: readonly Given[], now: string): Promise<ReadonlySet<string>>;
  /** The row with what is given, absent fields left as they are; undefined: it is as given already. */
  change(row: Row, given: Given, now: string): Row | undefined;
  write(tx: Tx, rows: readonly Row[]): Promise<void>;
}

export interface Upserts {
  readonly created: number;
  readonly updated: number;
}

/** All or none, each name given once. Race-free: of several who make one at once one does, and the others change what it made. */
export async function upsertAll<Given, Row>(
  engine: Engine,
  tx: Tx,
  { nameOf, find, lock, insert, change, write }: Catalogue<Given, Row>,
  given: readonly Given[],
): Promise<Upserts> {
  const now = await readNow(tx, engine.now);
  const byName = (a: Given, b: Given) => (nameOf(a) < nameOf(b) ? -1 : 1);
  const found = await find(tx, given);
  const missing = given.filter((each) => !found.has(nameOf(each))).sort(byName);
  // All is made before anything is locked, both in order of names: so nobody waits for one who waits for them.
  const made = missing.length === 0 ? new Set<string>() : await insert(tx, missing, now);
  const rest = given.filter((each) => !made.has(nameOf(each)));
  const there = rest.length === 0 ? new Map<string, Row>() : await lock(tx, rest);
  const changed = rest.flatMap((each) => {
    const row = there.get(nameOf(each));
    const after = row === undefined ? undefined : change(row, each, now);
    return after === undefined ? [] : [after];
  });
  if (changed.length > 0) await write(tx, changed);
  return { created: made.size, updated: changed.length };
}
