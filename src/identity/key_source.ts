import type { KeySet } from './key_set.ts';

export interface KeySourceEvents {
  /** Called for the first keys, and for each set that replaces them. */
  using(keys: KeySet): void;
  /** Called when the keys could not be renewed. Those before stay in use. */
  failed(reason: string): void;
}

/** Where the keys of the issuer come from. */
export interface KeySource {
  /** Undefined: there are none, or they are too old. */
  readonly current: KeySet | undefined;
  /** Looks for a key that a token names and that is not known. Undefined: the last look was a moment ago. */
  renew(): Promise<void> | undefined;
  /** Errors: what is wrong with a file. */
  open(): Promise<void>;
  /** Rereads a file now. Undefined: there is none. */
  reload?(): Promise<void>;
  stop(): void;
}
