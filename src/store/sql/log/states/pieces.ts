import { sql } from 'kysely';
import { AnabranchError, stateCorrupt } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import type { Engine } from '../../kit/engine.ts';
import { type ReadScope, type Transaction, write } from '../../kit/transaction.ts';
import { bindDigest, isSet } from '../../kit/values.ts';
import { ChainDecoder, type EncodedBytes, encodeBytes } from './bytes.ts';
import { MOST_DELTAS, MOST_DEPENDENTS } from './chain.ts';

/**
 * Pieces of states that are stored in chunks. A piece that equals the one at the same place of an earlier state has no
 * bytes of its own, but refers to the row that has them: never to another reference. One that differs little is stored
 * as a delta, with the earlier piece as dictionary. Before a row is deleted, one of its references takes its bytes, and
 * its deltas with them. Deltas of a row without references are stored whole.
 */

export interface Piece {
  /** The upload whose row has the bytes. */
  readonly owner: string;
  /** The digest that is stored with the chunk. */
  readonly digest: Digest;
  readonly bytes: Uint8Array;
  /** Deltas between the row with the bytes and the one that is stored whole. */
  readonly depth: number;
}

/** How a piece is stored: with bytes of its own, whole or as a delta of `owner`, or as a reference to `owner`. */
export interface StoredPiece {
  readonly encoding: string;
  readonly data: Uint8Array | null;
  readonly owner: string | undefined;
}

export async function encodePiece(bytes: Uint8Array): Promise<StoredPiece & EncodedBytes> {
  return { ...(await encodeBytes(bytes)), owner: undefined };
}

/**
 * A delta above this share of the whole piece is not used. More than for states: a piece that grows has more new bytes.
 */
const SMALL_ENOUGH = 0.75;

/** Encodes a piece as a reference to an earlier one, as a delta of it, or whole if neither saves enough. */
export async function encodePieceAfter(base: Piece, bytes: Uint8Array): Promise<StoredPiece> {
  const { owner } = base;
  if (Buffer.compare(base.bytes, bytes) === 0) return { encoding: 'raw', data: null, owner };
  if (base.depth >= MOST_DELTAS) return encodePiece(bytes);
  const [delta, whole] = await Promise.all([
    encodeBytes(bytes, { dictionary: base.bytes, isCompressible: true }),
    encodePiece(bytes),
  ]);
  const isDelta = delta.encoding === 'zstd' && delta.data.length <= whole.data.length * SMALL_ENOUGH;
  return isDelta ? { ...delta, owner } : whole;
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

type PieceRow = readonly [
  owner: string,
  base: string | null,
  size: number,
  encoding: string,
  data: Uint8Array | null,
  digest: string,
];

/** Returns a piece without verifying its digest. One statement reads its bases, too. Errors: STATE_CORRUPT. */
export async function readPiece(
  engine: Engine,
  state: Digest,
  upload: string,
  ordinal: bigint,
): Promise<Piece | undefined> {
  const chunks = engine.sql.table('state_chunks');
  const rows = await engine.byIndex().reads.rows<PieceRow>(sql`
    with recursive c(upload, base, place) as (
      select p.upload, p.piece_upload, 0 from ${chunks} as r cross join ${chunks} as p
      where r.upload = ${upload} and r.ordinal = ${ordinal}
        and p.upload = case when r.data is null then r.piece_upload else r.upload end and p.ordinal = r.ordinal
      union all
      select p.upload, p.piece_upload, c.place + 1 from c cross join ${chunks} as p
      where p.upload = c.base and p.ordinal = ${ordinal} and c.place < ${sql.lit(MOST_DELTAS)}
    )
    select p.upload, p.piece_upload, p.size, p.encoding, p.data,
      (select ${engine.sql.hex(sql`r.digest`)}
        from ${chunks} as r where r.upload = ${upload} and r.ordinal = ${ordinal})
    from c cross join ${chunks} as p where p.upload = c.upload and p.ordinal = ${ordinal}
    order by c.place desc`);
  const own = rows.at(-1);
  if (own === undefined) return undefined;
  // A base is missing. SQLite shows null as an empty text.
  if (rows[0]?.[1]) throw stateCorrupt(state);
  const chain = new ChainDecoder(state);
  for (const [, , size, encoding, data] of rows) chain.add(encoding, data, size);
  return { owner: own[0], digest: own[5], bytes: chain.end(), depth: rows.length - 1 };
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

/**
 * Locks the row with the bytes of a piece, so that another one can refer to it, or depend on it. Returns false if it
 * does not exist, or a delta would be one too many.
 */
export async function lockPiece(tx: Transaction, { owner, data }: StoredPiece, ordinal: bigint): Promise<boolean> {
  if (owner === undefined) return true;
  const query = tx.db
    .selectFrom('state_chunks')
    .select('upload')
    .where('upload', '=', owner)
    .where('ordinal', '=', ordinal)
    .where('data', 'is not', null);
  // Deltas are counted under a lock that excludes others.
  const locked = await tx.engine.locks.rows(query, data === null ? 'keep' : 'delete').executeTakeFirst();
  if (locked === undefined || data === null) return locked !== undefined;
  const dependents = await tx.db
    .selectFrom('state_chunks')
    .select('upload')
    .where('piece_upload', '=', owner)
    .where('ordinal', '=', ordinal)
    .limit(MOST_DEPENDENTS)
    .execute();
  return dependents.length < MOST_DEPENDENTS;
}

/** Pieces that one transaction hands over, each of at most 256 KiB. */
const HANDED_OVER = 16;

/** A piece that depends on another one. */
interface Dependent {
  readonly upload: string;
  readonly ordinal: bigint;
}

/** A dependent with the form in which it needs no other piece. */
interface Independent extends Dependent {
  readonly stored: Pick<StoredPiece, 'encoding' | 'data'> | undefined;
}

/**
 * Deletes the chunks of an upload, in bounded transactions. Before, references to its pieces take their bytes, and
 * deltas are stored whole. Does nothing if the upload was finished meanwhile, or, with `idleHours`, if chunks have
 * arrived since then.
 */
export async function dropUpload(engine: Engine, upload: string, idleHours?: number): Promise<void> {
  let whole: Independent | undefined;
  for (;;) {
    const next = await engine.transactions.giveWayAfter(() =>
      write(engine, (tx) => dropSome(tx, { upload, idleHours, whole })),
    );
    if (next === 'done') return;
    whole = next === 'more' ? undefined : await encodeAlone(engine, next);
  }
}

/** A damaged piece keeps its bytes, which cannot be decoded without its base: it stays damaged. */
async function encodeAlone(engine: Engine, { upload, ordinal }: Dependent): Promise<Independent> {
  const piece = await findPiece(engine, UNNAMED, upload, ordinal);
  return { upload, ordinal, stored: piece && (await encodeBytes(piece.bytes)) };
}

/** Names the state of a piece in an error that is not reported. */
const UNNAMED = '';

/**
 * Deletes an upload, or prepares that. Returns the delta that must be stored whole next, or whether more is left. Like
 * uploads (`lockPiece`), each transaction locks chunks in order of ordinal, so that none is in a deadlock.
 */
async function dropSome(
  tx: Transaction,
  {
    upload,
    idleHours,
    whole,
  }: {
    readonly upload: string;
    readonly idleHours: number | undefined;
    readonly whole: Independent | undefined;
  },
): Promise<'done' | 'more' | Dependent> {
  // Until the last transaction the upload has all its chunks, so it can still be finished.
  let query = tx.db.selectFrom('state_uploads').select('upload').where('upload', '=', upload);
  if (idleHours !== undefined) query = query.where('renew_time', '<', tx.engine.sql.hoursAgo(idleHours));
  if ((await tx.engine.locks.rows(query, 'delete').executeTakeFirst()) === undefined) return 'done';
  if (whole !== undefined) await storeAlone(tx, upload, whole);
  const references = await dependentsOf(tx, upload, 'is').limit(HANDED_OVER).execute();
  const delta =
    references.length > 0 ? undefined : await dependentsOf(tx, upload, 'is not').limit(1).executeTakeFirst();
  if (delta !== undefined) return delta;
  // A transaction that stores a delta whole locks nothing else, because that is a chunk of any ordinal.
  if (whole !== undefined) return 'more';
  if (references.length > 0) {
    await handOver(tx, upload, [...new Set(references.map(({ ordinal }) => ordinal))]);
    return 'more';
  }
  // Locked before dependents are looked for again, so that none is stored in between.
  const own = tx.db.selectFrom('state_chunks').select('ordinal').where('upload', '=', upload).orderBy('ordinal');
  await tx.engine.locks.rows(own, 'delete').execute();
  for (const data of ['is', 'is not'] as const) {
    if ((await dependentsOf(tx, upload, data).limit(1).executeTakeFirst()) !== undefined) return 'more';
  }
  await tx.db.deleteFrom('state_chunks').where('upload', '=', upload).execute();
  await tx.db.deleteFrom('state_uploads').where('upload', '=', upload).execute();
  return 'done';
}

/** Selects the references to pieces of an upload, or their deltas, which have bytes of their own. */
function dependentsOf(tx: Transaction, upload: string, data: 'is' | 'is not') {
  return tx.db
    .selectFrom('state_chunks')
    .select(['upload', 'ordinal'])
    .where('piece_upload', '=', upload)
    .where('data', data, null)
    .orderBy('ordinal')
    .orderBy('upload');
}

/** Stores a delta of a piece whole. It may have been deleted meanwhile, or depend on another piece. */
async function storeAlone(tx: Transaction, base: string, { upload, ordinal, stored }: Independent): Promise<void> {
  await tx.db
    .updateTable('state_chunks')
    .set({ ...stored, piece_upload: null })
    .where('upload', '=', upload)
    .where('ordinal', '=', ordinal)
    .where('piece_upload', '=', base)
    .where('data', 'is not', null)
    .execute();
}

/**
 * Moves the bytes of pieces to one reference of each. Other references, and deltas, then need that one. All are locked
 * in one pass. A piece that gets more dependents meanwhile is left to the next transaction.
 */
async function handOver(tx: Transaction, upload: string, ordinals: readonly bigint[]): Promise<void> {
  const those = tx.engine.sql.among(sql.ref('ordinal'), ordinals);
  const pieces = tx.db
    .selectFrom('state_chunks')
    .select(['upload', 'ordinal', 'piece_upload', sql<boolean | bigint>`data is null`.as('is_reference')])
    .where(those)
    .where(({ or, eb }) => or([eb('upload', '=', upload), eb('piece_upload', '=', upload)]))
    .orderBy('ordinal')
    .orderBy('upload');
  const locked = await tx.engine.locks.rows(pieces, 'delete').execute();
  const dependents = locked.filter((row) => row.piece_upload === upload);
  const now = await tx.db
    .selectFrom('state_chunks')
    .select(['upload', 'ordinal'])
    .where('piece_upload', '=', upload)
    .where(those)
    .execute();
  const isLocked = new Set(dependents.map(keyOf));
  const grown = new Set(now.filter((row) => !isLocked.has(keyOf(row))).map(({ ordinal }) => ordinal));
  const successors = new Map(
    dependents.filter((row) => isSet(row.is_reference)).map((row) => [row.ordinal, row.upload]),
  );
  for (const [ordinal, successor] of successors)
    if (!grown.has(ordinal)) await moveBytes(tx, upload, ordinal, successor);
}

function keyOf({ upload, ordinal }: Dependent): string {
  return `${upload}/${ordinal}`;
}

/** Moves the bytes of a piece to one of its references, on which all other references then depend. */
async function moveBytes(tx: Transaction, upload: string, ordinal: bigint, successor: string): Promise<void> {
  const piece = await tx.db
    .selectFrom('state_chunks')
    .select(['encoding', 'data', 'piece_upload'])
    .where('upload', '=', upload)
    .where('ordinal', '=', ordinal)
    .executeTakeFirstOrThrow();
  await tx.db
    .updateTable('state_chunks')
    .set(piece)
    .where('upload', '=', successor)
    .where('ordinal', '=', ordinal)
    .execute();
  await tx.db
    .updateTable('state_chunks')
    .set({ piece_upload: successor })
    .where('piece_upload', '=', upload)
    .where('ordinal', '=', ordinal)
    .execute();
}
