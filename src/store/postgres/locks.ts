import { sql } from 'kysely';
import type { LockableQuery, LockedHead, Locks, RowLock, Tx } from '../sql/kit/engine.ts';
import { HEAD_COLUMNS, type HeadRowRead, readHead } from '../sql/log/append/heads.ts';
import { SCHEMA } from './schema.ts';
import type { OpenTransactions } from './transactions.ts';

const LOCK_HEADS = `select ${HEAD_COLUMNS.map((name) => `t.${name}`).join()}, clock_timestamp() as now
  from unnest($1::bigint[], $2::bigint[]) as k (tree, key)
  join ${SCHEMA}.trajectories as t on t.tree = k.tree and t.key = k.key
  order by t.tree, t.key for no key update of t`;

/** Longer than a typical commit, and short enough for other members of the group. */
const WAIT_BRIEFLY = `set local lock_timeout = '100ms'`;

export class PostgresLocks implements Locks {
  readonly #open: OpenTransactions;

  constructor(open: OpenTransactions) {
    this.#open = open;
  }

  rows<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q {
    if (lock === 'delete') return query.forUpdate();
    return lock === 'write' ? query.forNoKeyUpdate() : query.forKeyShare();
  }

  freeRows<Q extends LockableQuery<Q>>(query: Q, lock: RowLock): Q {
    return this.rows(query, lock).skipLocked();
  }

  async names(tx: Tx, names: readonly string[]): Promise<void> {
    // All users of the database share the keys of advisory locks, so row keys alone could collide.
    const all = names.map((name) => `${SCHEMA}.${name}`);
    await sql`select pg_advisory_xact_lock(hashtextextended(n, 0)) from unnest(${all}::text[]) as n`.execute(tx);
  }

  async heads(
    tx: Tx,
    refs: readonly { tree: bigint; key: bigint }[],
    wait: 'never' | 'bounded',
  ): Promise<{ heads: LockedHead[]; now: string }> {
    const text = wait === 'never' ? `${LOCK_HEADS} skip locked` : LOCK_HEADS;
    const parameters = [refs.map(({ tree }) => tree), refs.map(({ key }) => key)];
    // Sent at once, so that later lookups of states run after this lock.
    const rows = (await this.#open.of(tx).ask(text, parameters)).rows as HeadRowRead[];
    return { heads: rows.map(readHead), now: rows[0]?.now ?? '' };
  }

  async waitBriefly(tx: Tx): Promise<void> {
    this.#open.of(tx).send(WAIT_BRIEFLY);
  }
}
