import { sql } from 'kysely';
import type { Digest } from '../../domain/ids.ts';
import type { Db, Tx } from '../sql/kit/engine.ts';
import { bindDigest, readDigest } from '../sql/kit/values.ts';
import type { FoundState, StateRows } from '../sql/log/engine.ts';
import { SCHEMA } from './schema.ts';
import type { OpenTransactions } from './transactions.ts';

/** Conflicts with no writer, and is visible in `pg_locks` until the transaction ends. */
const MARK_REFERRER = `lock table ${SCHEMA}.states in row share mode`;

const FIND_STATES = `select digest, size, referenced from ${SCHEMA}.states where namespace = $1 and digest = any($2::bytea[]) and not collected`;

const REFER_TO_STATES = `with l as materialized (
    select digest from ${SCHEMA}.states
    where namespace = $1 and digest = any($2::bytea[]) and not collected order by digest for no key update),
  m as (
    update ${SCHEMA}.states as s set referenced = true, version = s.version + 1
    from l where s.namespace = $1 and s.digest = l.digest)
  select digest from l`;

/** Time limit for waiting transactions, and the interval of checks. */
const OUTWAIT_MS = 5000;
const OUTWAIT_STEP_MS = 20;

export class PostgresStateRows implements StateRows {
  readonly #open: OpenTransactions;

  constructor(open: OpenTransactions) {
    this.#open = open;
  }

  async find(tx: Tx, namespace: string, digests: readonly Digest[], purpose: 'refer' | 'lock'): Promise<FoundState[]> {
    const pipeline = this.#open.of(tx);
    if (purpose === 'refer') pipeline.send(MARK_REFERRER);
    const text = purpose === 'lock' ? `${FIND_STATES} order by digest for no key update` : FIND_STATES;
    const { rows } = await pipeline.ask(text, [namespace, digests.map(bindDigest)]);
    const found = rows as { digest: Uint8Array; size: bigint; referenced: boolean }[];
    return found.map(({ digest, size, referenced }) => ({
      digest: readDigest(digest),
      size: Number(size),
      referenced,
    }));
  }

  async refer(tx: Tx, namespace: string, digests: readonly Digest[]): Promise<Digest[]> {
    const { rows } = await this.#open.of(tx).ask(REFER_TO_STATES, [namespace, digests.map(bindDigest)]);
    return (rows as { digest: Uint8Array }[]).map(({ digest }) => readDigest(digest));
  }

  async outwaitReferrers(db: Db): Promise<boolean> {
    const until = performance.now() + OUTWAIT_MS;
    let left = await referrers(db);
    while (left.length > 0 && performance.now() < until) {
      await new Promise((resolve) => setTimeout(resolve, OUTWAIT_STEP_MS));
      const now = await referrers(db);
      left = left.filter((transaction) => now.includes(transaction));
    }
    return left.length === 0;
  }
}

/** Returns the transactions that `MARK_REFERRER` marks now. */
async function referrers(db: Db): Promise<string[]> {
  const { rows } = await sql<{ virtualtransaction: string }>`
    select virtualtransaction from pg_locks
    where locktype = 'relation' and database = (select oid from pg_database where datname = current_database())
      and relation = ${`${SCHEMA}.states`}::regclass and mode in ('RowShareLock', 'RowExclusiveLock')`.execute(db);
  return rows.map(({ virtualtransaction }) => virtualtransaction);
}
