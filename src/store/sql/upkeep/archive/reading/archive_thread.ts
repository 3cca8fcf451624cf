import { type MessagePort, parentPort } from 'node:worker_threads';
import { readArchive } from '../../../../../archive/read.ts';
import type { CheckedPart } from '../../../../../domain/archive.ts';
import { AnabranchError } from '../../../../../domain/errors.ts';
import { checkedParts } from '../checked_parts.ts';
import type { Reply, Request } from './archive_reader.ts';

/** Program of the thread that reads an archive: decompresses it, parses its records, and checks all values. */

class ArchiveThread {
  readonly #port: MessagePort;
  // Chunks are read ahead of the parts that are asked for, so both kinds of requests can be awaited at once.
  #partWanted = Promise.withResolvers<void>();
  #chunkArrived = Promise.withResolvers<Uint8Array | undefined>();

  constructor(port: MessagePort) {
    this.#port = port;
    port.on('message', (request: Request) => {
      if (request.kind === 'part wanted') this.#partWanted.resolve();
      else this.#chunkArrived.resolve(request.chunk);
    });
  }

  async run(): Promise<void> {
    try {
      for await (const part of checkedParts(readArchive(this.#chunks()))) {
        await this.#partWanted.promise;
        this.#partWanted = Promise.withResolvers();
        this.#reply({ kind: 'part', part }, buffersOf(part));
      }
      await this.#partWanted.promise;
      this.#reply({ kind: 'end' });
    } catch (error) {
      if (!(error instanceof AnabranchError)) throw error;
      this.#reply({ kind: 'refused', message: error.message, place: String(error.metadata.place) });
    }
  }

  async *#chunks(): AsyncGenerator<Uint8Array, void, undefined> {
    for (;;) {
      this.#chunkArrived = Promise.withResolvers();
      this.#reply({ kind: 'chunk wanted' });
      const chunk = await this.#chunkArrived.promise;
      if (chunk === undefined) return;
      yield chunk;
    }
  }

  #reply(answer: Reply, transferred: ArrayBuffer[] = []): void {
    this.#port.postMessage(answer, transferred);
  }
}

/** Returns the memory of a part, which is handed over without a copy. */
function buffersOf({ checked }: CheckedPart): ArrayBuffer[] {
  if (checked.kind === 'checked_records') return [];
  if (checked.kind !== 'small_states') return [checked.bytes.buffer as ArrayBuffer];
  return [...new Set(checked.states.map(({ data }) => data.buffer as ArrayBuffer))];
}

if (parentPort === null) throw new Error('this program runs as a thread');
await new ArchiveThread(parentPort).run();
