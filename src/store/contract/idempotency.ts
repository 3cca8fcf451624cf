/** An idempotency key (ID1): kept with the digest of its request in the transaction of the write, at least 7 days. */
export interface IdempotencyKey {
  /** The RPC, since keys are scoped by it. */
  readonly rpc: string;
  readonly requestId: string;
  /** Digest of the request's fields, with the version of its rules. Requests are compared by it only within one version. */
  readonly requestDigest: string;
}
