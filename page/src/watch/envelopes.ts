import { joined } from './wire.ts';

/** Messages of a stream of Connect: a byte of flags, four bytes of length, and as many bytes. */

export interface StreamError {
  /** Name of the code, for example `unavailable`. */
  readonly code?: string;
  readonly message?: string;
}

interface Envelope {
  readonly flags: number;
  readonly data: Uint8Array;
}

const HEAD = 5;
/** Flag of the last message, whose data is JSON with the error of the call. */
const END = 2;

export function envelope(data: Uint8Array): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(HEAD + data.length);
  new DataView(bytes.buffer).setUint32(1, data.length);
  bytes.set(data, HEAD);
  return bytes;
}

/** Returns the messages of a body. Throws if the body ends within a message. */
export async function* envelopesOf(body: ReadableStream<Uint8Array>): AsyncGenerator<Envelope, void, undefined> {
  let pieces: Uint8Array[] = [];
  let size = 0;
  let wanted = HEAD;
  const reader = body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    size += value.length;
    if (size < wanted) continue;
    let bytes: Uint8Array = pieces.length === 1 ? value : joined(pieces);
    wanted = wantedOf(bytes);
    while (bytes.length >= wanted) {
      yield { flags: bytes[0] ?? 0, data: bytes.slice(HEAD, wanted) };
      bytes = bytes.subarray(wanted);
      wanted = wantedOf(bytes);
    }
    pieces = [bytes];
    size = bytes.length;
  }
  if (size > 0) throw new Error('the response ended within a message');
}

/** Returns the size of the first message with its head, or of a head that is not complete yet. */
function wantedOf(bytes: Uint8Array): number {
  if (bytes.length < HEAD) return HEAD;
  return HEAD + new DataView(bytes.buffer, bytes.byteOffset).getUint32(1);
}

/** Returns how a stream has ended, or undefined if the message is not its last. */
export function endOf(flags: number, data: Uint8Array): { readonly error: StreamError | undefined } | undefined {
  if ((flags & END) === 0) return undefined;
  const { error } = JSON.parse(new TextDecoder().decode(data)) as { error?: StreamError };
  return { error };
}
