/** Maximum number of remembered keys that belong to other trees. */
const REMEMBERED = 10_000;

/** What hints have told between two looks. */
export interface HintedTrees {
  /** Keys of trajectories that changed. */
  readonly changed: readonly bigint[];
  /** Whether others may have changed. */
  readonly isPoll: boolean;
}

/** Collects the keys of changed trajectories between two looks of a watcher. */
export class TreeHints {
  readonly #chosen: ReadonlySet<bigint> | undefined;
  #changed = new Set<bigint>();
  #isPoll = false;
  /** Keys outside of the tree. A trajectory never changes its tree. */
  readonly #ignored = new Set<bigint>();

  /** `chosen` are the keys of the watched trajectories. Undefined: all of a tree. */
  constructor(chosen: ReadonlySet<bigint> | undefined) {
    this.#chosen = chosen;
  }

  /** Returns whether to look. Without a key, any trajectory may have changed. */
  add(key: bigint | undefined): boolean {
    if (key === undefined) {
      this.#isPoll = true;
      return true;
    }
    if (this.#chosen?.has(key) === false || this.#ignored.has(key)) return false;
    this.#changed.add(key);
    return true;
  }

  /** Ignores later hints of a key that is not in the tree. */
  ignore(key: bigint): void {
    if (this.#ignored.size >= REMEMBERED) this.#ignored.clear();
    this.#ignored.add(key);
  }

  take(): HintedTrees {
    const taken = { changed: [...this.#changed], isPoll: this.#isPoll };
    this.#changed = new Set();
    this.#isPoll = false;
    return taken;
  }
}
