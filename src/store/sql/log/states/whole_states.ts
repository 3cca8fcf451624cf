import { sql } from 'kysely';
import { stateCorrupt } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import type { LocatedState } from '../../../contract/state.ts';
import { padded } from '../../kit/kept_queries.ts';
import { nextIteration } from '../../kit/reading/slots.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindDigest, readDigest } from '../../kit/values.ts';
import { decodeBytes, verified } from './bytes.ts';
import { MOST_DELTAS } from './chain.ts';
import { UNBROKEN_BYTES } from './restore.ts';

export async function locateStates(
  { db, namespace }: ReadScope,
  digests: readonly Digest[],
): Promise<ReadonlyMap<Digest, LocatedState>> {
  if (digests.length === 0) return new Map();
  const rows = await db
    .selectFrom('states')
    .select(['digest', 'size', 'base_bytes', 'upload'])
    .where('namespace', '=', namespace)
    .where('digest', 'in', padded(digests).map(bindDigest))
    .where('collected', '=', 0)
    .execute();
  return new Map(
    rows.map(({ digest: bytes, size, base_bytes, upload }) => {
      const digest = readDigest(bytes);
      const decodedBytes = upload === null ? Number(size + base_bytes) : undefined;
      return [digest, { digest, size: Number(size), decodedBytes }];
    }),
  );
}

interface StoredState {
  readonly base: Digest | undefined;
  readonly size: number;
  readonly encoding: string;
  readonly data: Uint8Array | null;
}

type StoredRow = readonly [
  digest: string,
  base: string | null,
  size: number,
  encoding: string,
  data: Uint8Array | null,
];

/** One statement reads the states and their bases, each once, so that no base is rewritten in between. */
export async function readWholeStates(
  { engine, namespace }: ReadScope,
  digests: readonly Digest[],
): Promise<ReadonlyMap<Digest, Uint8Array>> {
  if (digests.length === 0) return new Map();
  const states = engine.sql.table('states');
  const rows = await engine.byIndex().reads.rows<StoredRow>(sql`
    with recursive c(digest, base) as (
      select s.digest, s.base from ${states} as s
      where s.namespace = ${namespace} and s.digest in (${sql.join(padded(digests).map(bindDigest))})
        and s.collected = ${0} and s.upload is null
      union
      select s.digest, s.base from c cross join ${states} as s where s.namespace = ${namespace} and s.digest = c.base
    )
    select ${engine.sql.hex(sql`s.digest`)}, ${engine.sql.hex(sql`s.base`)}, s.size, s.encoding, s.data
    from c cross join ${states} as s
    where s.namespace = ${namespace} and s.digest = c.digest`);
  // SQLite shows null as an empty text.
  const stored = new Map(
    rows.map(([digest, base, size, encoding, data]) => [digest, { base: base || undefined, size, encoding, data }]),
  );
  const decoded = new Map<Digest, Uint8Array>();
  const found = new Map<Digest, Uint8Array>();
  for (const digest of digests) {
    if (stored.has(digest)) found.set(digest, verified(await decode(stored, decoded, digest), digest));
  }
  return found;
}

/** Returns the bytes of a state, and adds them and those of its bases to `decoded`. Errors: STATE_CORRUPT. */
async function decode(
  stored: ReadonlyMap<Digest, StoredState>,
  decoded: Map<Digest, Uint8Array>,
  digest: Digest,
): Promise<Uint8Array> {
  const chain: [Digest, StoredState][] = [];
  let dictionary: Uint8Array | undefined;
  for (let at: Digest | undefined = digest; at !== undefined && dictionary === undefined; ) {
    dictionary = decoded.get(at);
    if (dictionary !== undefined) break;
    const state = stored.get(at);
    // A base is missing, or the chain is longer than a chain may be.
    if (state === undefined || chain.length > MOST_DELTAS) throw stateCorrupt(digest);
    chain.push([at, state]);
    at = state.base;
  }
  let unbroken = 0;
  for (const [at, { size, encoding, data }] of chain.reverse()) {
    if (data === null) throw stateCorrupt(digest);
    if (unbroken > UNBROKEN_BYTES) {
      await nextIteration();
      unbroken = 0;
    }
    unbroken += size;
    dictionary = decodeBytes({ encoding, data }, size, digest, dictionary);
    decoded.set(at, dictionary);
  }
  return dictionary!;
}
