import { tupleKey } from '../../domain/tuple_key.ts';
import type { ClaimRequest } from '../contract/rollout.ts';
import type { Granted } from './claim_making.ts';
import type { Engine, Tx } from './engine.ts';
import { together } from './together.ts';

/** Row key of a rollout, and the attempt that was claimed. */
export type ClaimedAttempt = readonly [rollout: bigint, attempt: bigint];

/** What was claimed under a key before. */
export interface ClaimKey {
  readonly requestDigest: string;
  readonly claims: readonly ClaimedAttempt[];
}

/** Undefined: it has no key. */
export function keyNameOf({ caller, key }: ClaimRequest): string | undefined {
  return key && tupleKey(caller.namespace, key.rpc, key.requestId);
}

/** By namespace, RPC and request id. */
export async function findKeptClaims(tx: Tx, requests: readonly ClaimRequest[]): Promise<Map<string, ClaimKey>> {
  const scopes = new Map<string, { namespace: string; rpc: string; ids: string[] }>();
  for (const { caller, key } of requests) {
    if (key === undefined) continue;
    const name = tupleKey(caller.namespace, key.rpc);
    const scope = scopes.get(name) ?? { namespace: caller.namespace, rpc: key.rpc, ids: [] };
    scopes.set(name, scope);
    scope.ids.push(key.requestId);
  }
  const found = await together([...scopes.values()].map((scope) => findIn(tx, scope)));
  return new Map(found.flat());
}

async function findIn(
  tx: Tx,
  { namespace, rpc, ids }: { readonly namespace: string; readonly rpc: string; readonly ids: readonly string[] },
): Promise<[string, ClaimKey][]> {
  const rows = await tx
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

/** Keys are texts, since JSON's numbers are not sure to hold them. */
function readAttempts(text: string | null): ClaimedAttempt[] {
  const pairs = JSON.parse(text ?? '[]') as [string, string][];
  return pairs.map(([rollout, attempt]) => [BigInt(rollout), BigInt(attempt)]);
}

/**
 * ID1: a key is kept with what was claimed under it, in the transaction of the claim; an empty answer is not kept (Q2). Sorted, so that two that come
 * with the same keys do not wait for each other; a racer that kept one first makes this fail on the primary key.
 */
export async function keepClaims(
  engine: Engine,
  tx: Tx,
  now: string,
  requests: readonly ClaimRequest[],
  granted: readonly Granted[],
): Promise<void> {
  const of = new Map<number, Granted[]>();
  for (const each of granted) {
    if (each.request.key !== undefined) of.set(each.at, [...(of.get(each.at) ?? []), each]);
  }
  const rows = [...of].flatMap(([place, claims]) => {
    const { caller, key } = requests[place]!;
    const [first] = claims;
    if (key === undefined || first === undefined) return [];
    const pairs = claims.map(({ row }) => [`${row.key}`, `${row.attempt + 1n}`]);
    const identity = [caller.namespace, key.rpc, key.requestId] as const;
    const made = [first.row.run, first.row.key, first.row.id, now, JSON.stringify(pairs)];
    return [{ name: tupleKey(...identity), row: [...identity, key.requestDigest, ...made] }];
  });
  rows.sort((a, b) => (a.name < b.name ? -1 : 1));
  await engine.insertRows(
    tx,
    'requests',
    COLUMNS,
    rows.map(({ row }) => row),
  );
}

const COLUMNS = [
  'namespace',
  'rpc',
  'request_id',
  'request_digest',
  'tree',
  'resource',
  'resource_id',
  'create_time',
  'claims',
] as const;
