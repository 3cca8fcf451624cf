import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { IdempotencyKey } from '../../../contract/idempotency.ts';
import type { ClaimRequest } from '../../../contract/rollout.ts';
import { requestIdReused } from '../../kit/requests.ts';
import { REQUESTS } from '../../kit/tables/changes.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import { inOneRoundTrip } from '../../kit/together.ts';
import type { CallerTransaction, NamespaceTransaction, Transaction } from '../../kit/transaction.ts';
import type { Granted } from './create.ts';
import type { ClaimedAttempt } from './reading.ts';

/** Claims that were stored with a request_id. */
export interface ClaimKey {
  readonly requestDigest: string;
  readonly claims: readonly ClaimedAttempt[];
}

/** Returns undefined if the request has no key. */
export function keyNameOf({ caller, key }: ClaimRequest): string | undefined {
  return key && tupleKey(caller.namespace, key.rpc, key.requestId);
}

/** Returns stored claims by namespace, RPC and request_id. */
export async function findKeptClaims(
  tx: Transaction,
  requests: readonly ClaimRequest[],
): Promise<Map<string, ClaimKey>> {
  const scopes = new Map<string, { namespace: string; rpc: string; ids: string[] }>();
  for (const { caller, key } of requests) {
    if (key === undefined) continue;
    const name = tupleKey(caller.namespace, key.rpc);
    const scope = scopes.get(name) ?? { namespace: caller.namespace, rpc: key.rpc, ids: [] };
    scopes.set(name, scope);
    scope.ids.push(key.requestId);
  }
  const found = await inOneRoundTrip([...scopes.values()].map((scope) => findIn(tx, scope)));
  return new Map(found.flat());
}

async function findIn(
  tx: Transaction,
  { namespace, rpc, ids }: { readonly namespace: string; readonly rpc: string; readonly ids: readonly string[] },
): Promise<[string, ClaimKey][]> {
  const rows = await tx.db
    .selectFrom('requests')
    .select(['request_id', 'request_digest', 'claims'])
    .where('namespace', '=', namespace)
    .where('rpc', '=', rpc)
    .where('request_id', 'in', [...new Set(ids)])
    .execute();
  return rows.map(({ request_id, request_digest, claims }) => [
    tupleKey(namespace, rpc, request_id),
    { requestDigest: request_digest, claims: readAttempts(claims) },
  ]);
}

/** Keys are stored as text, because JSON numbers cannot hold every int64. */
function readAttempts(text: string | null): ClaimedAttempt[] {
  const pairs = JSON.parse(text ?? '[]') as [string, string][];
  return pairs.map(([rollout, attempt]) => [BigInt(rollout), BigInt(attempt)]);
}

/**
 * ID1: stores each key with its claims, in the transaction of the claim. An empty answer is not stored (Q2). Rows are
 * sorted, so that transactions with the same keys do not deadlock. If another transaction stored a key first, the
 * primary key rejects the row.
 */
export async function keepClaims(
  tx: Transaction,
  requests: readonly ClaimRequest[],
  granted: readonly Granted[],
): Promise<void> {
  const of = new Map<number, Granted[]>();
  for (const each of granted) {
    if (each.request.key !== undefined) of.set(each.at, [...(of.get(each.at) ?? []), each]);
  }
  const rows = [...of].flatMap(([index, claims]): RowOf<typeof REQUESTS> | [] => {
    const { caller, key } = requests[index]!;
    const [first] = claims;
    if (key === undefined || first === undefined) return [];
    const pairs = claims.map(({ row }) => [`${row.key}`, `${row.attempt + 1n}`]);
    return {
      namespace: caller.namespace,
      rpc: key.rpc,
      request_id: key.requestId,
      request_digest: key.requestDigest,
      tree: first.row.run,
      resource: first.row.key,
      resource_id: first.row.id,
      create_time: tx.now,
      claims: JSON.stringify(pairs),
    };
  });
  rows.sort((a, b) => (keyOf(a) < keyOf(b) ? -1 : 1));
  await tx.engine.bulk.insert(tx.db, REQUESTS, rows);
}

function keyOf({ namespace, rpc, request_id }: RowOf<typeof REQUESTS>): string {
  return tupleKey(namespace, rpc, request_id);
}

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
