import type { Head } from '../../../../domain/append.ts';
import { isSealed } from '../../../../domain/lifecycle.ts';
import type { LockedHead } from '../../kit/engine.ts';
import type { Sums } from '../../kit/running_sums.ts';
import { headOf } from './heads.ts';
import { StepEncoder } from './segment_builder.ts';

/** A trajectory's head after the last append or grant of this process. Other processes may have changed it since. */
export interface KnownHead {
  readonly locked: LockedHead;
  readonly head: Head;
  readonly sums: Sums;
}

/** Trajectories that are cached. The oldest entry is evicted first. */
const MAX_KNOWN = 10_000;

export class KnownHeads {
  readonly encoder = new StepEncoder();
  readonly #heads = new Map<bigint, KnownHead>();

  get(key: bigint): KnownHead | undefined {
    return this.#heads.get(key);
  }

  /** Caches a head. Must be called after the commit of the transaction that locked the row (`AfterCommit`). */
  learn({ locked, head, sums }: KnownHead): void {
    this.#heads.delete(locked.key);
    if (isSealed(head.status)) return;
    if (this.#heads.size >= MAX_KNOWN) for (const key of this.#heads.keys()) if (this.#heads.delete(key)) break;
    this.#heads.set(locked.key, { locked, head, sums });
  }

  learnLocked(locked: LockedHead): void {
    this.learn({ locked, head: headOf(locked), sums: locked.sums });
  }

  forget(key: bigint): void {
    this.#heads.delete(key);
  }

  forgetAll(): void {
    this.#heads.clear();
  }
}
