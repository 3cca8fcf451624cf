import { sql } from 'kysely';
import { AnabranchError } from '../../../domain/errors.ts';
import type { Digest } from '../../../domain/ids.ts';
import type { Engine } from '../engine.ts';
import { type ReadScope, type Transaction, write } from '../transaction.ts';
import { bindDigest, readDigest } from '../values.ts';
import { decodeBytes, stateCorrupt } from './bytes.ts';

/**
 * Pieces of states that are stored in chunks. A piece that equals the one at the same place of an earlier state has no
 * bytes of its own, but refers to the row that has them: never to another reference. Before that row is deleted, one of
 * the references takes its bytes.
 */

export interface Piece {
  /** The upload whose row has the bytes. */
  readonly owner: string;
  /** The digest that is stored with the chunk. */
  readonly digest: Digest;
  readonly bytes: Uint8Array;
}

/** Returns the upload of a state that is stored in chunks. */
export async function findUpload({ db, namespace }: ReadScope, digest: Digest): Promise<string | undefined> {
  const row = await db
    .selectFrom('states')
    .select('upload')
    .where('namespace', '=', namespace)
    .where('digest', '=', bindDigest(digest))
    .where('collected', '=', 0)
    .executeTakeFirst();
  return row?.upload ?? undefined;
}

/** Returns a piece without verifying its digest. Errors: STATE_CORRUPT, which names `state`. */
export async function readPiece(
  engine: Engine,
  state: Digest,
  upload: string,
  ordinal: bigint,
): Promise<Piece | undefined> {
  const row = await engine.db
    .selectFrom('state_chunks as c')
    .innerJoin('state_chunks as p', (join) =>
      join.on('p.upload', '=', sql<string>`coalesce(c.piece_upload, c.upload)`).onRef('p.ordinal', '=', 'c.ordinal'),
    )
    .select(['c.digest', 'p.upload as owner', 'p.size', 'p.encoding', 'p.data'])
    .where('c.upload', '=', upload)
    .where('c.ordinal', '=', ordinal)
    .executeTakeFirst();
  if (row === undefined) return undefined;
  const { digest, owner, size, encoding, data } = row;
  if (data === null) throw stateCorrupt(state);
  return { owner, digest: readDigest(digest), bytes: decodeBytes({ encoding, data }, Number(size), state) };
}

/** Returns a piece of a base. A damaged one is no base. */
export async function findPiece(
  engine: Engine,
  state: Digest,
  upload: string,
  ordinal: bigint,
): Promise<Piece | undefined> {
  try {
    return await readPiece(engine, state, upload, ordinal);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STATE_CORRUPT') return undefined;
    throw error;
  }
}

/** Locks the row with the bytes of a piece, so that a reference to it can be stored. Returns whether it exists. */
export async function lockPiece(tx: Transaction, owner: string, ordinal: bigint): Promise<boolean> {
  const query = tx.db
    .selectFrom('state_chunks')
    .select('upload')
    .where('upload', '=', owner)
    .where('ordinal', '=', ordinal)
    .where('piece_upload', 'is', null);
  return (await tx.engine.lock(query, 'keep').executeTakeFirst()) !== undefined;
}

/** Pieces that one transaction hands over, each of at most 256 KiB. */
const HANDED_OVER = 16;

/**
 * Deletes the chunks of an upload, in bounded transactions. References to its pieces take their bytes before. Does
 * nothing if the upload was finished meanwhile, or, with `idleHours`, if chunks have arrived since then.
 */
export async function dropUpload(engine: Engine, upload: string, idleHours?: number): Promise<void> {
  while (!(await engine.giveWayAfter(() => write(engine, (tx) => dropSome(tx, upload, idleHours)))));
}

/** Returns whether nothing is left to delete. */
async function dropSome(tx: Transaction, upload: string, idleHours: number | undefined): Promise<boolean> {
  // Until the last transaction the upload has all its chunks, so it can still be finished.
  let query = tx.db.selectFrom('state_uploads').select('upload').where('upload', '=', upload);
  if (idleHours !== undefined) query = query.where('renew_time', '<', tx.engine.hoursAgo(idleHours));
  if ((await tx.engine.lock(query, 'delete').executeTakeFirst()) === undefined) return true;
  const own = tx.db.selectFrom('state_chunks').select('ordinal').where('upload', '=', upload).orderBy('ordinal');
  // Locked before references are looked for, so that none is stored in between.
  await tx.engine.lock(own, 'delete').execute();
  const references = await tx.db
    .selectFrom('state_chunks')
    .select(['upload', 'ordinal'])
    .where('piece_upload', '=', upload)
    .orderBy('ordinal')
    .limit(HANDED_OVER)
    .execute();
  const heirs = new Map(references.map((row) => [row.ordinal, row.upload]));
  for (const [ordinal, heir] of heirs) await handOver(tx, upload, ordinal, heir);
  if (heirs.size > 0) return false;
  await tx.db.deleteFrom('state_chunks').where('upload', '=', upload).execute();
  await tx.db.deleteFrom('state_uploads').where('upload', '=', upload).execute();
  return true;
}

/** Moves the bytes of a piece to one of its references. Other references then refer to that one. */
async function handOver(tx: Transaction, upload: string, ordinal: bigint, heir: string): Promise<void> {
  const piece = await tx.db
    .selectFrom('state_chunks')
    .select(['encoding', 'data'])
    .where('upload', '=', upload)
    .where('ordinal', '=', ordinal)
    .executeTakeFirstOrThrow();
  const { numUpdatedRows } = await tx.db
    .updateTable('state_chunks')
    .set({ ...piece, piece_upload: null })
    .where('upload', '=', heir)
    .where('ordinal', '=', ordinal)
    .executeTakeFirst();
  // The heir was deleted meanwhile. The next transaction looks for another one.
  if (numUpdatedRows === 0n) return;
  await tx.db
    .updateTable('state_chunks')
    .set({ piece_upload: heir })
    .where('piece_upload', '=', upload)
    .where('ordinal', '=', ordinal)
    .execute();
}
