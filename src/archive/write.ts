import { hash } from 'node:crypto';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { constants, createZstdCompress } from 'node:zlib';
import type { ArchivePart, StatePart } from '../domain/archive.ts';
import { BLOCK, writeHeader, writeSmallStates } from './entries.ts';

/** The window bounds the memory of readers. Level 3 is the default of zstd. */
const PARAMS = {
  [constants.ZSTD_c_compressionLevel]: 3,
  [constants.ZSTD_c_windowLog]: 21,
  [constants.ZSTD_c_checksumFlag]: 1,
};

/** Bytes that are given on at once. */
const CHUNK_BYTES = 256 * 1024;

/** Chunks that are made while zstd compresses another one, on its own thread. */
const AHEAD = 4;

/**
 * Returns the bytes of an archive with these parts, in chunks of at most 256 KiB. Parts are requested as the bytes are
 * read. Errors: those of the parts.
 */
export async function* writeArchive(parts: AsyncIterable<ArchivePart>): AsyncGenerator<Uint8Array, void, undefined> {
  const zstd = createZstdCompress({ params: PARAMS, chunkSize: CHUNK_BYTES });
  let failure: unknown;
  const written = pipeline(
    Readable.from(joined(blocks(parts)), { objectMode: true, highWaterMark: AHEAD }),
    zstd,
  ).catch((error: unknown) => {
    failure = error;
  });
  try {
    for await (const chunk of zstd as AsyncIterable<Buffer>) yield chunk;
  } catch (error) {
    await written;
    throw failure ?? error;
  } finally {
    zstd.destroy();
    await written;
  }
}

async function* blocks(parts: AsyncIterable<ArchivePart>): AsyncGenerator<Uint8Array, void, undefined> {
  let records = 0;
  for await (const part of parts) {
    if (part.kind === 'state') {
      if (part.offset === 0) yield writeHeader({ name: `states/${part.digest}`, size: part.size });
      if (part.bytes.length > 0) yield part.bytes;
      if (part.offset + part.bytes.length === part.size) yield padding(part.size);
      continue;
    }
    if (part.kind === 'records') records += 1;
    const bytes = contentOf(part);
    yield writeHeader({ name: nameOf(part, records, hash('sha256', bytes, 'hex')), size: bytes.length });
    yield bytes;
    yield padding(bytes.length);
  }
  yield new Uint8Array(2 * BLOCK);
}

/** A part that is an entry of its own. */
type WholePart = Exclude<ArchivePart, StatePart>;

function contentOf(part: WholePart): Uint8Array {
  if (part.kind === 'records') return Buffer.from(part.text);
  return part.kind === 'small_states' ? writeSmallStates(part.states) : part.bytes;
}

function nameOf(part: WholePart, records: number, digest: string): string {
  if (part.kind === 'records') return `records/${String(records).padStart(8, '0')}.${digest}.jsonl`;
  if (part.kind === 'small_states') return `small_states/${digest}.binpb`;
  return `steps/${part.trajectoryId}/${part.firstStepNumber}.${digest}.binpb`;
}

function padding(size: number): Uint8Array {
  return new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK);
}

/** Joins blocks, because each write to zstd is a task of another thread. */
async function* joined(blocks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  let [waiting, bytes]: [Uint8Array[], number] = [[], 0];
  for await (const block of blocks) {
    waiting.push(block);
    bytes += block.length;
    if (bytes < CHUNK_BYTES) continue;
    yield Buffer.concat(waiting);
    [waiting, bytes] = [[], 0];
  }
  if (bytes > 0) yield Buffer.concat(waiting);
}
