import type { ArchivePart, ArchiveScope, ImportProgress } from '../../src/domain/archive.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { Engine, TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { openOn } from './on_store.ts';
import { expectVerified } from './verified.ts';

const NAMESPACE = { kind: 'namespace' } as const;

/** Returns the parts of an archive, of the whole namespace by default. */
export async function exported(
  store: Store,
  namespace: string,
  scope: ArchiveScope = NAMESPACE,
): Promise<ArchivePart[]> {
  const parts: ArchivePart[] = [];
  for await (const part of store.exportArchive(namespace, scope)) parts.push(part);
  return parts;
}

/** Runs `work` on a store of its own, on a new database of that engine. */
export async function onTarget(target: Engine, work: (store: Store) => Promise<void>): Promise<void> {
  const database = await createMigratedDatabase(target);
  const store = await openOn(database);
  try {
    await work(store);
  } finally {
    await store.close();
    await database.drop();
  }
}

/** Imports parts, and returns the last progress. */
export async function imported(
  store: Store,
  namespace: string,
  parts: Iterable<ArchivePart> | AsyncIterable<ArchivePart>,
): Promise<ImportProgress> {
  let last: ImportProgress | undefined;
  for await (const progress of store.importArchive(namespace, iterated(parts))) last = progress;
  if (last === undefined) throw new Error('the import ended without progress');
  return last;
}

async function* iterated<T>(items: Iterable<T> | AsyncIterable<T>): AsyncGenerator<T> {
  yield* items;
}

/** The lines of all records, without the first one. */
export function archivedLines(parts: readonly ArchivePart[]): string[] {
  return parts
    .flatMap((part) => (part.kind === 'records' ? part.text.split('\n') : []))
    .filter((line) => line !== '' && !line.startsWith('{"record":"archive"'));
}

/** Verifies a database, and returns the lines of everything in its namespace `default`. */
export async function verifiedLinesIn(database: Pick<TestDatabase, 'engine' | 'url'>): Promise<string[]> {
  const store = await openOn(database);
  try {
    await expectVerified(store);
    return archivedLines(await exported(store, 'default'));
  } finally {
    await store.close();
  }
}
