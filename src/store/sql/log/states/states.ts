import { randomUUID } from 'node:crypto';
import { sql } from 'kysely';
import { AnabranchError } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { createStateHasher } from '../../../../domain/state_digest.ts';
import type { StateInfo, StateUpload } from '../../../contract/state.ts';
import type { Engine } from '../../kit/engine.ts';
import { type NamespaceTransaction, scopeOf, type Transaction, write, writeIn } from '../../kit/transaction.ts';
import { bindDigest } from '../../kit/values.ts';
import type { StatesEngine } from '../engine.ts';
import { CHUNK_BYTES, chunkDigest, encodeBytes } from './bytes.ts';
import {
  dropUpload,
  encodePiece,
  encodePieceAfter,
  findPiece,
  findUpload,
  lockPiece,
  type Piece,
  type StoredPiece,
} from './pieces.ts';
import { locateStates } from './whole_states.ts';

/** Pieces that one transaction stores. They are kept in memory until then. */
const PIECES_TOGETHER = 4;

interface PendingPiece {
  readonly ordinal: bigint;
  readonly bytes: Uint8Array;
  readonly digest: Digest;
  readonly stored: StoredPiece;
}

export class Upload implements StateUpload {
  readonly #engine: StatesEngine;
  readonly #namespace: string;
  readonly #baseDigest: Digest | undefined;
  /** The upload of the base. Looked up with the first chunk; undefined if the base is not stored in chunks. */
  #base: string | undefined;
  readonly #upload = randomUUID();
  readonly #hasher = createStateHasher();
  #named: Digest | undefined;
  /** Memory for the pieces that are not stored yet, the last of them incomplete. */
  readonly #chunks: Buffer[] = [];
  #pending: PendingPiece[] = [];
  #filled = 0;
  #size = 0;
  #ordinal = 0n;
  #done = false;

  constructor(engine: StatesEngine, namespace: string, base: Digest | undefined) {
    this.#engine = engine;
    this.#namespace = namespace;
    this.#baseDigest = base;
  }

  async write(piece: Uint8Array): Promise<void> {
    this.#hasher.update(piece);
    this.#size += piece.length;
    for (let taken = 0; taken < piece.length; ) {
      // A full chunk is written only when more bytes arrive, so that a state of exactly one chunk is stored in its row.
      if (this.#filled === CHUNK_BYTES) await this.#flush();
      const part = piece.subarray(taken, taken + CHUNK_BYTES - this.#filled);
      this.#chunk().set(part, this.#filled);
      this.#filled += part.length;
      taken += part.length;
    }
  }

  digest(): Digest {
    this.#named ??= this.#hasher.digest();
    return this.#named;
  }

  async finish(): Promise<StateInfo> {
    const digest = this.digest();
    const state = { digest, size: this.#size };
    const single = this.#ordinal === 0n ? this.#bytes() : undefined;
    if (single === undefined && this.#filled > 0) await this.#flush();
    await this.#storePending();
    const encoded = single === undefined ? { encoding: 'raw', data: null } : await encodeBytes(single);
    const isKept = await writeIn(this.#engine, this.#namespace, async (tx) => {
      if (single === undefined) await this.#keepUpload(tx);
      const [here] = await this.#engine.stateRows.find(tx.db, this.#namespace, [digest], 'lock');
      if (here !== undefined) {
        await renew(tx, [digest]);
        return false;
      }
      await tx.db
        .insertInto('states')
        .values({
          namespace: this.#namespace,
          digest: bindDigest(digest),
          size: BigInt(this.#size),
          ...encoded,
          base: null,
          upload: single === undefined ? this.#upload : null,
          referenced: 0,
          version: 0n,
          renew_time: this.#engine.sql.now,
        })
        // If another upload stored the state first, this one is deleted below. A collected base can be read again.
        .onConflict((conflict) => conflict.columns(['namespace', 'digest']).doUpdateSet(renewal(this.#engine)))
        .execute();
      const kept = await tx.db
        .selectFrom('states')
        .select('upload')
        .where('namespace', '=', this.#namespace)
        .where('digest', '=', bindDigest(digest))
        .executeTakeFirst();
      if (kept?.upload !== this.#upload) return false;
      await tx.db.deleteFrom('state_uploads').where('upload', '=', this.#upload).execute();
      return true;
    });
    this.#done = true;
    if (!isKept && single === undefined) await dropUpload(this.#engine.within(undefined), this.#upload);
    return state;
  }

  /** Deletes the uploaded chunks. Not bound to the call, which may have ended. */
  async abort(): Promise<void> {
    if (this.#done) return;
    this.#done = true;
    const engine = this.#engine.within(undefined);
    if (this.#ordinal > 0n) await dropUpload(engine, this.#upload);
  }

  /**
   * Renews the upload, so that its chunks are kept while more arrive. Errors: DEADLINE_EXCEEDED, if the collector has
   * deleted it.
   */
  async #keepUpload(tx: Transaction): Promise<void> {
    const { numUpdatedRows } = await tx.db
      .updateTable('state_uploads')
      .set({ renew_time: this.#engine.sql.now })
      .where('upload', '=', this.#upload)
      .executeTakeFirst();
    if (numUpdatedRows > 0n) return;
    throw new AnabranchError(
      'DEADLINE_EXCEEDED',
      'The upload was idle for longer than unreferenced states are kept, and was deleted. Upload the state again.',
    );
  }

  #chunk(): Buffer {
    this.#chunks[this.#pending.length] ??= Buffer.allocUnsafe(CHUNK_BYTES);
    return this.#chunks[this.#pending.length]!;
  }

  #bytes(): Uint8Array {
    return this.#filled === 0 ? new Uint8Array() : this.#chunk().subarray(0, this.#filled);
  }

  async #flush(): Promise<void> {
    const bytes = this.#bytes();
    const base = await this.#findBase();
    const stored = base === undefined ? await encodePiece(bytes) : await encodePieceAfter(base, bytes);
    const digest = chunkDigest(this.#upload, this.#ordinal, bytes);
    this.#pending.push({ ordinal: this.#ordinal, bytes, digest, stored });
    this.#ordinal += 1n;
    this.#filled = 0;
    if (this.#pending.length === PIECES_TOGETHER) await this.#storePending();
  }

  async #storePending(): Promise<void> {
    while (this.#pending.length > 0) {
      const alone = await this.#insert(this.#pending);
      if (alone.length === 0) this.#pending = [];
      for (const piece of alone) {
        this.#pending[this.#pending.indexOf(piece)] = { ...piece, stored: await encodePiece(piece.bytes) };
      }
    }
  }

  /** Returns the piece of the base at this place. */
  async #findBase(): Promise<Piece | undefined> {
    if (this.#baseDigest === undefined) return undefined;
    if (this.#ordinal === 0n) this.#base = await findUpload(scopeOf(this.#engine, this.#namespace), this.#baseDigest);
    if (this.#base === undefined) return undefined;
    return findPiece(this.#engine, this.#baseDigest, this.#base, this.#ordinal);
  }

  /**
   * Stores all pieces or none. Returns those that cannot be stored like this: the piece that they need was deleted
   * meanwhile, or has enough deltas.
   */
  async #insert(pieces: readonly PendingPiece[]): Promise<PendingPiece[]> {
    return write(this.#engine, async (tx) => {
      const alone: PendingPiece[] = [];
      for (const piece of pieces) if (!(await lockPiece(tx, piece.stored, piece.ordinal))) alone.push(piece);
      if (alone.length > 0) return alone;
      if (pieces[0]?.ordinal === 0n) {
        await tx.db
          .insertInto('state_uploads')
          .values({ upload: this.#upload, namespace: this.#namespace, renew_time: this.#engine.sql.now })
          .execute();
      } else await this.#keepUpload(tx);
      await tx.db
        .insertInto('state_chunks')
        .values(pieces.map((piece) => this.#row(piece)))
        .execute();
      return [];
    });
  }

  #row({ ordinal, bytes, digest, stored: { encoding, owner, data } }: PendingPiece) {
    return {
      upload: this.#upload,
      ordinal,
      namespace: this.#namespace,
      digest: bindDigest(digest),
      size: BigInt(bytes.length),
      encoding,
      piece_upload: owner ?? null,
      data,
    };
  }
}

async function renew(tx: NamespaceTransaction, digests: readonly Digest[]): Promise<void> {
  await tx.db
    .updateTable('states')
    .set(renewal(tx.engine))
    .where('namespace', '=', tx.namespace)
    .where('digest', 'in', digests.map(bindDigest))
    .execute();
}

function renewal(engine: Engine) {
  return { renew_time: engine.sql.now, version: sql<bigint>`states.version + 1`, collected: 0 } as const;
}

export async function findStates(
  engine: StatesEngine,
  namespace: string,
  digests: readonly Digest[],
  renewing: boolean,
): Promise<StateInfo[]> {
  if (digests.length === 0) return [];
  const distinct = [...new Set(digests)];
  const found = renewing
    ? await writeIn(engine, namespace, async (tx) => {
        const locked = await engine.stateRows.find(tx.db, namespace, distinct, 'lock');
        if (locked.length > 0)
          await renew(
            tx,
            locked.map(({ digest }) => digest),
          );
        return locked;
      })
    : [...(await locateStates(scopeOf(engine, namespace), distinct)).values()];
  const sizes = new Map(found.map(({ digest, size }) => [digest, size]));
  return distinct.flatMap((digest) => {
    const size = sizes.get(digest);
    return size === undefined ? [] : [{ digest, size }];
  });
}
