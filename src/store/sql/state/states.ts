import { hash, randomUUID } from 'node:crypto';
import { sql } from 'kysely';
import { AnabranchError, stateNotFound } from '../../../domain/errors.ts';
import type { Digest } from '../../../domain/ids.ts';
import { LIMITS } from '../../../domain/limits.ts';
import { createStateHasher } from '../../../domain/state_digest.ts';
import { tupleKey } from '../../../domain/tuple_key.ts';
import type { StateInfo, StateUpload } from '../../contract/state.ts';
import type { Engine } from '../engine.ts';
import {
  type NamespaceTransaction,
  type ReadScope,
  scopeOf,
  type Transaction,
  write,
  writeIn,
} from '../transaction.ts';
import { bindDigest, readDigest } from '../values.ts';
import { chunkDigest, decodeBytes, encodeBytes, stateCorrupt } from './bytes.ts';

/** Every chunk of a chunked state except the last has this size, so that an offset identifies its chunk. */
const CHUNK_BYTES = LIMITS.chunkBytes;

export class Upload implements StateUpload {
  readonly #engine: Engine;
  readonly #namespace: string;
  readonly #upload = randomUUID();
  readonly #hasher = createStateHasher();
  #named: Digest | undefined;
  #chunk: Buffer | undefined;
  #filled = 0;
  #size = 0;
  #ordinal = 0n;
  #done = false;

  constructor(engine: Engine, namespace: string) {
    this.#engine = engine;
    this.#namespace = namespace;
  }

  async write(piece: Uint8Array): Promise<void> {
    this.#hasher.update(piece);
    this.#size += piece.length;
    this.#chunk ??= Buffer.allocUnsafe(CHUNK_BYTES);
    for (let taken = 0; taken < piece.length; ) {
      // A full chunk is written only when more bytes arrive, so that a state of exactly one chunk is stored in its row.
      if (this.#filled === CHUNK_BYTES) await this.#flush();
      const part = piece.subarray(taken, taken + CHUNK_BYTES - this.#filled);
      this.#chunk.set(part, this.#filled);
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
    const encoded = single === undefined ? { encoding: 'raw', data: null } : encodeBytes(single);
    await writeIn(this.#engine, this.#namespace, async (tx) => {
      if (single === undefined) await this.#keepUpload(tx);
      const [here] = await this.#engine.findStates(tx.db, this.#namespace, [digest], 'lock');
      if (here !== undefined) {
        await renew(tx, [digest]);
        await dropUpload(tx, this.#upload);
        return;
      }
      await tx.db
        .insertInto('states')
        .values({
          namespace: this.#namespace,
          digest: bindDigest(digest),
          size: BigInt(this.#size),
          ...encoded,
          upload: single === undefined ? this.#upload : null,
          referenced: 0,
          version: 0n,
          renew_time: this.#engine.now,
        })
        // If another upload stored the state first, this one is deleted below.
        .onConflict((conflict) => conflict.columns(['namespace', 'digest']).doNothing())
        .execute();
      const kept = await tx.db
        .selectFrom('states')
        .select('upload')
        .where('namespace', '=', this.#namespace)
        .where('digest', '=', bindDigest(digest))
        .executeTakeFirst();
      if (kept?.upload === this.#upload)
        await tx.db.deleteFrom('state_uploads').where('upload', '=', this.#upload).execute();
      else await dropUpload(tx, this.#upload);
    });
    this.#done = true;
    return state;
  }

  /** Deletes the uploaded chunks. Not bound to the call, which may have ended. */
  async abort(): Promise<void> {
    if (this.#done) return;
    this.#done = true;
    const engine = this.#engine.within(undefined);
    if (this.#ordinal > 0n) await write(engine, (tx) => dropUpload(tx, this.#upload));
  }

  /**
   * Renews the upload, so that its chunks are kept while more arrive. Errors: DEADLINE_EXCEEDED, if the collector has
   * deleted it.
   */
  async #keepUpload(tx: Transaction): Promise<void> {
    const { numUpdatedRows } = await tx.db
      .updateTable('state_uploads')
      .set({ renew_time: this.#engine.now })
      .where('upload', '=', this.#upload)
      .executeTakeFirst();
    if (numUpdatedRows > 0n) return;
    throw new AnabranchError(
      'DEADLINE_EXCEEDED',
      'The upload was idle for longer than unreferenced states are kept, and was deleted. Upload the state again.',
    );
  }

  #bytes(): Uint8Array {
    return this.#chunk === undefined ? new Uint8Array() : this.#chunk.subarray(0, this.#filled);
  }

  async #flush(): Promise<void> {
    const bytes = this.#bytes();
    const row = {
      upload: this.#upload,
      ordinal: this.#ordinal,
      namespace: this.#namespace,
      digest: bindDigest(chunkDigest(this.#upload, this.#ordinal, bytes)),
      size: BigInt(bytes.length),
      ...encodeBytes(bytes),
    };
    await write(this.#engine, async (tx) => {
      if (this.#ordinal === 0n) {
        await tx.db
          .insertInto('state_uploads')
          .values({ upload: this.#upload, namespace: this.#namespace, renew_time: this.#engine.now })
          .execute();
      } else await this.#keepUpload(tx);
      await tx.db.insertInto('state_chunks').values(row).execute();
    });
    this.#ordinal += 1n;
    this.#filled = 0;
  }
}

async function dropUpload(tx: Transaction, upload: string): Promise<void> {
  await tx.db.deleteFrom('state_chunks').where('upload', '=', upload).execute();
  await tx.db.deleteFrom('state_uploads').where('upload', '=', upload).execute();
}

async function renew(tx: NamespaceTransaction, digests: readonly Digest[]): Promise<void> {
  await tx.db
    .updateTable('states')
    .set((eb) => ({ renew_time: tx.engine.now, version: eb('version', '+', 1n) }))
    .where('namespace', '=', tx.namespace)
    .where('digest', 'in', digests.map(bindDigest))
    .execute();
}

export async function findStates(
  engine: Engine,
  namespace: string,
  digests: readonly Digest[],
  renewing: boolean,
): Promise<StateInfo[]> {
  if (digests.length === 0) return [];
  const distinct = [...new Set(digests)];
  const found = renewing
    ? await writeIn(engine, namespace, async (tx) => {
        const locked = await engine.findStates(tx.db, namespace, distinct, 'lock');
        if (locked.length > 0)
          await renew(
            tx,
            locked.map(({ digest }) => digest),
          );
        return locked;
      })
    : await lookUp(scopeOf(engine, namespace), distinct);
  const sizes = new Map(found.map(({ digest, size }) => [digest, size]));
  return distinct.flatMap((digest) => {
    const size = sizes.get(digest);
    return size === undefined ? [] : [{ digest, size }];
  });
}

async function lookUp({ db, namespace }: ReadScope, digests: readonly Digest[]): Promise<StateInfo[]> {
  const rows = await db
    .selectFrom('states')
    .select(['digest', 'size'])
    .where('namespace', '=', namespace)
    .where('digest', 'in', digests.map(bindDigest))
    .execute();
  return rows.map((row) => ({ digest: readDigest(row.digest), size: Number(row.size) }));
}

export async function readState(
  { engine, db, namespace }: ReadScope,
  digest: Digest,
  offset: number,
): Promise<Uint8Array> {
  const row = await db
    .selectFrom('states')
    .select(['size', 'encoding', 'data', 'upload'])
    .where('namespace', '=', namespace)
    .where('digest', '=', bindDigest(digest))
    .executeTakeFirst();
  if (row === undefined) throw stateNotFound(digest);
  const { encoding, data, upload } = row;
  if (data !== null) {
    const bytes = decodeBytes(
      { encoding, data },
      Number(row.size),
      digest,
      (whole) => hash('sha256', whole, 'hex') === digest,
    );
    return bytes.subarray(offset, offset + CHUNK_BYTES);
  }
  if (offset >= Number(row.size)) return new Uint8Array();
  if (upload === null) throw stateCorrupt(digest);
  return (await readChunk(engine, digest, upload, BigInt(Math.floor(offset / CHUNK_BYTES)))).subarray(
    offset % CHUNK_BYTES,
  );
}

async function readChunk(engine: Engine, state: Digest, upload: string, ordinal: bigint): Promise<Uint8Array> {
  const chunk = await engine.db
    .selectFrom('state_chunks')
    .select(['digest', 'size', 'encoding', 'data'])
    .where('upload', '=', upload)
    .where('ordinal', '=', ordinal)
    .executeTakeFirst();
  if (chunk === undefined) throw stateCorrupt(state);
  const kept = readDigest(chunk.digest);
  return decodeBytes(chunk, Number(chunk.size), state, (bytes) => chunkDigest(upload, ordinal, bytes) === kept);
}

/** `STATES` explains why the version makes this safe beside appends and deletions. */
export async function collectStates(engine: Engine, ttlHours: number, limit: number): Promise<number> {
  await dropBrokenUploads(engine, ttlHours, limit);
  const candidates = await engine.db
    .selectFrom('states')
    .select(['namespace', 'digest', 'version', 'upload'])
    .where('referenced', '=', 0)
    .where('renew_time', '<', engine.hoursAgo(ttlHours))
    .orderBy('renew_time')
    .limit(limit)
    .execute();
  if (candidates.length === 0) return 0;
  // Writers that read a candidate while it was referenced may refer to it. The scan below must see these references.
  if (!(await engine.outwaitReferrers())) return 0;
  const unseen = new Map(candidates.map((row) => [tupleKey(row.namespace, readDigest(row.digest)), row]));
  for (const table of ['step_states', 'content_states'] as const) {
    for await (const { namespace, digest } of references(engine, table)) {
      const name = tupleKey(namespace, readDigest(digest));
      const candidate = unseen.get(name);
      if (candidate === undefined) continue;
      unseen.delete(name);
      await markReferenced(engine, candidate);
    }
  }
  let collected = 0;
  for (const candidate of unseen.values()) if (await collectState(engine, candidate)) collected += 1;
  return collected;
}

interface Candidate {
  readonly namespace: string;
  readonly digest: Uint8Array;
  readonly version: bigint;
  readonly upload: string | null;
}

/** Reads all references page by page, so that no statement is long. */
async function* references(engine: Engine, table: 'step_states' | 'content_states') {
  const last = table === 'step_states' ? 'name' : 'digest';
  let cursor: { tree: bigint; trajectory: bigint; step_number: bigint; last: unknown } | undefined;
  for (;;) {
    const after =
      cursor === undefined
        ? sql``
        : sql`where (tree, trajectory, step_number, ${sql.ref(last)}) > (cast(${cursor.tree} as bigint), cast(${cursor.trajectory} as bigint), cast(${cursor.step_number} as bigint), ${cursor.last})`;
    const { rows } = await sql<{
      tree: bigint;
      trajectory: bigint;
      step_number: bigint;
      last: unknown;
      namespace: string;
      digest: Uint8Array;
    }>`select tree, trajectory, step_number, ${sql.ref(last)} as last, namespace, digest from ${engine.table(table)} ${after}
      order by tree, trajectory, step_number, ${sql.ref(last)} limit 5000`.execute(engine.db);
    yield* rows;
    cursor = rows.at(-1);
    if (cursor === undefined) return;
  }
}

async function markReferenced(engine: Engine, { namespace, digest, version }: Candidate): Promise<void> {
  await write(engine, async (tx) => {
    await tx.db
      .updateTable('states')
      .set({ referenced: 1, version: version + 1n })
      .where('namespace', '=', namespace)
      .where('digest', '=', digest)
      .where('version', '=', version)
      .execute();
  });
}

async function collectState(engine: Engine, { namespace, digest, version, upload }: Candidate): Promise<boolean> {
  return write(engine, async (tx) => {
    const { numDeletedRows } = await tx.db
      .deleteFrom('states')
      .where('namespace', '=', namespace)
      .where('digest', '=', digest)
      .where('version', '=', version)
      .where('referenced', '=', 0)
      .executeTakeFirst();
    if (numDeletedRows === 0n) return false;
    if (upload !== null) await tx.db.deleteFrom('state_chunks').where('upload', '=', upload).execute();
    return true;
  });
}

async function dropBrokenUploads(engine: Engine, ttlHours: number, limit: number): Promise<void> {
  const broken = await engine.db
    .selectFrom('state_uploads')
    .select('upload')
    .where('renew_time', '<', engine.hoursAgo(ttlHours))
    .limit(limit)
    .execute();
  for (const { upload } of broken) await write(engine, (tx) => dropUpload(tx, upload));
}
