import { readFile } from 'node:fs/promises';
import { fetchableUrl } from '../config/fetchable.ts';
import { fetchText } from './fetch_text.ts';
import { KeySet } from './key_set.ts';
import type { KeySource, KeySourceEvents } from './key_source.ts';

export interface IssuerPlace {
  readonly issuer: string;
  /** Undefined: the issuer tells (OpenID Connect Discovery). */
  readonly url: URL | undefined;
  /** Files that are read for each fetch, because they are renewed. */
  readonly caFile: string | undefined;
  readonly tokenFile: string | undefined;
}

export interface KeyTimes {
  /** Time between two fetches, in milliseconds. */
  readonly renewMs: number;
  /** Minimum time between two fetches for keys that tokens name. */
  readonly unknownKeyMs: number;
  /** How long keys serve that cannot be renewed. */
  readonly trustMs: number;
  /** Maximum time of one fetch. */
  readonly fetchMs: number;
}

/** The keys of an issuer, fetched from it. While it does not answer, the last keys serve. */
export class IssuerKeys implements KeySource {
  readonly #place: IssuerPlace;
  readonly #times: KeyTimes;
  readonly #events: KeySourceEvents;
  #keys: KeySet | undefined;
  #text = '';
  #fetchedAt = 0;
  #askedAt = 0;
  #running: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  readonly #stopped = new AbortController();

  constructor(place: IssuerPlace, times: KeyTimes, events: KeySourceEvents) {
    this.#place = place;
    this.#times = times;
    this.#events = events;
  }

  get current(): KeySet | undefined {
    return performance.now() - this.#fetchedAt > this.#times.trustMs ? undefined : this.#keys;
  }

  /** Tokens that come meanwhile wait for the same answer. */
  renew(): Promise<void> | undefined {
    if (this.#running !== undefined) return this.#running;
    return performance.now() - this.#askedAt < this.#times.unknownKeyMs ? undefined : this.#fetch();
  }

  /** Waits for nothing: a server starts without its issuer, and accepts tokens as soon as the issuer answers. */
  open(): Promise<void> {
    this.#timer = setInterval(() => void this.#fetch(), this.#times.renewMs).unref();
    void this.#fetch();
    return Promise.resolve();
  }

  stop(): void {
    clearInterval(this.#timer);
    this.#stopped.abort();
  }

  #fetch(): Promise<void> {
    this.#askedAt = performance.now();
    this.#running ??= this.#load()
      .catch((error: unknown) => {
        if (!this.#stopped.signal.aborted) this.#events.failed((error as Error).message);
      })
      .finally(() => {
        this.#running = undefined;
      });
    return this.#running;
  }

  async #load(): Promise<void> {
    const begunAt = performance.now();
    const { caFile, tokenFile } = this.#place;
    const [ca, token] = await Promise.all([read(caFile), read(tokenFile)]);
    const more = { ca, token: token?.trim(), timeoutMs: this.#times.fetchMs, stopped: this.#stopped.signal };
    const ask = (url: URL) => fetchText(url, more);
    const url = this.#place.url ?? (await this.#discover(ask));
    const text = await ask(url);
    if (text !== this.#text) {
      this.#keys = parse(url, text);
      this.#text = text;
      this.#events.using(this.#keys);
    }
    this.#fetchedAt = begunAt;
  }

  async #discover(ask: (url: URL) => Promise<string>): Promise<URL> {
    const { issuer } = this.#place;
    const about = new URL(`${issuer.replace(/\/$/u, '')}/.well-known/openid-configuration`);
    const { issuer: named, jwks_uri: keys } = readJson(about, await ask(about));
    if (named !== issuer) throw new Error(`${about.href} is of another issuer than --jwt-issuer`);
    const url = typeof keys === 'string' ? fetchableUrl(keys) : undefined;
    if (url === undefined) throw new Error(`${about.href} names no jwks_uri with https://`);
    return url;
  }
}

function parse(url: URL, text: string): KeySet {
  try {
    return KeySet.parse(text);
  } catch (error) {
    throw new Error(`the answer of ${url.origin}${url.pathname} cannot be used: ${(error as Error).message}`, {
      cause: error,
    });
  }
}

function readJson(url: URL, text: string): Readonly<Record<string, unknown>> {
  try {
    return JSON.parse(text) ?? {};
  } catch {
    throw new Error(`the answer of ${url.href} is no JSON`);
  }
}

async function read(file: string | undefined): Promise<string | undefined> {
  if (file === undefined) return undefined;
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    throw new Error(`${file} cannot be read (${(error as NodeJS.ErrnoException).code})`, { cause: error });
  }
}
