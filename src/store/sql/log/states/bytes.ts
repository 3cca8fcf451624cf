import { createHash, hash } from 'node:crypto';
import { stateCorrupt } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import type { NewState } from '../../../../domain/step.ts';
import { compressState, decompress, free } from '../../kit/compression.ts';
import { type ChainPlace, WHOLE } from './chain.ts';

/** Stored form of the bytes of states: unchanged, or compressed if that saves space. */
export interface EncodedBytes {
  readonly encoding: 'raw' | 'zstd';
  readonly data: Uint8Array;
}

/** Minimum size in bytes: below it, a compression context costs more than compression saves. */
const WORTH_COMPRESSING = 2048;

/** Larger data is compressed only if this many first bytes can be. So images and archives are stored unchanged. */
const SAMPLE_BYTES = 64 * 1024;

export interface EncodingOptions {
  /** Must be passed to `decodeBytes` too. */
  readonly dictionary?: Uint8Array | undefined;
  /** Whether the data is known to be compressible. Else its first bytes are tried. */
  readonly isCompressible?: boolean;
}

/** Compresses off the event loop. */
export async function encodeBytes(
  data: Uint8Array,
  { dictionary, isCompressible = data.length <= SAMPLE_BYTES }: EncodingOptions = {},
): Promise<EncodedBytes> {
  const raw = { encoding: 'raw', data } as const;
  if (data.length < WORTH_COMPRESSING) return raw;
  const sample = data.subarray(0, SAMPLE_BYTES);
  if (!isCompressible && !isSmaller(await compressState(sample, dictionary), sample)) return raw;
  const whole = await compressState(data, dictionary);
  return isSmaller(whole, data) ? { encoding: 'zstd', data: whole } : raw;
}

function isSmaller(compressed: Uint8Array, data: Uint8Array): boolean {
  return compressed.length < data.length * 0.9;
}

/**
 * A state that came inline, ready to be stored. Encoded before the transaction begins, so that no lock waits for
 * compression.
 */
export interface EncodedState extends EncodedBytes, ChainPlace {
  readonly digest: Digest;
  readonly size: number;
}

/** Encodes states without bases. Small ones cost no promise. */
export function encodeStates(states: readonly NewState[]): EncodedState[] | Promise<EncodedState[]> {
  if (states.every(({ data }) => data.length < WORTH_COMPRESSING)) return states.map(unchanged);
  return Promise.all(states.map(encodeWhole));
}

export async function encodeWhole(state: NewState): Promise<EncodedState> {
  return { ...unchanged(state), ...(await encodeBytes(state.data)) };
}

function unchanged({ digest, data }: NewState): EncodedState {
  return { digest, size: data.length, ...WHOLE, encoding: 'raw', data };
}

/** Does not verify the bytes. Errors: STATE_CORRUPT, which names `state`. */
export function decodeBytes(
  { encoding, data }: { readonly encoding: string; readonly data: Uint8Array },
  size: number,
  state: Digest,
  dictionary?: Uint8Array,
): Uint8Array {
  let bytes = data;
  if (encoding === 'zstd') {
    try {
      // The stored size may be damaged too, so the limit of a row bounds the memory.
      bytes = decompress(data, Math.min(size, LIMITS.inlineStateBytes), dictionary);
    } catch (cause) {
      throw stateCorrupt(state, cause);
    }
  }
  if (bytes.length !== size) throw stateCorrupt(state);
  return bytes;
}

/**
 * Decodes rows of a chain: the first one with `dictionary`, or alone, and each other one with the one before. Frees the
 * bytes in between. Does not verify the bytes. Errors: STATE_CORRUPT, which names `state`.
 */
export class ChainDecoder {
  readonly #state: Digest;
  #bytes: Uint8Array | undefined;
  /** Whether these bytes were decoded here and are used nowhere else, so that they can be freed. */
  #isOwn = false;

  constructor(state: Digest, dictionary?: Uint8Array) {
    this.#state = state;
    this.#bytes = dictionary;
  }

  /** `data` is null in a damaged row. */
  add(encoding: string, data: Uint8Array | null, size: number): void {
    if (data === null) throw stateCorrupt(this.#state);
    const before = this.#bytes;
    this.#bytes = decodeBytes({ encoding, data }, size, this.#state, before);
    if (before !== undefined && this.#isOwn) free(before);
    this.#isOwn = this.#bytes !== data;
  }

  /** Returns the bytes of the last row. Nothing can be added afterwards. */
  end(): Uint8Array {
    if (this.#bytes === undefined) throw stateCorrupt(this.#state);
    return this.#bytes;
  }
}

/** Returns the bytes if they have the digest (S3). Errors: STATE_CORRUPT. */
export function verified(bytes: Uint8Array, state: Digest): Uint8Array {
  if (hash('sha256', bytes, 'hex') !== state) throw stateCorrupt(state);
  return bytes;
}

/** Every chunk of a chunked state except the last has this size, so that an offset identifies its chunk. */
export const CHUNK_BYTES = LIMITS.chunkBytes;

/**
 * Digest that is stored with a chunk. It includes the upload and the ordinal, so that exchanged chunks are detected.
 */
export function chunkDigest(upload: string, ordinal: bigint, bytes: Uint8Array): Digest {
  return createHash('sha256').update(`${upload}/${ordinal}/`).update(bytes).digest('hex');
}
