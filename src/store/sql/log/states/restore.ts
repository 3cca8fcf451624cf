import { sql } from 'kysely';
import { AnabranchError, stateCorrupt, stateNotFound } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import type { RestoredState } from '../../../../domain/step.ts';
import type { Engine } from '../../kit/engine.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindDigest } from '../../kit/values.ts';
import { CHUNK_BYTES, ChainDecoder, chunkDigest, verified } from './bytes.ts';
import { MOST_DELTAS } from './chain.ts';
import { readPiece } from './pieces.ts';

export async function readState(
  { engine, namespace }: ReadScope,
  digest: Digest,
  offset: number,
  last: RestoredState = {},
): Promise<Uint8Array> {
  if (last.digest === digest && last.data !== undefined) return last.data.subarray(offset, offset + CHUNK_BYTES);
  const chain = await readChain(engine, namespace, digest, { known: last.digest, isCollected: false });
  const row = chain.at(-1);
  if (row === undefined) throw stateNotFound(digest);
  const [, , size, , data, upload] = row;
  if (data !== null) {
    const bytes = await decodeChain(chain, digest, last);
    last.digest = digest;
    last.data = bytes;
    return bytes.subarray(offset, offset + CHUNK_BYTES);
  }
  if (offset >= size) return new Uint8Array();
  if (upload === null) throw stateCorrupt(digest);
  return (await readChunk(engine, digest, upload, BigInt(Math.floor(offset / CHUNK_BYTES)))).subarray(
    offset % CHUNK_BYTES,
  );
}

async function readChunk(engine: Engine, state: Digest, upload: string, ordinal: bigint): Promise<Uint8Array> {
  const piece = await readPiece(engine, state, upload, ordinal);
  if (piece === undefined || chunkDigest(upload, ordinal, piece.bytes) !== piece.digest) throw stateCorrupt(state);
  return piece.bytes;
}

/** Bytes that are decoded before other work is done: about a millisecond. */
export const UNBROKEN_BYTES = 1024 * 1024;

type ChainRow = readonly [
  digest: string,
  base: string | null,
  size: number,
  encoding: string,
  data: Uint8Array | null,
  upload: string | null,
];

/**
 * Returns the verified bytes of a state that is stored in one row, even if it exists only as a base. One statement
 * reads all rows, so that no base is rewritten in between. Errors: STATE_NOT_FOUND, STATE_CORRUPT.
 */
export async function restoreState(engine: Engine, namespace: string, digest: Digest): Promise<Uint8Array> {
  const chain = await readChain(engine, namespace, digest, { isCollected: true });
  if (chain.length === 0) throw stateNotFound(digest);
  return decodeChain(chain, digest, {});
}

/** Decodes a state from the whole one on, or from `last` if that is its base. Errors: STATE_CORRUPT. */
async function decodeChain(rows: readonly ChainRow[], digest: Digest, last: RestoredState): Promise<Uint8Array> {
  // SQLite shows null as an empty text.
  const beyond = rows[0]?.[1] || undefined;
  // A base is missing, or the chain is longer than a chain may be.
  if (beyond !== undefined && beyond !== last.digest) throw stateCorrupt(digest);
  const chain = new ChainDecoder(digest, beyond === undefined ? undefined : last.data);
  let decoded = 0;
  for (const [, , size, encoding, data] of rows) {
    if (decoded > UNBROKEN_BYTES) {
      await nextIteration();
      decoded = 0;
    }
    decoded += size;
    chain.add(encoding, data, size);
  }
  return verified(chain.end(), digest);
}

const UNREADABLE: ReadonlySet<string> = new Set(['STATE_CORRUPT', 'STATE_NOT_FOUND']);

/** Returns the bytes as `restoreState` does, or undefined if they are damaged or were deleted meanwhile. */
export async function restoreIfPossible(
  engine: Engine,
  namespace: string,
  digest: Digest,
): Promise<Uint8Array | undefined> {
  try {
    return await restoreState(engine, namespace, digest);
  } catch (error) {
    if (error instanceof AnabranchError && UNREADABLE.has(error.reason)) return undefined;
    throw error;
  }
}

interface ChainOptions {
  /** A base whose bytes the reader has. */
  readonly known?: Digest | undefined;
  /** Whether the state is read even if it exists only as a base. */
  readonly isCollected: boolean;
}

/** Reads a state and its bases, the state last. Ends before the base `known`. */
function readChain(
  engine: Engine,
  namespace: string,
  digest: Digest,
  { known, isCollected }: ChainOptions,
): Promise<ChainRow[]> {
  const states = engine.sql.table('states');
  const unknown = known === undefined ? sql`` : sql`and c.base <> ${bindDigest(known)}`;
  const readable = isCollected ? sql`` : sql`and s.collected = ${0}`;
  return engine.byIndex().reads.rows<ChainRow>(sql`
    with recursive c(digest, base, place) as (
      select s.digest, s.base, 0 from ${states} as s
      where s.namespace = ${namespace} and s.digest = ${bindDigest(digest)} ${readable}
      union all
      select s.digest, s.base, c.place + 1 from c cross join ${states} as s
      where s.namespace = ${namespace} and s.digest = c.base and c.place < ${sql.lit(MOST_DELTAS)} ${unknown}
    )
    select ${engine.sql.hex(sql`s.digest`)}, ${engine.sql.hex(sql`s.base`)}, s.size, s.encoding, s.data, s.upload
    from c cross join ${states} as s
    where s.namespace = ${namespace} and s.digest = c.digest
    order by c.place desc`);
}
