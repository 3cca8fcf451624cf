import { stateDigest } from '../domain/state_digest.ts';
import { requireText } from '../domain/text.ts';
import type { IdempotencyKey } from '../store/contract/idempotency.ts';

/**
 * ID1: the key of a request, or undefined without a `requestId`. `request` holds every field of the request in a fixed order; maps are
 * taken sorted, so that the same request has the same digest whatever order its maps came in.
 */
export function idempotencyKey(
  rpc: string,
  requestId: string,
  request: readonly (string | undefined)[],
): IdempotencyKey | undefined {
  if (requestId === '') return undefined;
  requireText(requestId, 'request_id');
  const text = JSON.stringify(request.map((field) => field ?? null));
  return { rpc, requestId, requestDigest: stateDigest(Buffer.from(text)) };
}

/** A map as text for a request's digest. */
export function mapText(map: ReadonlyMap<string, string>): string {
  return JSON.stringify([...map].sort(([a], [b]) => (a < b ? -1 : 1)));
}
