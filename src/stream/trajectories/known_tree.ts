import type { Gain } from '../../domain/gain.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { Tag } from '../../store/contract/trajectory.ts';

/** What is shown of trajectories besides their rows, by key. */
export interface NodeFacts {
  readonly gains: ReadonlyMap<bigint, Gain>;
  readonly tags: ReadonlyMap<bigint, readonly Tag[]>;
}

interface KnownRow {
  readonly id: string;
  readonly parent: bigint | undefined;
  readonly nextStepNumber: bigint;
  readonly version: string;
}

/** What a watcher has received about the trajectories of a tree. */
export class KnownTree {
  readonly #rows = new Map<bigint, KnownRow>();
  readonly #branches = new Map<bigint, Set<bigint>>();

  get size(): number {
    return this.#rows.size;
  }

  has(key: bigint): boolean {
    return this.#rows.has(key);
  }

  /** Returns those rows that are new or have changed. */
  news(rows: readonly Trajectory[], { gains, tags }: NodeFacts): Trajectory[] {
    return rows.filter((row) => {
      const { key } = row.ref;
      const version = versionOf(row, gains.get(key), tags.get(key));
      const known = this.#rows.get(key);
      if (known?.version === version) return false;
      const parent = row.parent?.key;
      this.#rows.set(key, { id: row.id, parent, nextStepNumber: row.nextStepNumber, version });
      if (known === undefined && parent !== undefined) this.#branchesOf(parent).add(key);
      return true;
    });
  }

  /** Returns the branches outside of `rows` whose gains change, because a parent among the rows has changed its end. */
  dependents(rows: readonly Trajectory[]): bigint[] {
    const given = new Set(rows.map(({ ref }) => ref.key));
    return rows.flatMap(({ ref, nextStepNumber }) => {
      const known = this.#rows.get(ref.key);
      if (known === undefined || known.nextStepNumber === nextStepNumber) return [];
      const end = known.nextStepNumber < nextStepNumber ? known.nextStepNumber : nextStepNumber;
      const branches = [...(this.#branches.get(ref.key) ?? [])];
      return branches.filter((key) => !given.has(key) && (this.#rows.get(key)?.nextStepNumber ?? 0n) > end);
    });
  }

  /** Returns the known keys after `after`, up to `last` or the end, that are not among the rows. */
  missing(rows: readonly Trajectory[], after: bigint | undefined, last: bigint | undefined): bigint[] {
    const there = new Set(rows.map(({ ref }) => ref.key));
    return [...this.#rows.keys()].filter(
      (key) => !there.has(key) && (after === undefined || key > after) && (last === undefined || key <= last),
    );
  }

  /** Forgets rows. Returns the ids of those that were known. */
  remove(keys: readonly bigint[]): string[] {
    return keys.flatMap((key) => {
      const known = this.#rows.get(key);
      if (known === undefined) return [];
      this.#rows.delete(key);
      this.#branches.delete(key);
      if (known.parent !== undefined) this.#branches.get(known.parent)?.delete(key);
      return [known.id];
    });
  }

  #branchesOf(key: bigint): Set<bigint> {
    const branches = this.#branches.get(key) ?? new Set();
    this.#branches.set(key, branches);
    return branches;
  }
}

/** Every change of a row changes its time, except for a deletion. The gain also changes with the parent. */
function versionOf(
  { updateTime, nextStepNumber, status, hidden }: Trajectory,
  gain: Gain | undefined,
  tags: readonly Tag[] = [],
): string {
  const tagged = tags.map(({ name, stepNumber, updateTime: at }) => `${name}@${stepNumber}@${at}`);
  return [updateTime, nextStepNumber, status, hidden, gain?.gain, gain?.gainSteps, ...tagged].join(' ');
}
