import { stateNotFound } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import { compareText } from '../../../../domain/text_order.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import { padded } from '../../kit/kept_queries.ts';
import { STATES } from '../../kit/tables/states.ts';
import type { RowOf } from '../../kit/tables/table.ts';
import type { Transaction } from '../../kit/transaction.ts';
import { bindDigest, readDigest } from '../../kit/values.ts';
import type { StatesEngine } from '../engine.ts';
import { selectBases } from './bases.ts';
import type { EncodedState } from './bytes.ts';
import { MOST_DEPENDENTS } from './chain.ts';

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

/** A row to be locked: of a state that is stored or marked, or of a base. */
interface LockedState {
  readonly namespace: string;
  readonly digest: Digest;
  readonly purpose: 'store' | 'refer' | 'base';
  readonly bytes?: EncodedState | undefined;
}

/** A base does not exist, or cannot have this dependent. The states must be encoded without bases. */
export class BaseChanged extends Error {
  override readonly name = 'BaseChanged';

  constructor(base: Digest) {
    super(`state ${base} is not the base that it was expected to be`);
  }
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
  readonly #tx: Transaction<StatesEngine>;
  readonly #namespaces = new Map<string, NamespaceStates>();

  constructor(tx: Transaction<StatesEngine>) {
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
    for (const { digest, size, referenced } of await this.#tx.engine.stateRows.find(
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
   * STATE_NOT_FOUND, if a state was deleted after it was found; BaseChanged.
   */
  async write(wait: 'briefly' | 'bounded'): Promise<void> {
    const unmarked = this.#unmarked();
    if (unmarked.length === 0) return;
    // All statements are sent at once and run in this order.
    const waiting = wait === 'briefly' ? this.#tx.engine.locks.waitBriefly(this.#tx.db) : undefined;
    const marking = runsOf(withBases(unmarked)).map((run) => this.#mark(run));
    const checks = [...Map.groupBy(unmarked, ({ namespace }) => namespace)].map(([namespace, states]) =>
      checkBases(
        this.#tx,
        namespace,
        states.flatMap(({ bytes }) => bytes ?? []),
      ),
    );
    await Promise.all([waiting, ...marking, ...checks]);
  }

  async #mark(run: readonly LockedState[]): Promise<void> {
    const { namespace, purpose } = run[0]!;
    if (purpose === 'store') {
      const rows = run.flatMap(({ bytes }) => (bytes === undefined ? [] : [stateRow(namespace, bytes, this.#tx.now)]));
      await this.#tx.engine.bulk.insert(this.#tx.db, STATES, rows, REFERENCE_IF_STORED);
      return;
    }
    const digests = run.map(({ digest }) => digest);
    if (purpose === 'base') {
      // A missing one is found by `checkBases`.
      await this.#tx.engine.stateRows.find(this.#tx.db, namespace, digests, 'lock');
      return;
    }
    const marked = new Set(await this.#tx.engine.stateRows.refer(this.#tx.db, namespace, digests));
    const missing = digests.find((digest) => !marked.has(digest));
    if (missing !== undefined) throw stateNotFound(missing);
  }

  #unmarked(): ReferredState[] {
    return [...this.#namespaces.values()]
      .flatMap(({ states }) => [...states.values()])
      .filter(({ used, referenced }) => used && !referenced);
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
  set referenced = true, collected = false, version = states.version + 1 where not states.referenced`;

/** Returns the row of a new state that a step refers to. */
function stateRow(
  namespace: string,
  { digest, size, encoding, base, depth, baseBytes, data }: EncodedState,
  now: string,
): RowOf<typeof STATES> {
  return {
    namespace,
    digest: bindDigest(digest),
    size: BigInt(size),
    encoding,
    base: base === undefined ? null : bindDigest(base),
    depth: BigInt(depth),
    base_bytes: BigInt(baseBytes),
    collected: 0,
    data,
    upload: null,
    referenced: 1,
    version: 0n,
    renew_time: neverRenewed(now),
  };
}

/**
 * S2: neither PutState nor HasStates has renewed a state that came with a step, so its retention time is over. Still,
 * no row has the same time as a former one of its digest.
 */
function neverRenewed(now: string): string {
  return formatInstant(parseInstant(now) - CENTURY, 6);
}

const CENTURY = 36_525n * 24n * 3600n * 1_000_000_000n;

/** Returns the rows to be locked, in the order of locks. */
function withBases(states: readonly ReferredState[]): LockedState[] {
  const locked = new Map<string, LockedState>();
  for (const { namespace, digest, bytes } of states) {
    const purpose = bytes === undefined ? 'refer' : 'store';
    locked.set(tupleKey(namespace, digest), { namespace, digest, purpose, bytes });
  }
  for (const { namespace, bytes } of states) {
    if (bytes?.base === undefined) continue;
    const key = tupleKey(namespace, bytes.base);
    if (!locked.has(key)) locked.set(key, { namespace, digest: bytes.base, purpose: 'base' });
  }
  return [...locked.values()].sort((a, b) => compareText(a.namespace, b.namespace) || compareText(a.digest, b.digest));
}

/** Groups rows that one statement can write or lock. */
function runsOf(states: readonly LockedState[]): LockedState[][] {
  const runs: LockedState[][] = [];
  for (const state of states) {
    const run = runs.at(-1);
    const [first] = run ?? [];
    const alike = first?.namespace === state.namespace && first.purpose === state.purpose;
    if (run !== undefined && alike) run.push(state);
    else runs.push([state]);
  }
  return runs;
}

/**
 * Checks the locked bases of stored states. They may have been deleted, stored in another way by another writer, or
 * have as many dependents as they can have. Errors: BaseChanged.
 */
async function checkBases(tx: Transaction, namespace: string, stored: readonly EncodedState[]): Promise<void> {
  const deltas = stored.filter((state) => state.base !== undefined);
  if (deltas.length === 0) return;
  const bases = [...new Set(deltas.flatMap(({ base }) => base ?? []))];
  const query = tx.engine.kept.of('bases', [namespace, padded(bases).map(bindDigest)], (of, among) =>
    selectBases(tx.db, of).where('s.digest', 'in', among),
  );
  const rows = await tx.engine.transactions.ask(tx.db, query);
  const found = new Map(rows.map((row) => [readDigest(row.digest), row]));
  for (const { base, depth, baseBytes } of deltas) {
    const row = found.get(base!);
    const isSame = row !== undefined && row.depth < depth && row.base_bytes + row.size <= baseBytes;
    if (!isSame || Number(row.dependents) > MOST_DEPENDENTS) throw new BaseChanged(base!);
  }
}
