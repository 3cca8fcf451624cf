import { stateNotFound } from '../../../domain/errors.ts';
import type { Digest } from '../../../domain/ids.ts';
import { compareText } from '../../../domain/text_order.ts';
import { STATES } from '../tables/states.ts';
import type { RowOf } from '../tables/table.ts';
import type { Transaction } from '../transaction.ts';
import { bindDigest } from '../values.ts';
import type { EncodedState } from './bytes.ts';

interface ReferredState {
  readonly namespace: string;
  readonly digest: Digest;
  readonly size: number;
  /** Whether steps already refer to the stored state, so that a new reference needs no write. */
  readonly referenced: boolean;
  /** Undefined if the state must be stored already. */
  readonly bytes: EncodedState | undefined;
  used: boolean;
}

interface NamespaceStates {
  readonly states: Map<Digest, ReferredState>;
  readonly sizes: Map<Digest, number>;
}

/**
 * States that the new steps of one transaction refer to.
 * A state that is referenced already is neither locked nor changed, so that writers that share states do not wait.
 * `STATES` explains why that is safe.
 * All others are locked in one pass in order of namespace and digest, after all decisions. Every transaction takes
 * these locks in that order and none before the pass, so that transactions do not deadlock.
 */
export class ReferredStates {
  readonly #tx: Transaction;
  readonly #namespaces = new Map<string, NamespaceStates>();

  constructor(tx: Transaction) {
    this.#tx = tx;
  }

  /**
   * Looks up stored states without locking them. Must be called once per namespace, with all digests that its steps
   * refer to.
   */
  async find(namespace: string, digests: Iterable<Digest>): Promise<void> {
    const wanted = [...new Set(digests)];
    if (wanted.length === 0) return;
    const { states, sizes } = this.#of(namespace);
    for (const { digest, size, referenced } of await this.#tx.engine.findStates(
      this.#tx.db,
      namespace,
      wanted,
      'refer',
    )) {
      states.set(digest, { namespace, digest, size, referenced, bytes: undefined, used: false });
      sizes.set(digest, size);
    }
  }

  /** Adds inline states. */
  add(namespace: string, inline: readonly EncodedState[]): void {
    const { states, sizes } = this.#of(namespace);
    for (const bytes of inline) {
      const { digest, size } = bytes;
      const found = states.get(digest);
      if (found?.referenced === true || found?.bytes !== undefined) continue;
      states.set(digest, { namespace, digest, size, referenced: false, bytes, used: found?.used === true });
      sizes.set(digest, size);
    }
  }

  /** Returns the sizes of the states that were found or added. */
  sizes(namespace: string): ReadonlyMap<Digest, number> {
    return this.#of(namespace).sizes;
  }

  /** Records that a new step refers to the state. Returns its size. */
  use(namespace: string, digest: Digest): number {
    const state = this.#of(namespace).states.get(digest);
    if (state === undefined) throw new Error(`state ${digest} was not looked up before its step was written`);
    state.used = true;
    return state.size;
  }

  /**
   * Stores and marks the states that new steps refer to. With `briefly`, waits only briefly for locks. Errors:
   * STATE_NOT_FOUND, if a state was deleted after it was found.
   */
  async write(wait: 'briefly' | 'bounded'): Promise<void> {
    const runs = runsOf(this.#unmarked());
    if (runs.length === 0) return;
    // All statements are sent at once and run in this order.
    const waiting = wait === 'briefly' ? this.#tx.engine.waitBriefly(this.#tx.db) : undefined;
    await Promise.all([waiting, ...runs.map((run) => this.#mark(run))]);
  }

  async #mark(run: readonly ReferredState[]): Promise<void> {
    const { namespace, bytes } = run[0]!;
    if (bytes !== undefined) {
      const rows = run.flatMap((state) =>
        state.bytes === undefined ? [] : [stateRow(namespace, state.bytes, this.#tx.now)],
      );
      await this.#tx.engine.insertRows(this.#tx.db, STATES, rows, REFERENCE_IF_STORED);
      return;
    }
    const digests = run.map(({ digest }) => digest);
    const marked = new Set(await this.#tx.engine.referToStates(this.#tx.db, namespace, digests));
    const missing = digests.find((digest) => !marked.has(digest));
    if (missing !== undefined) throw stateNotFound(missing);
  }

  #unmarked(): ReferredState[] {
    return [...this.#namespaces.values()]
      .flatMap(({ states }) => [...states.values()])
      .filter(({ used, referenced }) => used && !referenced)
      .sort((a, b) => compareText(a.namespace, b.namespace) || compareText(a.digest, b.digest));
  }

  #of(namespace: string): NamespaceStates {
    let found = this.#namespaces.get(namespace);
    if (found === undefined) {
      found = { states: new Map(), sizes: new Map() };
      this.#namespaces.set(namespace, found);
    }
    return found;
  }
}

/** A stored state is locked, even if it is referenced already and nothing changes. */
const REFERENCE_IF_STORED = ` on conflict (namespace, digest) do update
  set referenced = true, version = states.version + 1 where not states.referenced`;

/** Returns the row of a new state that a step refers to. */
function stateRow(
  namespace: string,
  { digest, size, encoding, data }: EncodedState,
  now: string,
): RowOf<typeof STATES> {
  return {
    namespace,
    digest: bindDigest(digest),
    size: BigInt(size),
    encoding,
    data,
    upload: null,
    referenced: 1,
    version: 0n,
    renew_time: now,
  };
}

/** Groups states that one statement can write: same namespace, and all with their bytes or all without. */
function runsOf(states: readonly ReferredState[]): ReferredState[][] {
  const runs: ReferredState[][] = [];
  for (const state of states) {
    const run = runs.at(-1);
    const [first] = run ?? [];
    const alike = first?.namespace === state.namespace && (first.bytes === undefined) === (state.bytes === undefined);
    if (run !== undefined && alike) run.push(state);
    else runs.push([state]);
  }
  return runs;
}
