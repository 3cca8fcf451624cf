import type { AccessHeaders } from '../access.ts';
import { endOf, envelope, envelopesOf, type StreamError } from './envelopes.ts';
import { bytesField, fieldsOf, joined, textField } from './wire.ts';

/** An event that the subscribers of a watch receive. */
export type WatchEvent =
  /** The next messages begin with a snapshot. */
  | { readonly kind: 'begin' }
  /** An encoded WatchResponse. With an error, it is the last one. */
  | { readonly kind: 'message'; readonly bytes: Uint8Array }
  /** The connection was lost. Another one is opened. */
  | { readonly kind: 'cut' }
  /** The server refused the call. */
  | { readonly kind: 'refused'; readonly error: StreamError };

/** Where a watch is added: the stream of this tab, or that of a worker. */
export interface WatchSource {
  /** Adds an encoded WatchSubject. Returns a function that removes it. */
  add(subject: Uint8Array, listener: (event: WatchEvent) => void): () => void;
}

interface Subscriber {
  readonly key: string;
  readonly subject: Uint8Array;
  readonly listener: (event: WatchEvent) => void;
}

/** Fields of a WatchResponse. */
const [NAME, ERROR] = [1, 7];
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
  readonly #access: AccessHeaders;
  readonly #subscribers = new Set<Subscriber>();
  /** The call whose messages are passed on. */
  #current: AbortController | undefined;
  /** The newest call, until it has sent something. */
  #next: AbortController | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #wait = FIRST_WAIT_MS;

  constructor(origin: string, access: AccessHeaders = {}) {
    this.#origin = origin;
    this.#access = access;
  }

  add(subject: Uint8Array, listener: (event: WatchEvent) => void): () => void {
    const subscriber: Subscriber = { key: subject.join(), subject, listener };
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
    const subjects = groups.flatMap(([first], name) =>
      first === undefined ? [] : [bytesField(1, joined([textField(1, `${name}`), bytesField(2, first.subject)]))],
    );
    const response = await fetch(this.#origin + PATH, {
      method: 'POST',
      headers: { ...this.#access, 'content-type': 'application/connect+proto', 'connect-protocol-version': '1' },
      body: envelope(joined(subjects)),
      signal: call.signal,
    });
    if (!response.ok || response.body === null) return refusalOf(response);
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

  /** Passes on a WatchResponse. The name of its subject is the index of the group. A sign of life has none. */
  #pass(data: Uint8Array, groups: readonly (readonly Subscriber[])[]): void {
    const fields = [...fieldsOf(data)];
    const name = fields.find(({ number }) => number === NAME);
    const hasEnded = fields.some(({ number }) => number === ERROR);
    for (const each of (name && groups[Number(new TextDecoder().decode(name.bytes))]) ?? []) {
      this.#tell(each, { kind: 'message', bytes: data }, hasEnded);
    }
  }

  /** A watch that has ended is not repeated in later calls. */
  #tell(subscriber: Subscriber, event: WatchEvent, hasEnded = event.kind === 'refused'): void {
    if (!this.#subscribers.has(subscriber)) return;
    if (hasEnded) this.#subscribers.delete(subscriber);
    subscriber.listener(event);
  }
}

/** A server says why it refuses a call. What answers in its place does not. */
async function refusalOf(response: Response): Promise<StreamError> {
  const said = (await response.json().catch(() => undefined)) as StreamError | undefined;
  if (typeof said?.code === 'string') return said;
  const unsupported = [404, 405, 501].includes(response.status);
  return { code: unsupported ? 'unimplemented' : 'unavailable', message: `the server answered ${response.status}` };
}
