import type { Digest } from '../../domain/ids.ts';

/** States by digest, once per namespace (S1). Digests and bytes only: how bytes are kept (whole, compressed, as deltas) is the store's own. */
export interface StateStore {
  /** Begins to store a state that comes in chunks (S4). Nothing is to be found before `finish`. */
  putState(namespace: string): StateUpload;

  /** Which of the digests are here, with sizes, in the order given; with `renew` their time of S2 begins again. */
  findStates(namespace: string, digests: readonly Digest[], renew: boolean): Promise<StateInfo[]>;

  /**
   * Bytes of a state from `offset` on: as many as stand together in the store, at most about 256 KiB, none at the end; verified by a hash of
   * what they are cut from (S3). Errors: STATE_NOT_FOUND, STATE_CORRUPT.
   */
  readState(namespace: string, digest: Digest, offset: number): Promise<Uint8Array>;

  /**
   * S2: deletes states that no step refers to and that were last renewed more than `ttlHours` ago, and what broken uploads left; at most
   * `limit`; returns how many. Never takes one that an append refers to at the same time.
   */
  collectStates(ttlHours: number, limit: number): Promise<number>;
}

export interface StateInfo {
  readonly digest: Digest;
  readonly size: number;
}

/** One upload, in pieces of any size: copied, and stored in chunks of 256 KiB as they fill, so that memory stays bounded. */
export interface StateUpload {
  write(piece: Uint8Array): Promise<void>;
  /** The digest of what was written; nothing more can be written then. */
  digest(): Digest;
  /** Names what was written by its digest; resolves when durable. A state that was here already is renewed and the new bytes are dropped. */
  finish(): Promise<StateInfo>;
  /** Drops what was written. Idempotent, and harmless after `finish`. */
  abort(): Promise<void>;
}
