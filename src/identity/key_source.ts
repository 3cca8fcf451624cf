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
  /** Looks for keys that a token names and that are not known. Undefined: that would be too soon after the last look. */
  renew(): Promise<void> | undefined;
  /** Errors: what is wrong with a file. */
  open(): Promise<void>;
  stop(): void;
}
