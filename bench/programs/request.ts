import { Client, credentials } from '@grpc/grpc-js';
import { interceptorsFor, percentile, program } from './program.ts';

/** A caller that repeats the same request. Responses are not decoded, so the server is measured. */
export interface RequestSettings {
  readonly address: string;
  readonly token?: string | undefined;
  /** `/anabranch.v1.RunService/ListRuns`. */
  readonly method: string;
  /** Encoded request as base64. */
  readonly request: string;
  /** Requests that follow it, one after the other, and are timed with it. */
  readonly furtherRequests?: readonly string[];
  /**
   * Field numbers of the page token in the response (`next`) and in the request (`token`). Undefined: there is only one
   * page.
   */
  readonly pages?: { readonly next: number; readonly token: number };
  readonly warmupSeconds: number;
  readonly seconds: number;
}

export interface RequestFigures {
  /** Time until all pages, and all messages of a stream, have arrived. */
  readonly p50Ms: number;
  readonly repetitions: number;
  readonly bytes: number;
}

const same = (bytes: Buffer) => bytes;

await program(async (settings: RequestSettings): Promise<RequestFigures> => {
  const client = new Client(settings.address, credentials.createInsecure(), {
    interceptors: interceptorsFor(settings.token),
  });
  const requests = [settings.request, ...(settings.furtherRequests ?? [])].map((request) =>
    Buffer.from(request, 'base64'),
  );
  let bytes = 0;
  const once = async () => {
    bytes = 0;
    for (const request of requests) await sendToLastPage(request);
  };
  const sendToLastPage = async (first: Buffer) => {
    for (let request = first; ; ) {
      const messages = await send(client, settings.method, request);
      for (const message of messages) bytes += message.length;
      const token = settings.pages === undefined ? '' : lastField(messages[0]!, settings.pages.next);
      if (settings.pages === undefined || token === '') return;
      request = Buffer.concat([first, field(settings.pages.token, token)]);
    }
  };
  const measureFor = async (forSeconds: number): Promise<number[]> => {
    const times: number[] = [];
    const end = performance.now() + forSeconds * 1000;
    do {
      const begun = performance.now();
      await once();
      times.push(performance.now() - begun);
    } while (performance.now() < end);
    return times;
  };
  if (settings.warmupSeconds > 0) await measureFor(settings.warmupSeconds);
  const times = await measureFor(settings.seconds);
  return { p50Ms: percentile(times, 0.5), repetitions: times.length, bytes };
});

/** A unary call is treated as a stream of one message. */
function send(client: Client, method: string, request: Buffer): Promise<Buffer[]> {
  return new Promise((resolve, reject) => {
    const messages: Buffer[] = [];
    const call = client.makeServerStreamRequest(method, same, same, request);
    call.on('data', (message: Buffer) => messages.push(message));
    call.on('error', reject);
    call.on('end', () => resolve(messages));
  });
}

/** Returns the text of a field of a message whose fields are all length-delimited. Empty if the field is missing. */
function lastField(message: Buffer, wanted: number): string {
  let found = '';
  for (let at = 0; at < message.length; ) {
    const [tag, afterTag] = readVarint(message, at);
    const [length, begin] = readVarint(message, afterTag);
    at = begin + length;
    if (tag >> 3 === wanted) found = message.toString('latin1', begin, at);
  }
  return found;
}

function readVarint(bytes: Buffer, at: number): [value: number, next: number] {
  let value = 0;
  for (let shift = 0, i = at; ; shift += 7, i += 1) {
    value += (bytes[i]! & 127) * 2 ** shift;
    if (bytes[i]! < 128) return [value, i + 1];
  }
}

/** Encodes a text of less than 16,384 bytes as a field. */
function field(number: number, text: string): Buffer {
  const { length } = text;
  return Buffer.concat([
    Buffer.from([(number << 3) | 2, (length & 127) | 128, length >> 7]),
    Buffer.from(text, 'latin1'),
  ]);
}
