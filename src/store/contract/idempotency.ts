/**
 * ID1: an idempotency key. It is stored with the digest of its request in the transaction of the write, and kept for at
 * least 7 days.
 */
export interface IdempotencyKey {
  /** Name of the RPC, which is the scope of the key. */
  readonly rpc: string;
  readonly requestId: string;
  /**
   * Digest of the request's fields, with the version of its rules. Requests are compared by it only within one version.
   */
  readonly requestDigest: string;
}
