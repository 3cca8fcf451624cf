import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { IdempotencyKey } from '../../../contract/request.ts';
import type { ClaimRequest } from '../../../contract/rollout.ts';
import { requestIdReused } from '../../kit/requests.ts';
import { REQUESTS } from '../../kit/tables/changes.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import { type CallerTransaction, inOneRoundTrip, type Transaction } from '../../kit/transaction.ts';
import type { Granted } from './create.ts';
import type { ClaimedAttempt } from './reading.ts';

type Keyed = Pick<ClaimRequest, 'caller' | 'key'>;

/** A rollout in the answer of ClaimRollouts or CreateRollouts. The attempt is 0 if the call did not claim it. */
export interface AnsweredRollout extends ClaimedAttempt {
  readonly id: string;
  /** Whether the rollout existed before the call. */
  readonly existed: boolean;
}

/** The answer that was stored with a request_id. */
export interface KeptAnswer {
  readonly requestDigest: string;
  readonly rollouts: readonly Omit<AnsweredRollout, 'id'>[];
}

/** Row keys are stored as text, because JSON numbers cannot hold every int64. */
type StoredRollout = readonly [key: string, attempt: string, existed: boolean];

/** Returns undefined if the request has no key. */
export function keyNameOf({ caller, key }: Keyed): string | undefined {
  return key && tupleKey(caller.namespace, key.rpc, key.requestId);
}

/** Returns stored answers by namespace, RPC and request_id. */
export async function findAnswers(tx: Transaction, requests: readonly Keyed[]): Promise<Map<string, KeptAnswer>> {
  const keyed = requests.flatMap(({ caller, key }) => (key === undefined ? [] : [{ ...caller, ...key }]));
  const scopes = Map.groupBy(keyed, ({ namespace, rpc }) => tupleKey(namespace, rpc));
  const found = await inOneRoundTrip(
    [...scopes.values()].map(async (some): Promise<[string, KeptAnswer][]> => {
      const { namespace, rpc } = some[0]!;
      const rows = await tx.db
        .selectFrom('requests')
        .select(['request_id', 'request_digest', 'claims'])
        .where('namespace', '=', namespace)
        .where('rpc', '=', rpc)
        .where('request_id', 'in', [...new Set(some.map(({ requestId }) => requestId))])
        .execute();
      return rows.map(({ request_id, request_digest, claims }) => {
        const stored = JSON.parse(claims ?? '[]') as StoredRollout[];
        const rollouts = stored.map(([key, attempt, existed]) => {
          return { key: BigInt(key), attempt: BigInt(attempt), existed };
        });
        return [tupleKey(namespace, rpc, request_id), { requestDigest: request_digest, rollouts }];
      });
    }),
  );
  return new Map(found.flat());
}

/** ID1: returns the rollouts of the first creation with this key. Errors: REQUEST_ID_REUSED. */
export async function findCreation(
  tx: CallerTransaction,
  key: IdempotencyKey | undefined,
): Promise<KeptAnswer['rollouts'] | undefined> {
  if (key === undefined) return undefined;
  const [kept] = (await findAnswers(tx, [{ caller: tx.caller, key }])).values();
  if (kept !== undefined && kept.requestDigest !== key.requestDigest) throw requestIdReused(key.requestId);
  return kept?.rollouts;
}

/**
 * ID1: stores each key with its claims, in the transaction of the claim. An empty answer is not stored (Q2). Rows are
 * sorted, so that transactions with the same keys do not deadlock.
 */
export async function keepClaims(
  tx: Transaction,
  requests: readonly ClaimRequest[],
  granted: readonly Granted[],
): Promise<void> {
  const rows = [...Map.groupBy(granted, ({ at }) => at)].flatMap(([at, claims]) => {
    const rollouts = claims.map(({ row }) => ({ key: row.key, id: row.id, attempt: row.attempt + 1n, existed: true }));
    return rowOf(tx, requests[at]!, claims[0]!.row.run, rollouts);
  });
  rows.sort((a, b) => (nameOf(a) < nameOf(b) ? -1 : 1));
  await tx.engine.bulk.insert(tx.db, REQUESTS, rows);
}

function nameOf({ namespace, rpc, request_id }: RowOf<typeof REQUESTS>): string {
  return tupleKey(namespace, rpc, request_id);
}

/** ID1: stores a key with the rollouts of a creation. */
export async function keepCreation(
  tx: CallerTransaction,
  key: IdempotencyKey | undefined,
  run: bigint,
  rollouts: readonly AnsweredRollout[],
): Promise<void> {
  await tx.engine.bulk.insert(tx.db, REQUESTS, rowOf(tx, { caller: tx.caller, key }, run, rollouts));
}

/** Returns the row of a request with a key. If another transaction stored it first, the primary key rejects the row. */
function rowOf(
  { now }: Transaction,
  { caller, key }: Keyed,
  run: bigint,
  rollouts: readonly AnsweredRollout[],
): RowOf<typeof REQUESTS>[] {
  const [first] = rollouts;
  if (key === undefined || first === undefined) return [];
  return [
    {
      namespace: caller.namespace,
      rpc: key.rpc,
      request_id: key.requestId,
      request_digest: key.requestDigest,
      tree: run,
      resource: first.key,
      resource_id: first.id,
      create_time: now,
      claims: JSON.stringify(rollouts.map((each): StoredRollout => [`${each.key}`, `${each.attempt}`, each.existed])),
    },
  ];
}
