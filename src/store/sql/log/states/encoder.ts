import type { Caller } from '../../../../domain/caller.ts';
import type { Digest } from '../../../../domain/ids.ts';
import type { NewState, StateRef } from '../../../../domain/step.ts';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { AppendBatch, AppendOutcome } from '../../../contract/append.ts';
import type { Engine } from '../../kit/engine.ts';
import { BaseCache } from './base_cache.ts';
import { type BaseState, findLastState, restoreBase } from './bases.ts';
import { type EncodedBytes, type EncodedState, encodeBytes, encodeStates, encodeWhole } from './bytes.ts';
import { type ChainPlace, DELTA_BYTES, MOST_DEPENDENTS, placeAfter, WHOLE } from './chain.ts';
import { BaseChanged } from './referred_states.ts';

/** Steps of a trajectory with inline states. */
interface SteppedStates extends Pick<AppendBatch, 'ref' | 'states'> {
  readonly caller: Pick<Caller, 'namespace'>;
  readonly steps: readonly {
    readonly stepNumber: bigint;
    readonly states: readonly Pick<StateRef, 'name' | 'digest'>[];
  }[];
}

type InlineStates = readonly (readonly EncodedState[])[];

type Outcome = Pick<AppendOutcome, 'kind'>;

const DEFAULT_CACHE_BYTES = 64 * 1024 * 1024;

/**
 * Encodes inline states before they are stored. The base of a state is the previous one of the same name in the
 * lineage. The last states of trajectories are cached; the one of a trajectory that this process has not seen is read
 * once. After an evicted one, the next state is stored whole.
 */
export class StateEncoder {
  readonly #maxBytes: number;
  #cache: BaseCache;

  /** `maxBytes` bounds the cached states. With 0, all states are stored whole. */
  constructor(maxBytes = DEFAULT_CACHE_BYTES) {
    this.#maxBytes = maxBytes;
    this.#cache = new BaseCache(maxBytes);
  }

  forgetAll(): void {
    this.#cache = new BaseCache(this.#maxBytes);
  }

  /**
   * Encodes the states of the batches and stores them by `store`, which returns an outcome for each batch. If a base is
   * not as expected, stores them again, whole.
   */
  async store<T extends Outcome>(
    engine: Engine,
    batches: readonly SteppedStates[],
    store: (inline: InlineStates) => Promise<T[]>,
  ): Promise<T[]> {
    if (this.#maxBytes === 0 || !batches.some(hasLarge)) return store(await encodeAllWhole(batches));
    const group = new Group(engine, this.#cache, batches);
    let outcomes: T[] | undefined;
    try {
      outcomes = await store(await group.encode());
      return outcomes;
    } catch (error) {
      if (!(error instanceof BaseChanged)) throw error;
      this.#forget(batches);
      return await store(await encodeAllWhole(batches));
    } finally {
      group.settle(outcomes);
    }
  }

  /** Returns the bytes of a stored state, if they are cached. */
  held(namespace: string, digest: Digest): Uint8Array | undefined {
    return this.#cache.find(namespace, digest)?.data;
  }

  /** Forgets the last states of the trajectories, so that they are read again. */
  #forget(batches: readonly SteppedStates[]): void {
    for (const { ref, steps } of batches) {
      for (const { states } of steps) for (const { name } of states) this.#cache.forget(tupleKey(ref.key, name));
    }
  }
}

/** Encodes without bases, so that no base can be missing when the states are stored. */
async function encodeAllWhole(batches: readonly SteppedStates[]): Promise<EncodedState[][]> {
  const encoded: EncodedState[][] = [];
  for (const { states } of batches) {
    const inline = encodeStates(states);
    encoded.push(Array.isArray(inline) ? inline : await inline);
  }
  return encoded;
}

function hasLarge({ states }: SteppedStates): boolean {
  return states.some(({ data }) => data.length >= DELTA_BYTES);
}

/** The states of one group while they are encoded and stored. The cache has them once they are stored. */
class Group {
  readonly #engine: Engine;
  readonly #cache: BaseCache;
  readonly #batches: readonly SteppedStates[];
  /** By batch, the last states by trajectory and name. */
  readonly #added: Map<string, BaseState>[];
  readonly #last = new Map<string, BaseState>();
  readonly #made: BaseState[] = [];

  constructor(engine: Engine, cache: BaseCache, batches: readonly SteppedStates[]) {
    this.#engine = engine;
    this.#cache = cache;
    this.#batches = batches;
    this.#added = batches.map(() => new Map());
  }

  /** Trajectories are encoded concurrently, the batches of one in order. */
  async encode(): Promise<EncodedState[][]> {
    const encoded = this.#batches.map((): EncodedState[] => []);
    const trajectories = Map.groupBy(this.#batches.keys(), (i) => this.#batches[i]!.ref.key);
    await Promise.all(
      [...trajectories.values()].map(async (places) => {
        for (const i of places) encoded[i] = await this.#encodeBatch(this.#batches[i]!, this.#added[i]!);
      }),
    );
    return encoded;
  }

  /** Must be called once, with the outcomes of the batches, or with undefined if none was stored like this. */
  settle(outcomes: readonly Outcome[] | undefined): void {
    for (const [i, added] of this.#added.entries()) {
      const isStored = outcomes?.[i]?.kind === 'committed';
      if (isStored) for (const [key, base] of added) this.#cache.set(key, base);
    }
    // States in the middle of a batch, or not stored, may be successors of others. Only the cache bounds their bytes.
    for (const base of this.#made) if (!this.#cache.has(base)) base.data = undefined;
  }

  async #encodeBatch(batch: SteppedStates, added: Map<string, BaseState>): Promise<EncodedState[]> {
    const { namespace } = batch.caller;
    const inline = new Map(batch.states.map((state) => [state.digest, state]));
    const encoded = new Map<Digest, EncodedState>();
    for (const { stepNumber, states } of batch.steps) {
      for (const { name, digest } of states) {
        const state = inline.get(digest);
        if (state === undefined || state.data.length < DELTA_BYTES || encoded.has(digest)) continue;
        const key = tupleKey(batch.ref.key, name);
        const last = await this.#lastOf(batch, stepNumber, name);
        if (last?.digest === digest) continue;
        const next = await encodeNext(namespace, state, last);
        encoded.set(digest, next.encoded);
        this.#made.push(next.base);
        const base = this.#cache.find(namespace, digest) ?? next.base;
        this.#last.set(key, base);
        added.set(key, base);
      }
    }
    return Promise.all(batch.states.map((state) => encoded.get(state.digest) ?? encodeWhole(state)));
  }

  /** Returns the state that the next one of this name follows. Its bytes may have been evicted. */
  async #lastOf(
    { caller: { namespace }, ref }: SteppedStates,
    stepNumber: bigint,
    name: string,
  ): Promise<BaseState | undefined> {
    const key = tupleKey(ref.key, name);
    const known = this.#last.get(key) ?? this.#cache.get(key);
    if (known !== undefined) return known.namespace === namespace ? known : undefined;
    if (stepNumber === 0n) return undefined;
    const engine = this.#engine;
    const digest = await findLastState({ engine, db: engine.db, namespace }, ref, stepNumber, name);
    if (digest === undefined) return undefined;
    const restored = this.#cache.find(namespace, digest) ?? (await restoreBase(engine, namespace, digest));
    // Another trajectory may have restored it meanwhile.
    const last = this.#cache.find(namespace, digest) ?? restored;
    if (last !== undefined) this.#cache.set(key, last);
    return last;
  }
}

interface Next {
  readonly encoded: EncodedState;
  readonly base: BaseState;
}

/**
 * Encodes a state that follows another one. States that follow the same one take turns, so that its bound holds and all
 * that exceed it follow the same successor.
 */
async function encodeNext(namespace: string, state: NewState, previous: BaseState | undefined): Promise<Next> {
  let last = previous;
  while (last !== undefined) {
    if (last.successor !== undefined) last = last.successor;
    else if (last.turn !== undefined) await last.turn;
    else break;
  }
  const encoding = encodeAfter(namespace, state, last);
  if (last === undefined) return encoding;
  last.turn = encoding.catch(() => {});
  try {
    return await encoding;
  } finally {
    last.turn = undefined;
  }
}

/** Encodes a state as changes of a base if that saves at least half, else whole. */
async function encodeAfter(namespace: string, { digest, data }: NewState, last: BaseState | undefined): Promise<Next> {
  const size = data.length;
  const bases = last === undefined ? [] : basesAfter(last, size);
  const options = { isCompressible: (last?.wholeShare ?? 1) < 0.5 };
  const expected = (last?.wholeShare ?? 0) * size;
  let whole: EncodedBytes | undefined;
  // After a state that was stored as changes, the next one is most likely compressible as changes too.
  const isCompressibleAsChanges = options.isCompressible || (last?.depth ?? 0) > 0;
  for (const { base, place } of bases) {
    base.dependents += 1;
    const delta = await encodeBytes(data, { isCompressible: isCompressibleAsChanges, dictionary: base.data });
    if (!isBelow(delta, expected * SURELY_SMALL)) whole ??= await encodeBytes(data, options);
    if (whole === undefined || isBelow(delta, whole.data.length * SMALL_ENOUGH)) {
      const encoded = { digest, size, ...place, ...delta };
      const wholeShare = whole === undefined ? last?.wholeShare : whole.data.length / size;
      const isAnchor = base !== last;
      // If the anchor was not taken, it is tried again after as many states.
      const sinceAnchor = isAnchor || bases[0]?.base !== last ? 0 : base.sinceAnchor + 1;
      const anchor = isAnchor ? undefined : (base.anchor ?? base);
      return { encoded, base: baseOf(namespace, encoded, data, { wholeShare, anchor, sinceAnchor }) };
    }
    base.dependents -= 1;
  }
  whole ??= await encodeBytes(data, options);
  const encoded = { digest, size, ...WHOLE, ...whole };
  const wholeShare = whole.data.length / size;
  const base = baseOf(namespace, encoded, data, { wholeShare, anchor: undefined, sinceAnchor: 0 });
  if (last !== undefined && bases.length === 0) last.successor = base;
  return { encoded, base };
}

/** A state after this many others is stored as changes of their anchor, so that the chain grows by one. */
const ANCHOR_DISTANCE = 16;

/** Returns the possible bases of the next state: the last one and its anchor. */
function basesAfter(last: BaseState, size: number): { readonly base: BaseState; readonly place: ChainPlace }[] {
  const { anchor, sinceAnchor } = last;
  const inOrder = sinceAnchor + 1 < ANCHOR_DISTANCE ? [last, anchor] : [anchor, last];
  return inOrder.flatMap((base) => {
    if (base?.data === undefined || base.dependents >= MOST_DEPENDENTS) return [];
    const place = placeAfter(base, size);
    return place === undefined ? [] : [{ base, place }];
  });
}

/** A delta below this share of the expected size of the whole state is used without compressing the whole state. */
const SURELY_SMALL = 0.25;

/** A delta above this share of the whole state is not used. */
const SMALL_ENOUGH = 0.5;

function isBelow(delta: EncodedBytes, bytes: number): boolean {
  return delta.encoding === 'zstd' && delta.data.length <= bytes;
}

function baseOf(
  namespace: string,
  { digest, size, depth, baseBytes }: EncodedState,
  data: Uint8Array,
  place: Pick<BaseState, 'wholeShare' | 'anchor' | 'sinceAnchor'>,
): BaseState {
  const own = { namespace, digest, size, depth, baseBytes, data: keepable(data) };
  return { ...own, ...place, dependents: 0, successor: undefined, turn: undefined };
}

/** Least share of its memory that bytes must have to be kept as they are. */
const MOST_OF_MESSAGE = 0.875;

/** Returns the bytes, or a copy if they are a small part of a message, which would stay in memory with them. */
function keepable(data: Uint8Array): Uint8Array {
  return data.length >= data.buffer.byteLength * MOST_OF_MESSAGE ? data : Buffer.from(data);
}
