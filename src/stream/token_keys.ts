import { openToken, sealToken, type TokenKey, tokenKeyOf } from '../domain/sealed_token.ts';
import type { Store } from '../store/contract/store.ts';

/**
 * The keys that seal page and resume tokens (RD12), in memory from their first use on. They are read again for a token
 * that they do not open, because another instance may have sealed it with a newer key.
 */
export class TokenKeys {
  readonly #store: Pick<Store, 'listTokenSecrets'>;
  /** The newest first. */
  #keys: readonly TokenKey[] = [];

  constructor(store: Pick<Store, 'listTokenSecrets'>) {
    this.#store = store;
  }

  /** Seals with the newest key. */
  async seal(text: string, binding: string): Promise<string> {
    const [newest] = this.#keys.length > 0 ? this.#keys : await this.#read();
    return sealToken(newest!, text, binding);
  }

  /** Returns the text of a token; undefined if the installation did not seal it with this binding. */
  async open(token: string, binding: string): Promise<string | undefined> {
    return openToken(this.#keys, token, binding) ?? openToken(await this.#read(), token, binding);
  }

  forgetAll(): void {
    this.#keys = [];
  }

  async #read(): Promise<readonly TokenKey[]> {
    this.#keys = (await this.#store.listTokenSecrets()).map(tokenKeyOf);
    return this.#keys;
  }
}
