import type { Digest } from '../../../../domain/ids.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { BaseState } from './bases.ts';

/** Last states that are known, with or without their bytes. */
const MOST_KNOWN = 20_000;

/**
 * Last states by trajectory and name. Bounds the bytes of the states: those that were used longest ago lose theirs, and
 * are still known.
 */
export class BaseCache {
  readonly #maxBytes: number;
  readonly #known = new Map<string, BaseState>();
  /** States with bytes, by namespace and digest, in order of use. */
  readonly #held = new Map<string, BaseState>();
  #bytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get(key: string): BaseState | undefined {
    return this.#known.get(key);
  }

  /** Returns a state with bytes. */
  find(namespace: string, digest: Digest): BaseState | undefined {
    return this.#held.get(tupleKey(namespace, digest));
  }

  has(base: BaseState): boolean {
    return this.find(base.namespace, base.digest) === base;
  }

  set(key: string, base: BaseState): void {
    this.#known.delete(key);
    this.#known.set(key, base);
    if (this.#known.size > MOST_KNOWN) for (const oldest of this.#known.keys()) if (this.#known.delete(oldest)) break;
    // The anchor is used again too, though rarely. It may come from the same batch, and was not held before then.
    if (base.anchor?.data !== undefined) this.#hold(base.anchor);
    if (base.data !== undefined) this.#hold(base);
  }

  forget(key: string): void {
    this.#known.delete(key);
  }

  #hold(base: BaseState): void {
    const name = tupleKey(base.namespace, base.digest);
    const before = this.#held.get(name);
    this.#held.delete(name);
    this.#held.set(name, base);
    this.#bytes += base.size - (before?.size ?? 0);
    if (before !== undefined && before !== base) before.data = undefined;
    for (const [oldest, evicted] of this.#held) {
      if (this.#bytes <= this.#maxBytes) return;
      this.#held.delete(oldest);
      this.#bytes -= evicted.size;
      evicted.data = undefined;
    }
  }
}
