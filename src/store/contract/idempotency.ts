/** An idempotency key (ID1): kept with the digest of its request in the transaction of the write, at least 7 days. */
export interface IdempotencyKey {
  /** The RPC, since keys are scoped by it. */
  readonly rpc: string;
  readonly requestId: string;
  /** SHA-256 of the request, hex. */
  readonly requestDigest: string;
}
