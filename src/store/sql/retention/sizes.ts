import { sql } from 'kysely';
import { NOTHING, type RemovedSize } from '../../../domain/retention.ts';
import { padded } from '../statement_shapes.ts';
import type { ReadScope } from '../transaction.ts';
import { bindDigest, readDigest } from '../values.ts';
import type { StateFacts } from './facts.ts';

/** References of a state that are counted. The bytes of a state with more are not part of the estimate. */
const MOST_REFERENCES = 1000;
/** Digests of one statement. */
const DIGESTS = 500;

/** Adds up states. Each reference to a state with a row of its own counts for its share of the stored bytes. */
export async function sizeOfStates(scope: ReadScope, states: readonly StateFacts[]): Promise<RemovedSize> {
  const shares = await storedShares(
    scope,
    states.flatMap(({ storedHere, digest }) => (storedHere === undefined ? [digest] : [])),
  );
  let stored = 0;
  let logical = 0;
  for (const { storedHere, digest, size } of states) {
    logical += size;
    stored += storedHere ?? shares.get(digest) ?? 0;
  }
  return {
    ...NOTHING,
    states: BigInt(states.length),
    logicalBytes: BigInt(logical),
    storedBytes: BigInt(Math.round(stored)),
  };
}

/** Returns the stored bytes of states, divided by the number of their references. */
async function storedShares(
  { engine, db, namespace }: ReadScope,
  digests: readonly string[],
): Promise<ReadonlyMap<string, number>> {
  const distinct = [...new Set(digests)];
  const shares = new Map<string, number>();
  for (let at = 0; at < distinct.length; at += DIGESTS) {
    const some = padded(distinct.slice(at, at + DIGESTS)).map(bindDigest);
    const refs = sql<bigint>`(select count(*) from (select 1 from ${engine.table('state_refs')} as r
      where r.state = s.key limit ${sql.lit(MOST_REFERENCES)}) as c)`;
    const chunks = sql<bigint>`coalesce((select cast(sum(octet_length(k.data)) as bigint)
      from ${engine.table('state_chunks')} as k where k.upload = s.upload), 0)`;
    const rows = await db
      .selectFrom('states as s')
      .select(['s.digest', refs.as('refs'), chunks.as('chunks')])
      .select(sql<bigint>`coalesce(octet_length(s.data), 0)`.as('bytes'))
      .where('s.namespace', '=', namespace)
      .where('s.digest', 'in', some)
      .execute();
    for (const { digest, refs: count, chunks: inChunks, bytes } of rows) {
      const counted = Number(count);
      const share = counted === MOST_REFERENCES ? 0 : (Number(bytes) + Number(inChunks)) / Math.max(counted, 1);
      shares.set(readDigest(digest), share);
    }
  }
  return shares;
}
