import { AnabranchError } from '../../domain/errors.ts';
import type { Digest } from '../../domain/ids.ts';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import type { LocatedState, StateStore } from '../../store/contract/state.ts';
import type { NamedState } from '../../store/contract/step.ts';
import type { Store } from '../../store/contract/store.ts';

/** The bytes of a state that a step or a content names. */
export interface Blob {
  readonly digest: Digest;
  readonly data: Uint8Array;
}

/** Digests that a call remembers, so that it does not send their bytes again. */
const REMEMBERED = 4096;

/** Digests looked up by one statement. */
const LOOKED_UP = 500;

const NONE_LOCATED: ReadonlyMap<Digest, LocatedState> = new Map();

/** Bytes that a blob takes in a message besides its data. */
const BLOB_BYTES = 80;

/** Steps, with the states that they name. */
interface Naming {
  readonly states?: readonly NamedState[];
}

export function blobBytes({ data }: Blob): number {
  return data.length + BLOB_BYTES;
}

type Read = readonly [Digest, Uint8Array | undefined];

/**
 * Returns the states that steps name, before the steps. States of many parts are read by few statements. One that a
 * call has returned for an earlier part is not repeated soon.
 */
export class InlineStates {
  readonly #store: Pick<Store, 'heldState' | 'locateStates' | 'readWholeStates'>;
  readonly #namespace: string;
  readonly #inlineBytes: number;
  /** The digests that were handled last, the oldest first. */
  readonly #handled = new Set<Digest>();
  /** What `#ahead` returns, in this order. */
  #expected = new Set<Digest>();
  #ahead: AsyncGenerator<Read, void, undefined> | undefined;

  constructor(
    store: Pick<Store, 'heldState' | 'locateStates' | 'readWholeStates'>,
    namespace: string,
    inlineBytes: number,
  ) {
    this.#store = store;
    this.#namespace = namespace;
    this.#inlineBytes = inlineBytes;
  }

  /** Has the states of these parts read together. The parts must be returned next, in this order. */
  expect(parts: readonly Naming[]): void {
    const states = parts.flatMap((part) => part.states ?? []);
    const missing = states.filter(({ digest, data }) => data === undefined && !this.#handled.has(digest));
    this.#expected = new Set(missing.map(({ digest }) => digest));
    this.#ahead = this.#read([...this.#expected]);
  }

  /**
   * Returns the states of a part that were not returned lately, in lists that fit into a message. Leaves out larger
   * states, and those that were deleted meanwhile. Errors: STATE_CORRUPT.
   */
  async *of(part: Naming): AsyncGenerator<readonly Blob[], void, undefined> {
    let blobs: Blob[] = [];
    let bytes = 0;
    for (const { digest, data: small } of part.states ?? []) {
      if (this.#handled.has(digest)) continue;
      if (small === undefined && !this.#expected.has(digest)) this.expect([part]);
      let data = small;
      try {
        data ??= await this.#take(digest);
      } catch (error) {
        // Remembered ones must be sent.
        if (blobs.length > 0) yield blobs;
        throw error;
      }
      this.#remember(digest);
      if (data === undefined) continue;
      const blob = { digest, data };
      bytes += blobBytes(blob);
      if (blobs.length > 0 && bytes > ANSWER_BYTES) {
        yield blobs;
        [blobs, bytes] = [[], blobBytes(blob)];
      }
      blobs.push(blob);
    }
    if (blobs.length > 0) yield blobs;
  }

  /** Returns the bytes of each state in order, undefined for those that are larger or were deleted. */
  async *#read(digests: readonly Digest[]): AsyncGenerator<Read, void, undefined> {
    for (let at = 0; at < digests.length; at += LOOKED_UP) {
      const some = digests.slice(at, at + LOOKED_UP);
      const held = new Map(some.map((digest) => [digest, this.#store.heldState(this.#namespace, digest)]));
      const missing = some.filter((digest) => held.get(digest) === undefined);
      const located = missing.length === 0 ? NONE_LOCATED : await this.#store.locateStates(this.#namespace, missing);
      const fitting = missing
        .flatMap((digest) => located.get(digest) ?? [])
        .filter(({ size }) => size <= this.#inlineBytes);
      const found = new Set(fitting);
      const reading = readTogether(this.#store, this.#namespace, fitting);
      for (const digest of some) {
        const data = held.get(digest);
        if (data !== undefined) {
          yield [digest, data.length <= this.#inlineBytes ? data : undefined];
          continue;
        }
        const state = located.get(digest);
        const next = state !== undefined && found.has(state) ? await reading.next() : undefined;
        yield [digest, next?.done === false ? next.value[1] : undefined];
      }
    }
  }

  /** Returns a state that is expected. Errors: STATE_CORRUPT. */
  async #take(wanted: Digest): Promise<Uint8Array | undefined> {
    try {
      return await this.#next(wanted);
    } catch (error) {
      this.#expected.clear();
      if (!(error instanceof AnabranchError && error.reason === 'STATE_CORRUPT')) throw error;
      // The damaged state may be another one that the same statement has read.
      this.expect([{ states: [{ digest: wanted }] }]);
      return this.#next(wanted);
    }
  }

  async #next(wanted: Digest): Promise<Uint8Array | undefined> {
    for (let next = await this.#ahead?.next(); next?.done === false; next = await this.#ahead?.next()) {
      const [digest, data] = next.value;
      this.#expected.delete(digest);
      if (digest === wanted) return data;
    }
    return undefined;
  }

  #remember(digest: Digest): void {
    this.#handled.add(digest);
    if (this.#handled.size <= REMEMBERED) return;
    for (const oldest of this.#handled) {
      this.#handled.delete(oldest);
      return;
    }
  }
}

/** Bytes that one statement reads, unless one state alone has more, and how many states. */
const BATCH_BYTES = 1024 * 1024;
const BATCH_STATES = 256;

/**
 * Returns states in order with their verified bytes, several of them in one statement. The bytes are undefined if the
 * state is stored in chunks, or was deleted meanwhile. Errors: STATE_CORRUPT.
 */
export async function* readTogether(
  store: Pick<StateStore, 'readWholeStates'>,
  namespace: string,
  states: readonly LocatedState[],
): AsyncGenerator<readonly [LocatedState, Uint8Array | undefined], void, undefined> {
  for (let at = 0; at < states.length; ) {
    const batch = batchFrom(states, at);
    at += batch.length;
    const whole = batch.filter(({ decodedBytes }) => decodedBytes !== undefined).map(({ digest }) => digest);
    const found = await store.readWholeStates(namespace, whole);
    for (const state of batch) yield [state, found.get(state.digest)];
  }
}

function batchFrom(states: readonly LocatedState[], begin: number): readonly LocatedState[] {
  let bytes = 0;
  let end = begin;
  while (end < states.length && end - begin < BATCH_STATES) {
    bytes += states[end]!.decodedBytes ?? 0;
    if (bytes > BATCH_BYTES && end > begin) break;
    end += 1;
  }
  return states.slice(begin, end);
}
