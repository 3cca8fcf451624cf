import type { Head } from '../../../../domain/append.ts';
import { isSealed } from '../../../../domain/lifecycle.ts';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { LockedHead } from '../../kit/engine.ts';
import type { Sums } from '../../kit/running_sums.ts';
import { RecentSegments } from '../merge/recent_segments.ts';
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

interface Known {
  readonly ref: TrajectoryRef;
  readonly namespace: string;
  readonly id: string;
  head: KnownHead | undefined;
}

/** Trajectories that this process has written lately: their heads, and their row keys by id. */
export class KnownHeads {
  readonly encoder = new StepEncoder();
  readonly recent = new RecentSegments();
  readonly #known = new Map<bigint, Known>();
  /** By namespace, then by id. */
  readonly #ids = new Map<string, Map<string, Known>>();

  get(key: bigint): KnownHead | undefined {
    return this.#known.get(key)?.head;
  }

  /** Returns the row keys of a trajectory. It may have been deleted, and another one may have its id. */
  find(namespace: string, id: string): TrajectoryRef | undefined {
    return this.#ids.get(namespace)?.get(id)?.ref;
  }

  /** Caches a head. Must be called after the commit of the transaction that locked the row (`AfterCommit`). */
  learn({ locked, head, sums }: KnownHead): void {
    const known = this.#known.get(locked.key) ?? this.#add(locked);
    known.head = isSealed(head.status) ? undefined : { locked, head, sums };
    // The newest entry is the last one.
    this.#known.delete(locked.key);
    this.#known.set(locked.key, known);
  }

  learnLocked(locked: LockedHead): void {
    this.learn({ locked, head: headOf(locked), sums: locked.sums });
  }

  /** Forgets the head of a trajectory that is about to change, or has. */
  forget(key: bigint): void {
    const known = this.#known.get(key);
    if (known !== undefined) known.head = undefined;
  }

  /** Forgets a trajectory that may not exist any more. */
  remove(key: bigint): void {
    const known = this.#known.get(key);
    if (known === undefined) return;
    this.#known.delete(key);
    const ids = this.#ids.get(known.namespace);
    if (ids?.get(known.id) === known) ids.delete(known.id);
    if (ids?.size === 0) this.#ids.delete(known.namespace);
  }

  removeAll(): void {
    this.#known.clear();
    this.#ids.clear();
  }

  #add({ tree, key, namespace, id }: LockedHead): Known {
    if (this.#known.size >= MAX_KNOWN) {
      const [oldest] = this.#known.keys();
      if (oldest !== undefined) this.remove(oldest);
    }
    const known = { ref: { tree, key }, namespace, id, head: undefined };
    let ids = this.#ids.get(namespace);
    if (ids === undefined) {
      ids = new Map();
      this.#ids.set(namespace, ids);
    }
    ids.set(id, known);
    return known;
  }
}
