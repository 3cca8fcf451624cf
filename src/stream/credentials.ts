import { type ApiKey, type CredentialFault, isSecret, secretDigest, unauthenticated } from '../domain/access.ts';
import { AnabranchError } from '../domain/errors.ts';
import { SlotQueue } from '../queue/slot_queue.ts';
import type { Store } from '../store/contract/store.ts';
import { Chore } from './chore.ts';
import { createDrain, type Drain } from './drain.ts';
import type { AppSettings, Logger } from './settings.ts';

/** A key that calls have shown. */
export interface Credential {
  readonly key: ApiKey;
  /** Begins when the server drains, and when the key is revoked or has expired. */
  readonly drain: Drain;
  /** Calls of the key that have not ended. */
  calls: number;
  /** Undefined while keys are checked in time. Else a promise that resolves when they are checked again. */
  readonly checked: () => Promise<void> | undefined;
}

interface CredentialOptions {
  readonly store: Pick<Store, 'findKey' | 'findValidKeys'>;
  readonly logger: Logger;
  /** Of the server. */
  readonly drain: Drain;
  readonly settings: Pick<AppSettings, 'keyCheckMs' | 'keyTrustMs'>;
}

/** Keys that are kept in memory. Those of open calls are kept in any case. */
const MOST_KNOWN = 10_000;
/** Secrets that are kept because no key has them. */
const MOST_UNKNOWN = 1000;
/** How long such a secret is refused without a look into the database, in milliseconds. */
const UNKNOWN_MS = 2000;
/** Keys that are looked up at once. */
const MOST_LOOKUPS = 16;
/** Keys that one statement checks. */
const CHECKED_AT_ONCE = 500;

/** The API keys of the installation, as far as callers use them here. A known key costs no statement and no wait. */
export class Credentials {
  readonly #options: CredentialOptions;
  readonly #known = new Map<string, Credential>();
  /** Until when a secret is refused. */
  readonly #unknown = new Map<string, number>();
  readonly #lookups = new Map<string, Promise<Credential>>();
  readonly #places = new SlotQueue(MOST_LOOKUPS);
  readonly #checks: Chore;
  #checkedAt = performance.now();
  #onChecked = Promise.withResolvers<void>();

  constructor(options: CredentialOptions) {
    const { logger, settings, drain } = options;
    this.#options = options;
    this.#checks = new Chore('the check for revoked keys', logger, () => this.#check()).every(settings.keyCheckMs);
    drain.onBegin((error) => {
      for (const known of this.#known.values()) known.drain.begin(error);
    });
  }

  /**
   * Returns the credential of a secret, at once if it is known. Addresses look up unknown ones in turn. Errors:
   * UNAUTHENTICATED, DATABASE_UNAVAILABLE, and those of the database.
   */
  of(secret: string, address: () => string = () => ''): Credential | Promise<Credential> {
    if (!isSecret(secret)) throw unauthenticated('malformed');
    const digest = secretDigest(secret);
    const name = digest.toString('latin1');
    const known = this.#known.get(name);
    if (known !== undefined) {
      if (this.#isStale()) throw unchecked();
      if (isExpired(known.key)) throw this.#end(name, known, 'expired');
      return known;
    }
    const refusedUntil = this.#unknown.get(name);
    if (refusedUntil !== undefined && refusedUntil > performance.now()) throw unauthenticated('unknown');
    let lookup = this.#lookups.get(name);
    if (lookup === undefined) {
      lookup = this.#lookUp(name, digest, address()).finally(() => this.#lookups.delete(name));
      this.#lookups.set(name, lookup);
    }
    return lookup;
  }

  async stop(): Promise<void> {
    await this.#checks.stop();
  }

  #isStale(): boolean {
    return performance.now() - this.#checkedAt > this.#options.settings.keyTrustMs;
  }

  async #lookUp(name: string, digest: Buffer, address: string): Promise<Credential> {
    const place = this.#places.enter(1, address);
    try {
      await place.begun;
      const key = await this.#options.store.findKey(digest);
      if (key === undefined) {
        this.#refuse(name);
        throw unauthenticated('unknown');
      }
      if (key.revokeTime !== undefined) throw unauthenticated('revoked');
      if (isExpired(key)) throw unauthenticated('expired');
      return this.#keep(name, key);
    } finally {
      place.end();
    }
  }

  #refuse(name: string): void {
    if (this.#unknown.size >= MOST_UNKNOWN)
      for (const oldest of this.#unknown.keys()) if (this.#unknown.delete(oldest)) break;
    this.#unknown.set(name, performance.now() + UNKNOWN_MS);
  }

  #keep(name: string, key: ApiKey): Credential {
    if (this.#known.size >= MOST_KNOWN) {
      for (const [oldest, { calls }] of this.#known) if (calls === 0 && this.#known.delete(oldest)) break;
    }
    const checked = () => (this.#isStale() ? this.#onChecked.promise : undefined);
    const credential: Credential = { key, drain: createDrain(), calls: 0, checked };
    this.#known.set(name, credential);
    if (this.#options.drain.begun) credential.drain.begin();
    return credential;
  }

  /** Ends the streams of keys that were revoked or have expired. */
  async #check(): Promise<object> {
    const begunAt = performance.now();
    const all = [...this.#known];
    let ended = 0;
    for (let at = 0; at < all.length; at += CHECKED_AT_ONCE) {
      const some = all.slice(at, at + CHECKED_AT_ONCE);
      const valid = await this.#options.store.findValidKeys(some.map(([, { key }]) => key.id));
      for (const [name, credential] of some) {
        const fault = !valid.has(credential.key.id) ? 'revoked' : isExpired(credential.key) ? 'expired' : undefined;
        if (fault === undefined) continue;
        ended += 1;
        this.#end(name, credential, fault);
      }
    }
    this.#checkedAt = begunAt;
    this.#onChecked.resolve();
    this.#onChecked = Promise.withResolvers();
    return { keys: all.length, ended };
  }

  #end(name: string, { drain }: Credential, fault: CredentialFault): AnabranchError {
    const error = unauthenticated(fault);
    this.#known.delete(name);
    drain.begin(error);
    return error;
  }
}

function isExpired({ expireTime }: ApiKey): boolean {
  return expireTime !== undefined && expireTime <= BigInt(Date.now()) * 1_000_000n;
}

function unchecked(): AnabranchError {
  return new AnabranchError(
    'DATABASE_UNAVAILABLE',
    'The server cannot ask its database whether the API key is still valid. Nothing was done. Retry later.',
  );
}
