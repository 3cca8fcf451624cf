/**
 * ID1: an idempotency key. It is stored with the digest of its request in the transaction of the write, and kept for at
 * least 7 days.
 */
export interface IdempotencyKey {
  /** Name of the RPC, which is the scope of the key. */
  readonly rpc: string;
  readonly requestId: string;
  /** Digest of the request's fields, by which requests are compared. */
  readonly requestDigest: string;
}
