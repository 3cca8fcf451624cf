import { Code, ConnectError } from '@connectrpc/connect';
import type { AnabranchClient } from './connection.ts';
import { Patience, retrying, systemTiming, type Timing } from './retry.ts';
import { digestOf, type Upload } from './step.ts';

/** Names a state of a step. The step may be inherited. */
export interface StateReference {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
  /** Default: `env`. */
  readonly name?: string;
}

/** Options of uploadState() and downloadState(). */
export interface StateOptions {
  /** Gives up after this many milliseconds without progress. Default 5 minutes. */
  readonly giveUpAfterMs?: number;
  readonly signal?: AbortSignal;
}

interface Effort {
  readonly giveUpAfterMs: number;
  readonly timing: Timing;
  readonly signal: AbortSignal | undefined;
}

/** Deadline of one try. It suffices for the largest states; a try that fails is repeated. */
const STREAM_DEADLINE_MS = 5 * 60_000;

/**
 * Uploads a state and returns its digest (SHA-256, lower-case hex). Steps refer to the state by this digest. If the
 * server has the bytes already, they are not sent. Do not change `bytes` before the promise resolves.
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

/**
 * Downloads a whole state, named by its step or by its digest. After a lost connection it continues at the last offset.
 * Checks the bytes against the digest, and throws DATA_LOSS if they differ.
 */
export async function downloadState(
  client: AnabranchClient,
  state: StateReference | string,
  options: StateOptions = {},
): Promise<Uint8Array> {
  const effort = effortOf(options);
  const patience = new Patience(effort.giveUpAfterMs, effort.timing);
  const named = typeof state === 'string' ? { digest: state } : { reference: state };
  const received: { digest?: string; bytes?: Uint8Array; length: number } = { length: 0 };
  if (named.digest !== undefined) received.digest = named.digest;
  await retrying(patience, effort.timing, effort.signal, async () => {
    if (received.bytes?.byteLength === received.length) return;
    const frames = client.states.getState({ ...named, offset: BigInt(received.length) }, streamOptions(effort.signal));
    for await (const { state: info, chunk } of frames) {
      received.digest ??= info?.digest ?? '';
      received.bytes ??= new Uint8Array(Number(info?.size ?? 0n));
      if (received.length + chunk.byteLength > received.bytes.byteLength) throw damaged(received.digest);
      received.bytes.set(chunk, received.length);
      received.length += chunk.byteLength;
      if (chunk.byteLength > 0) patience.progress();
    }
  });
  const { digest = '', bytes, length } = received;
  if (bytes?.byteLength !== length || digestOf(bytes) !== digest) throw damaged(digest);
  return bytes;
}

/** Uploads bytes whose digest is known. */
export async function putState(client: AnabranchClient, upload: Upload, effort: Effort): Promise<void> {
  const { signal, timing } = effort;
  const chunks = () => chunksOf(upload, client.limits.current.chunkBytes);
  await retrying(new Patience(effort.giveUpAfterMs, timing), timing, signal, async () => {
    const stored = await client.states.hasStates({ digests: [upload.digest] }, callOptions(signal));
    if (stored.states.length === 0) await client.states.putState(chunks(), streamOptions(signal));
  });
}

async function* chunksOf(
  { digest, baseDigest = '', bytes }: Upload,
  chunkBytes: number,
): AsyncGenerator<{ digest?: string; baseDigest?: string; chunk: Uint8Array }> {
  yield { digest, baseDigest, chunk: bytes.subarray(0, chunkBytes) };
  for (let offset = chunkBytes; offset < bytes.byteLength; offset += chunkBytes) {
    yield { chunk: bytes.subarray(offset, offset + chunkBytes) };
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
