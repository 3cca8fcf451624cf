/** Maximum number of remembered keys that belong to other trees. */
const REMEMBERED = 10_000;

/** Collects the keys of changed trajectories between two looks of a watcher. */
export class TreeHints {
  readonly #chosen: ReadonlySet<bigint> | undefined;
  #changed = new Set<bigint>();
  /** Keys outside of the tree. A trajectory never changes its tree. */
  readonly #ignored = new Set<bigint>();

  /** `chosen` are the keys of the watched trajectories. Undefined: all of a tree. */
  constructor(chosen: ReadonlySet<bigint> | undefined) {
    this.#chosen = chosen;
  }

  /** Returns whether to look. A hint without a key is left to the next poll. */
  add(key: bigint | undefined): boolean {
    if (key === undefined) return true;
    if (this.#chosen?.has(key) === false || this.#ignored.has(key)) return false;
    this.#changed.add(key);
    return true;
  }

  /** Ignores later hints of a key that is not in the tree. */
  ignore(key: bigint): void {
    if (this.#ignored.size >= REMEMBERED) this.#ignored.clear();
    this.#ignored.add(key);
  }

  /** Takes hints of a key again. Runs have keys of their own, which can be those of later trajectories. */
  watch(key: bigint): void {
    this.#ignored.delete(key);
  }

  take(): readonly bigint[] {
    const changed = [...this.#changed];
    this.#changed = new Set();
    return changed;
  }
}
