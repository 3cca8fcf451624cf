import { type Identity, isSecret, secretDigest, unauthenticated } from '../domain/access.ts';
import { AnabranchError } from '../domain/errors.ts';
import type { ClientCertificate, Proof, Verifiers } from '../domain/identity.ts';
import { SlotQueue } from '../queue/slot_queue.ts';
import type { Store } from '../store/contract/store.ts';
import { Chore, type Reporting } from './chore.ts';
import { createDrain, type Drain } from './drain.ts';
import { RefusedCredentials } from './refused.ts';
import type { AppSettings } from './settings.ts';

/** A credential that calls have shown. */
export interface Credential {
  readonly identity: Identity;
  /** Begins when the server drains, and when the credential is revoked, has expired or proves another identity. */
  readonly drain: Drain;
  /** Calls of the credential that have not ended. */
  calls: number;
  /** Undefined while the credential is checked in time. Else a promise that resolves when it is checked again. */
  readonly checked: () => Promise<void> | undefined;
}

/** A credential that is kept in memory. */
interface Known extends Credential {
  readonly fault: Proof['fault'];
  /** Of an API key: its id. The database tells whether it is valid. */
  readonly keyId: string | undefined;
}

interface CredentialOptions extends Reporting {
  readonly store: Pick<Store, 'findKey' | 'findValidKeys'>;
  /** Of credentials that are no API keys. */
  readonly verifiers: Verifiers;
  /** Of the server. */
  readonly drain: Drain;
  readonly settings: Pick<AppSettings, 'keyCheckMs' | 'keyTrustMs'>;
}

/** Credentials that are kept in memory. Those of open calls are kept in any case. */
const MOST_KNOWN = 10_000;
/** API keys that are looked up at once, and tokens that are verified at once. */
const MOST_AT_ONCE = 16;
/** Keys that one statement checks. */
const CHECKED_AT_ONCE = 500;

/** A signed token (RFC 7515), whose signature may be missing. */
const TOKEN = /^[\w-]+\.[\w-]+\.[\w-]*$/;

/**
 * The credentials that callers use here: API keys of the installation, tokens and certificates. A known one costs no
 * statement, no signature and no wait.
 */
export class Credentials {
  readonly #options: CredentialOptions;
  /** Tokens and keys by their SHA-256, and certificates by theirs. */
  readonly #known = new Map<string, Known>();
  readonly #refused = new RefusedCredentials();
  readonly #lookups = new Map<string, Promise<Credential>>();
  readonly #keyPlaces = new SlotQueue(MOST_AT_ONCE);
  readonly #tokenPlaces = new SlotQueue(MOST_AT_ONCE);
  readonly #checks: Chore;
  #checkedAt = performance.now();
  #onChecked = Promise.withResolvers<void>();

  constructor(options: CredentialOptions) {
    const { settings, drain } = options;
    this.#options = options;
    this.#checks = new Chore('check of credentials', options, () => this.#check()).every(settings.keyCheckMs);
    drain.onBegin((error) => {
      for (const known of this.#known.values()) known.drain.begin(error);
    });
  }

  /**
   * Returns the credential of the text in a header, at once if it is known. Addresses find out unknown ones in turn.
   * Errors: UNAUTHENTICATED, PERMISSION_DENIED, DATABASE_UNAVAILABLE, and those of the database.
   */
  of(secret: string, address: () => string = () => ''): Credential | Promise<Credential> {
    const digest = secretDigest(secret);
    const name = digest.toString('latin1');
    const known = this.#current(name);
    if (known !== undefined) return known;
    const lookUp = this.#lookUpOf(secret, address);
    this.#refused.throwIfRefused(name);
    let lookup = this.#lookups.get(name);
    if (lookup === undefined) {
      lookup = this.#remember(name, lookUp(name, digest)).finally(() => this.#lookups.delete(name));
      this.#lookups.set(name, lookup);
    }
    return lookup;
  }

  /** Returns that of a caller without a header. Errors: UNAUTHENTICATED, PERMISSION_DENIED, SERVER_DRAINING. */
  ofCertificate(shown: ClientCertificate | undefined): Credential {
    const { certificates } = this.#options.verifiers;
    if (shown === undefined || certificates === undefined) throw unauthenticated('missing');
    if (shown.fault !== undefined) throw unauthenticated(shown.fault);
    const name = `certificate ${shown.certificate.fingerprint256}`;
    // One that other authorities have verified meanwhile was shown on another connection.
    return (shown.authorities.replaced ? undefined : this.#current(name)) ?? this.#keep(name, certificates(shown));
  }

  async stop(): Promise<void> {
    await this.#checks.stop();
  }

  #lookUpOf(secret: string, address: () => string): (name: string, digest: Buffer) => Promise<Credential> {
    if (isSecret(secret)) {
      return (name, digest) => this.#keyPlaces.within(address(), () => this.#findKey(name, digest));
    }
    const { tokens } = this.#options.verifiers;
    if (tokens === undefined || !TOKEN.test(secret)) throw unauthenticated('malformed');
    return async (name) => {
      await tokens.keysFor(secret);
      return this.#tokenPlaces.within(address(), async () => this.#keep(name, await tokens.verify(secret)));
    };
  }

  async #findKey(name: string, digest: Buffer): Promise<Credential> {
    const key = await this.#options.store.findKey(digest);
    if (key === undefined) throw unauthenticated('unknown');
    if (key.revokeTime !== undefined) throw unauthenticated('revoked');
    return this.#keep(name, { identity: key, fault: () => undefined }, key.id);
  }

  /** Repeating what was refused costs next to nothing. What could not be decided is tried again. */
  async #remember(name: string, lookup: Promise<Credential>): Promise<Credential> {
    try {
      return await lookup;
    } catch (error) {
      if (error instanceof AnabranchError && FINAL.has(error.reason)) this.#refused.add(name, error);
      throw error;
    }
  }

  /** Returns a known credential. Ends one that is not accepted any more: UNAUTHENTICATED, SERVER_DRAINING. */
  #current(name: string): Credential | undefined {
    const known = this.#known.get(name);
    if (known === undefined) return undefined;
    if (known.keyId !== undefined && this.#isStale()) throw unchecked();
    const fault = faultOf(known);
    if (fault === undefined) return known;
    this.#end(name, known, fault);
    // What a token or a certificate proves now is found out again.
    if (fault.metadata.fault === 'expired') throw fault;
    return undefined;
  }

  #keep(name: string, { identity, fault }: Proof, keyId?: string): Credential {
    if (isExpired(identity)) throw unauthenticated('expired');
    if (this.#known.size >= MOST_KNOWN) {
      for (const [oldest, { calls }] of this.#known) if (calls === 0 && this.#known.delete(oldest)) break;
    }
    const checked = () => (keyId !== undefined && this.#isStale() ? this.#onChecked.promise : undefined);
    const credential: Known = { identity, fault, keyId, drain: createDrain(), calls: 0, checked };
    this.#known.set(name, credential);
    if (this.#options.drain.begun) credential.drain.begin();
    return credential;
  }

  #isStale(): boolean {
    return performance.now() - this.#checkedAt > this.#options.settings.keyTrustMs;
  }

  /** Ends the streams of credentials that were revoked, have expired or prove another identity. */
  async #check(): Promise<object> {
    const begunAt = performance.now();
    const before = this.#known.size;
    for (const [name, known] of this.#known) {
      const fault = faultOf(known);
      if (fault !== undefined) this.#end(name, known, fault);
    }
    const keys = [...this.#known].flatMap(([name, known]) =>
      known.keyId === undefined ? [] : { name, known, id: known.keyId },
    );
    for (let at = 0; at < keys.length; at += CHECKED_AT_ONCE) {
      const some = keys.slice(at, at + CHECKED_AT_ONCE);
      const valid = await this.#options.store.findValidKeys(some.map(({ id }) => id));
      for (const { name, known, id } of some) if (!valid.has(id)) this.#end(name, known, unauthenticated('revoked'));
    }
    this.#checkedAt = begunAt;
    this.#onChecked.resolve();
    this.#onChecked = Promise.withResolvers();
    return { credentials: before, ended: before - this.#known.size };
  }

  #end(name: string, known: Known, error: AnabranchError): void {
    if (this.#known.get(name) === known) this.#known.delete(name);
    known.drain.begin(error);
  }
}

/** Reasons that a credential is refused for, whoever asks again. */
const FINAL: ReadonlySet<string> = new Set(['UNAUTHENTICATED', 'PERMISSION_DENIED']);

function faultOf({ identity, fault }: Known): AnabranchError | undefined {
  return isExpired(identity) ? unauthenticated('expired') : fault();
}

function isExpired({ expireTime }: Identity): boolean {
  return expireTime !== undefined && expireTime <= BigInt(Date.now()) * 1_000_000n;
}

function unchecked(): AnabranchError {
  return new AnabranchError(
    'DATABASE_UNAVAILABLE',
    'The server cannot ask its database whether the API key is still valid. Nothing was done. Retry later.',
  );
}
