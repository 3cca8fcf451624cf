import { endOf, envelope, envelopesOf, type StreamError } from './envelopes.ts';
import { bytesField, fieldsOf, joined } from './wire.ts';

/** An event that the subscribers of a watch receive. */
export type WatchEvent =
  /** The next messages begin with a snapshot. */
  | { readonly kind: 'begin' }
  | { readonly kind: 'message'; readonly bytes: Uint8Array }
  /** The connection was lost. Another one is opened. */
  | { readonly kind: 'cut' }
  /** The watch has ended with an encoded AppendError. */
  | { readonly kind: 'failed'; readonly bytes: Uint8Array }
  /** The server refused the call. */
  | { readonly kind: 'refused'; readonly error: StreamError };

/** Where a watch is added: the stream of this tab, or that of a worker. */
export interface WatchSource {
  /** Adds an encoded WatchCall. Returns a function that removes it. */
  add(call: Uint8Array, listener: (event: WatchEvent) => void): () => void;
}

interface Subscriber {
  readonly key: string;
  readonly call: Uint8Array;
  readonly listener: (event: WatchEvent) => void;
}

const PATH = '/anabranch.v1.ServerService/Watch';
/** Subscribers that come at about the same time share one call. */
const GATHER_MS = 3;
const [FIRST_WAIT_MS, LONGEST_WAIT_MS] = [250, 5_000];
/** The server sends something at least every 15 seconds. */
const SILENCE_MS = 45_000;
const FOREVER = [undefined, 'canceled', 'unknown', 'internal', 'unavailable', 'aborted', 'deadline_exceeded'];

/**
 * All watches of its subscribers in one stream of the server. A new subscriber causes another call with all watches,
 * and every subscriber begins with a snapshot then. The former call continues until the new one has sent something.
 * This module runs in the worker too, so it loads no descriptors: messages are passed on as bytes.
 */
export class WatchStream implements WatchSource {
  readonly #origin: string;
  readonly #subscribers = new Set<Subscriber>();
  /** The call whose messages are passed on. */
  #current: AbortController | undefined;
  /** The newest call, until it has sent something. */
  #next: AbortController | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #wait = FIRST_WAIT_MS;

  constructor(origin: string) {
    this.#origin = origin;
  }

  add(call: Uint8Array, listener: (event: WatchEvent) => void): () => void {
    const subscriber: Subscriber = { key: call.join(), call, listener };
    this.#subscribers.add(subscriber);
    this.#open(GATHER_MS);
    return () => {
      if (this.#subscribers.delete(subscriber) && this.#subscribers.size === 0) this.#close();
    };
  }

  #open(afterMs: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#call(), afterMs);
  }

  #close(): void {
    clearTimeout(this.#timer);
    this.#current?.abort();
    this.#next?.abort();
    this.#current = undefined;
    this.#next = undefined;
  }

  async #call(): Promise<void> {
    if (this.#subscribers.size === 0) return;
    this.#next?.abort();
    const call = new AbortController();
    this.#next = call;
    const byKey = Map.groupBy(this.#subscribers, ({ key }) => key);
    const groups = [...byKey.values()];
    let error: StreamError | undefined;
    try {
      error = await this.#receive(call, groups);
    } catch {
      // The connection was lost, or the call was replaced.
    }
    if (call !== this.#current && call !== this.#next) return;
    const refused = error !== undefined && !FOREVER.includes(error.code) ? error : undefined;
    this.#close();
    for (const each of groups.flat()) {
      if (refused !== undefined) this.#tell(each, { kind: 'refused', error: refused });
    }
    if (this.#subscribers.size === 0) return;
    for (const each of this.#subscribers) this.#tell(each, { kind: 'cut' });
    this.#open(this.#wait);
    this.#wait = Math.min(LONGEST_WAIT_MS, this.#wait * 2);
  }

  /** Passes messages on until the call ends. Returns its error. */
  async #receive(call: AbortController, groups: readonly (readonly Subscriber[])[]): Promise<StreamError | undefined> {
    const calls = groups.flatMap(([first]) => (first === undefined ? [] : [bytesField(1, first.call)]));
    const response = await fetch(this.#origin + PATH, {
      method: 'POST',
      headers: { 'content-type': 'application/connect+proto', 'connect-protocol-version': '1' },
      body: envelope(joined(calls)),
      signal: call.signal,
    });
    if (!response.ok || response.body === null) {
      const unsupported = [404, 405, 501].includes(response.status);
      return { code: unsupported ? 'unimplemented' : 'unavailable', message: `the server answered ${response.status}` };
    }
    let silence: ReturnType<typeof setTimeout> | undefined;
    try {
      for await (const { flags, data } of envelopesOf(response.body)) {
        clearTimeout(silence);
        silence = setTimeout(() => call.abort(), SILENCE_MS);
        const end = endOf(flags, data);
        if (end !== undefined) return end.error;
        if (call === this.#next) this.#begin(call, groups.flat());
        if (call === this.#current) this.#pass(data, groups);
      }
    } finally {
      clearTimeout(silence);
      call.abort();
    }
    return undefined;
  }

  #begin(call: AbortController, subscribers: readonly Subscriber[]): void {
    this.#current?.abort();
    this.#current = call;
    this.#next = undefined;
    this.#wait = FIRST_WAIT_MS;
    for (const each of subscribers) this.#tell(each, { kind: 'begin' });
  }

  /** Reads a WatchResponse. */
  #pass(data: Uint8Array, groups: readonly (readonly Subscriber[])[]): void {
    let index = 0;
    let event: WatchEvent = { kind: 'message', bytes: new Uint8Array() };
    for (const { number, value, bytes } of fieldsOf(data)) {
      if (number === 1) index = value;
      else if (number === 2) event = { kind: 'message', bytes };
      else if (number === 3) event = { kind: 'failed', bytes };
    }
    for (const each of groups[index] ?? []) this.#tell(each, event);
  }

  /** A watch that has ended is not repeated in later calls. */
  #tell(subscriber: Subscriber, event: WatchEvent): void {
    if (!this.#subscribers.has(subscriber)) return;
    if (event.kind === 'failed' || event.kind === 'refused') this.#subscribers.delete(subscriber);
    subscriber.listener(event);
  }
}
