import type { NamespaceTransaction } from '../transaction.ts';

/** A table of the catalogue: rows are found by name, created if missing, and updated if the given fields differ. */
export interface Catalogue<Given, Row> {
  nameOf(given: Given): string;
  /** Returns the names that exist. */
  find(tx: NamespaceTransaction, given: readonly Given[]): Promise<ReadonlySet<string>>;
  /** Locks the rows that exist, in order of their names. */
  lock(tx: NamespaceTransaction, given: readonly Given[]): Promise<ReadonlyMap<string, Row>>;
  /**
   * Inserts missing rows in the order given. A row that another transaction inserted first is left unchanged. Returns
   * the names of the inserted rows.
   */
  insert(tx: NamespaceTransaction, given: readonly Given[], now: string): Promise<ReadonlySet<string>>;
  /**
   * Returns the row with the given fields applied, or undefined if nothing changes. Absent fields keep their values.
   */
  change(row: Row, given: Given, now: string): Row | undefined;
  write(tx: NamespaceTransaction, rows: readonly Row[]): Promise<void>;
}

export interface Upserts {
  readonly created: number;
  readonly updated: number;
}

/**
 * Creates or updates all given entries, or none. Names must be distinct. If several callers create one entry at once,
 * one succeeds and the others update it.
 */
export async function upsertAll<Given, Row>(
  tx: NamespaceTransaction,
  { nameOf, find, lock, insert, change, write }: Catalogue<Given, Row>,
  given: readonly Given[],
): Promise<Upserts> {
  const now = await tx.readNow();
  const byName = (a: Given, b: Given) => (nameOf(a) < nameOf(b) ? -1 : 1);
  const found = await find(tx, given);
  const missing = given.filter((each) => !found.has(nameOf(each))).sort(byName);
  // Inserts run before locks, both in order of names, so that concurrent upserts do not deadlock.
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
