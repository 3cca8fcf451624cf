import { createLocalJWKSet, type JSONWebKeySet, type JWTVerifyGetKey } from 'jose';

/** Keys of one issuer. More are refused: a token could make the server search them all. */
const MOST_KEYS = 1000;

/** Members of public keys. Private ones, and links to others, are left out. */
const MEMBERS = ['kty', 'kid', 'use', 'key_ops', 'alg', 'crv', 'x', 'y', 'n', 'e'] as const;
const KINDS: ReadonlySet<unknown> = new Set(['RSA', 'EC', 'OKP']);

/** The public keys of an issuer (RFC 7517). */
export class KeySet {
  readonly size: number;
  /** Chooses the key for the header of a token. */
  readonly choose: JWTVerifyGetKey;
  /** The keys with one id, as text. */
  readonly #texts = new Map<string, string>();

  private constructor(keys: readonly Readonly<Record<string, unknown>>[]) {
    this.size = keys.length;
    this.choose = createLocalJWKSet({ keys } as unknown as JSONWebKeySet);
    for (const key of keys) {
      const kid = String(key.kid);
      this.#texts.set(kid, `${this.#texts.get(kid) ?? ''}${JSON.stringify(key)}`);
    }
  }

  /** Throws an error that says what is wrong. Keys of kinds that sign no token here are left out. */
  static parse(text: string): KeySet {
    const { keys } = readJson(text) as { readonly keys?: unknown };
    if (!Array.isArray(keys)) throw new Error('it is no set of keys: expected a list named "keys"');
    if (keys.length > MOST_KEYS) throw new Error(`it has ${keys.length} keys: expected at most ${MOST_KEYS}`);
    const usable = keys.filter(isObject).filter(({ kty }) => KINDS.has(kty));
    if (usable.length === 0) throw new Error('it has no public key: expected at least one of RSA, EC or OKP');
    return new KeySet(
      usable.map((key) =>
        Object.fromEntries(MEMBERS.flatMap((name) => (key[name] === undefined ? [] : [[name, key[name]]]))),
      ),
    );
  }

  /**
   * Returns the keys that can have signed a token with this key id, as text that tells different ones apart. Undefined:
   * there is none. Without a text as id, all of them can.
   */
  textOf(kid: unknown): string | undefined {
    return typeof kid === 'string' ? this.#texts.get(kid) : [...this.#texts.values()].join();
  }
}

function readJson(text: string): object {
  try {
    const value: unknown = JSON.parse(text);
    if (isObject(value)) return value;
  } catch {
    // The same answer: it may hold anything.
  }
  throw new Error('it is no JSON object');
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
