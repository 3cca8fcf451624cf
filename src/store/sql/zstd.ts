import { constants, type ZstdOptions, zstdCompress, zstdDecompressSync } from 'node:zlib';

/** Smallest piece of output that Node accepts. */
const MIN_PIECE_BYTES = 64;

/** Level 1 finds almost nothing in a dictionary; levels above 3 take far longer and save little. */
const LEVEL = { [constants.ZSTD_c_compressionLevel]: 3 };

/** Covers an inline state and its dictionary. */
const WITH_DICTIONARY = { ...LEVEL, [constants.ZSTD_c_windowLog]: 21 };

/** Compresses on another thread. The dictionary must be passed to `decompress` too. */
export function compress(data: Uint8Array, dictionary?: Uint8Array): Promise<Uint8Array> {
  // With the size, zstd makes smaller tables, and stores it: then readers need no window.
  const pledgedSrcSize = data.length;
  const options: ZstdOptions =
    dictionary === undefined
      ? { pledgedSrcSize, params: LEVEL }
      : { pledgedSrcSize, params: WITH_DICTIONARY, dictionary };
  return new Promise((resolve, reject) => {
    zstdCompress(data, options, (error, packed) => (error === null ? resolve(packed) : reject(error)));
  });
}

/** Throws if the bytes are damaged or become more than `maxBytes`. */
export function decompress(packed: Uint8Array, maxBytes: number, dictionary?: Uint8Array): Uint8Array {
  const maxOutputLength = Math.max(maxBytes, MIN_PIECE_BYTES);
  // All output is one piece: smaller ones take five times as long. A full piece would be followed by an empty one.
  const options = { maxOutputLength, chunkSize: maxOutputLength + 1 };
  return zstdDecompressSync(packed, dictionary === undefined ? options : { ...options, dictionary });
}

/**
 * Frees bytes that `decompress` returned and that nothing uses any more, without waiting for a collection: each delta of
 * a chain is decoded into new bytes. Does nothing to bytes that share their memory with others.
 */
export function free({ buffer, byteOffset, length }: Uint8Array): void {
  const isAlone = byteOffset === 0 && buffer.byteLength <= length + 1;
  if (isAlone && buffer instanceof ArrayBuffer) buffer.transfer(0);
}
