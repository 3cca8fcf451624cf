/** A page of at most `limit` rows after the cursor. An undefined cursor means the first page. */
export interface Page<Cursor> {
  readonly limit: number;
  readonly after: Cursor | undefined;
}

/** How much of a resource is returned. `BASIC` returns JSON fields, which can be large, as empty texts. */
export type View = 'BASIC' | 'FULL';

/** The fields of an upsert. Undefined fields of an existing resource are not changed. */
export type Given<Fields> = { readonly [Name in keyof Fields]?: Fields[Name] | undefined };

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
