import { Code, ConnectError } from '@connectrpc/connect';
import type { AnabranchClient } from './connection.ts';
import { Patience, retrying, systemTiming, type Timing } from './retry.ts';
import { digestOf, type Upload } from './step.ts';

/** How patient to be with one state. */
export interface StateOptions {
  /** Give up after so long without progress. Default 5 minutes. */
  readonly giveUpAfterMs?: number;
  readonly signal?: AbortSignal;
}

interface Effort {
  readonly giveUpAfterMs: number;
  readonly timing: Timing;
  readonly signal: AbortSignal | undefined;
}

/** Largest chunk that the server takes. */
const CHUNK_BYTES = 256 * 1024;
/** One try at one state. The largest has 256 MiB; a try that is cut off is made again. */
const STREAM_DEADLINE_MS = 5 * 60_000;

/**
 * Puts a state and returns its digest (SHA-256, hex), by which steps can refer to it. Bytes that are here already are not
 * sent again. Do not change them before it resolves.
 */
export async function uploadState(
  client: AnabranchClient,
  bytes: Uint8Array,
  options: StateOptions = {},
): Promise<string> {
  const digest = digestOf(bytes);
  await putState(client, { digest, bytes }, effortOf(options));
  return digest;
}

/** Gets the whole of a state; goes on where it was after a cut, and checks the bytes against the digest. */
export async function downloadState(
  client: AnabranchClient,
  digest: string,
  options: StateOptions = {},
): Promise<Uint8Array> {
  const effort = effortOf(options);
  const patience = new Patience(effort.giveUpAfterMs, effort.timing);
  const got: { bytes?: Uint8Array; length: number } = { length: 0 };
  await retrying(patience, effort.timing, effort.signal, async () => {
    if (got.bytes?.byteLength === got.length) return;
    const frames = client.states.getState({ digest, offset: BigInt(got.length) }, streamOptions(effort.signal));
    for await (const { state, chunk } of frames) {
      got.bytes ??= new Uint8Array(Number(state?.size ?? 0n));
      if (got.length + chunk.byteLength > got.bytes.byteLength) throw damaged(digest);
      got.bytes.set(chunk, got.length);
      got.length += chunk.byteLength;
      if (chunk.byteLength > 0) patience.progress();
    }
  });
  if (got.bytes?.byteLength !== got.length || digestOf(got.bytes) !== digest) throw damaged(digest);
  return got.bytes;
}

/** Puts bytes whose digest is known. */
export async function putState(client: AnabranchClient, upload: Upload, effort: Effort): Promise<void> {
  const { signal, timing } = effort;
  await retrying(new Patience(effort.giveUpAfterMs, timing), timing, signal, async () => {
    const here = await client.states.batchGetStates({ digests: [upload.digest] }, callOptions(signal));
    if (here.states.length === 0) await client.states.putState(chunksOf(upload), streamOptions(signal));
  });
}

async function* chunksOf({ digest, bytes }: Upload): AsyncGenerator<{ digest?: string; chunk: Uint8Array }> {
  yield { digest, chunk: bytes.subarray(0, CHUNK_BYTES) };
  for (let offset = CHUNK_BYTES; offset < bytes.byteLength; offset += CHUNK_BYTES) {
    yield { chunk: bytes.subarray(offset, offset + CHUNK_BYTES) };
  }
}

function effortOf(options: StateOptions): Effort {
  return {
    giveUpAfterMs: options.giveUpAfterMs ?? 5 * 60_000,
    timing: systemTiming(),
    signal: options.signal,
  };
}

function damaged(digest: string): ConnectError {
  return new ConnectError(`the bytes received for state ${digest} do not have that digest`, Code.DataLoss);
}

function streamOptions(signal: AbortSignal | undefined): { signal?: AbortSignal; timeoutMs: number } {
  return { ...callOptions(signal), timeoutMs: STREAM_DEADLINE_MS };
}

function callOptions(signal: AbortSignal | undefined): { signal?: AbortSignal } {
  return signal === undefined ? {} : { signal };
}
