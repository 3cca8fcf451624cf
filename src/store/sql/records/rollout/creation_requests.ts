import type { IdempotencyKey } from '../../../contract/idempotency.ts';
import { requestIdReused } from '../../kit/requests.ts';
import { REQUESTS } from '../../kit/tables/changes.ts';
import type { CallerTransaction, NamespaceTransaction } from '../../kit/transaction.ts';

/** A rollout in the response of a creation. */
export interface NamedRollout {
  readonly key: bigint;
  readonly id: string;
  readonly existed: boolean;
  /** The claimed attempt; 0 if the call did not claim the rollout. */
  readonly attempt: bigint;
}

/** Row keys are stored as text, because JSON numbers cannot hold every int64. */
type StoredRollout = readonly [key: string, attempt: string, existed: boolean];

/** ID1: returns the rollouts of the first request with this key. Errors: REQUEST_ID_REUSED. */
export async function findCreation(
  tx: NamespaceTransaction,
  key: IdempotencyKey | undefined,
): Promise<Omit<NamedRollout, 'id'>[] | undefined> {
  if (key === undefined) return undefined;
  const row = await tx.db
    .selectFrom('requests')
    .select(['request_digest', 'claims'])
    .where('namespace', '=', tx.namespace)
    .where('rpc', '=', key.rpc)
    .where('request_id', '=', key.requestId)
    .executeTakeFirst();
  if (row === undefined) return undefined;
  if (row.request_digest !== key.requestDigest) throw requestIdReused(key.requestId);
  const stored = JSON.parse(row.claims ?? '[]') as StoredRollout[];
  return stored.map(([rollout, attempt, existed]) => ({ key: BigInt(rollout), attempt: BigInt(attempt), existed }));
}

/** Stores a key with its rollouts. If a concurrent request stored it first, the primary key rejects the row. */
export async function keepCreation(
  tx: CallerTransaction,
  key: IdempotencyKey | undefined,
  run: bigint,
  rollouts: readonly NamedRollout[],
): Promise<void> {
  const [first] = rollouts;
  if (key === undefined || first === undefined) return;
  const stored = rollouts.map((rollout): StoredRollout => [`${rollout.key}`, `${rollout.attempt}`, rollout.existed]);
  await tx.engine.bulk.insert(tx.db, REQUESTS, [
    {
      namespace: tx.namespace,
      rpc: key.rpc,
      request_id: key.requestId,
      request_digest: key.requestDigest,
      tree: run,
      resource: first.key,
      resource_id: first.id,
      create_time: tx.now,
      claims: JSON.stringify(stored),
    },
  ]);
}
