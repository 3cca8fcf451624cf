import { sql } from 'kysely';
import { NOTHING, type RemovedSize } from '../../../../domain/retention.ts';
import { padded } from '../../kit/kept_queries.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { bindDigest, readDigest } from '../../kit/values.ts';
import { MOST_DELTAS } from '../../log/states/chain.ts';
import { KeySet } from '../usage/key_set.ts';
import type { StateFacts } from './facts.ts';

/** Bound on the references that are counted for a state. The estimate leaves out the bytes of a state with more. */
const MOST_REFERENCES = 1000;
/** Bound on the digests in one statement. */
export const DIGESTS = 500;
/** Bound on the states whose compression is cached, so that the chains of their dependents are not followed again. */
const RATIOS = 4096;

/** A stored state, or one that is stored as changes of it. */
interface Stored {
  readonly key: bigint;
  /** Bytes that the state would take more if it was stored whole, because its base goes. */
  readonly more: number;
}

interface StoredState extends Stored {
  readonly bytes: number;
  readonly references: number;
  readonly base: bigint | undefined;
  /** Referenced states that are stored as changes of this one. */
  readonly dependents: readonly Stored[];
}

export type StoredStates = ReadonlyMap<string, StoredState>;

/**
 * Adds up the states that a policy removes. Each reference to a state with a row of its own counts for its share of the
 * stored bytes. States that depend on a state that goes are stored whole, unless they go too: that takes bytes.
 */
export class RemovedStates {
  readonly #scope: ReadScope;
  readonly #gone = new KeySet();
  /** Number of remaining references by row key, of states that have had several. */
  readonly #left = new Map<bigint, number>();
  /** By digest: stored bytes for each byte of the state at the end of the chain, which is stored whole. */
  readonly #ratios = new Map<string, number>();

  constructor(scope: ReadScope) {
    this.#scope = scope;
  }

  /** Reads what `add` needs. Must be called before the states are removed. */
  async read(states: readonly StateFacts[]): Promise<StoredStates> {
    const digests = new Set(states.flatMap(({ storedHere, digest }) => (storedHere === undefined ? [digest] : [])));
    const distinct = [...digests];
    const found = new Map<string, StoredState>();
    for (let at = 0; at < distinct.length; at += DIGESTS) {
      const some = padded(distinct.slice(at, at + DIGESTS)).map(bindDigest);
      for (const [digest, state] of await this.#readSome(some)) found.set(digest, state);
    }
    return found;
  }

  /** Counts states that are removed, and returns their size. The stored bytes may be negative. */
  add(states: readonly StateFacts[], stored: StoredStates): RemovedSize {
    let [logical, bytes] = [0, 0];
    for (const { storedHere, digest, size } of states) {
      logical += size;
      bytes += storedHere ?? this.#release(stored.get(digest));
    }
    return {
      ...NOTHING,
      states: BigInt(states.length),
      logicalBytes: BigInt(logical),
      storedBytes: BigInt(Math.round(bytes)),
    };
  }

  /** Removes one reference. Returns about how many bytes that frees. */
  #release(state: StoredState | undefined): number {
    if (state === undefined || state.references >= MOST_REFERENCES) return 0;
    const { key, references, bytes, base, more, dependents } = state;
    const share = bytes / Math.max(references, 1);
    const left = (this.#left.get(key) ?? references) - 1;
    if (left > 0) {
      this.#left.set(key, left);
      return share;
    }
    this.#left.delete(key);
    if (!this.#gone.add(key)) return 0;
    const notMore = base !== undefined && this.#gone.has(base) ? more : 0;
    return dependents.reduce((sum, each) => (this.#gone.has(each.key) ? sum : sum - each.more), share + notMore);
  }

  async #readSome(digests: readonly Uint8Array[]): Promise<Map<string, StoredState>> {
    const { engine, db, namespace } = this.#scope;
    const refs = sql<bigint>`(select count(*) from (select 1 from ${engine.sql.table('state_refs')} as r
      where r.state = s.key limit ${sql.lit(MOST_REFERENCES)}) as c)`;
    const chunks = sql<bigint>`coalesce((select cast(sum(octet_length(k.data)) as bigint)
      from ${engine.sql.table('state_chunks')} as k where k.upload = s.upload), 0)`;
    const bytes = sql<bigint>`coalesce(octet_length(s.data), 0)`;
    const rows = await db
      .selectFrom('states as s')
      .leftJoin('states as b', (on) => on.onRef('b.namespace', '=', 's.namespace').onRef('b.digest', '=', 's.base'))
      .select(['s.key', 's.digest', 's.base', 's.size', 'b.key as base_key'])
      .select([refs.as('refs'), chunks.as('chunks'), bytes.as('bytes')])
      .where('s.namespace', '=', namespace)
      .where('s.digest', 'in', digests)
      .orderBy('s.key')
      .execute();
    const dependents = await db
      .selectFrom('states as s')
      .select(['s.key', 's.digest', 's.base', 's.size', bytes.as('bytes')])
      .where('s.namespace', '=', namespace)
      .where('s.base', 'in', digests)
      .where('s.referenced', '=', 1)
      .execute();
    const byBase = Map.groupBy(dependents, ({ base }) => readDigest(base!));
    const found = new Map<string, StoredState>();
    for (const row of rows) {
      const digest = readDigest(row.digest);
      const below = byBase.get(digest) ?? [];
      if (row.base !== null || below.length > 0) await this.#noteRatio(row);
      const moreOf = (of: { readonly size: bigint; readonly bytes: bigint }) =>
        Math.max(0, Number(of.size) * (this.#ratios.get(digest) ?? 1) - Number(of.bytes));
      found.set(digest, {
        key: row.key,
        base: row.base_key ?? undefined,
        references: Number(row.refs),
        bytes: Number(row.bytes) + Number(row.chunks),
        more: row.base === null ? 0 : moreOf(row),
        dependents: below.map((each) => ({ key: each.key, more: moreOf(each) })),
      });
    }
    return found;
  }

  async #noteRatio(row: {
    readonly digest: Uint8Array;
    readonly base: Uint8Array | null;
    size: bigint;
    bytes: bigint;
  }) {
    const digest = readDigest(row.digest);
    if (this.#ratios.has(digest)) return;
    const known = row.base === null ? Number(row.bytes) / Math.max(Number(row.size), 1) : undefined;
    const ratio = known ?? this.#ratios.get(readDigest(row.base!)) ?? (await this.#ratioOfChain(row.digest));
    this.#ratios.set(digest, ratio);
    if (this.#ratios.size > RATIOS) this.#ratios.delete(this.#ratios.keys().next().value!);
  }

  /** Follows the bases of a state to the one that is stored whole. */
  async #ratioOfChain(digest: Uint8Array): Promise<number> {
    const { engine, db, namespace } = this.#scope;
    const states = engine.sql.table('states');
    const { rows } = await sql<{ size: bigint; bytes: bigint }>`
      with recursive chain(base, size, bytes, deltas) as (
        select s.base, s.size, octet_length(s.data), 0 from ${states} as s
        where s.namespace = ${namespace} and s.digest = ${digest}
        union all
        select s.base, s.size, octet_length(s.data), c.deltas + 1 from chain as c cross join ${states} as s
        where s.namespace = ${namespace} and s.digest = c.base and c.deltas <= ${sql.lit(MOST_DELTAS)})
      select size, bytes from chain where base is null`.execute(db);
    const whole = rows[0];
    return whole === undefined ? 1 : Number(whole.bytes) / Math.max(Number(whole.size), 1);
  }
}
