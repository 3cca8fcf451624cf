import { Code, ConnectError } from '@connectrpc/connect';

/** What a server with authentication wants of each call. */
export interface AccessOptions {
  /**
   * API key or another token of the caller. A function is asked before the first call, and once more after a call that
   * was refused with UNAUTHENTICATED, so that tokens can be renewed.
   */
  readonly token?: string | (() => string | Promise<string>) | undefined;
  /** Namespace of all calls. Default: the server decides, by the token. */
  readonly namespace?: string | undefined;
}

type AccessHeaders = Readonly<Record<string, string>>;

/** The headers of the calls of one client that say who calls. */
export class Access {
  readonly #ask: (() => string | Promise<string>) | undefined;
  readonly #namespace: AccessHeaders;
  #headers: AccessHeaders | undefined;
  #asking: Promise<AccessHeaders> | undefined;

  constructor({ token, namespace }: AccessOptions) {
    this.#ask = typeof token === 'function' ? token : undefined;
    this.#namespace = namespace === undefined ? {} : { 'anabranch-namespace': namespace };
    if (typeof token !== 'function') this.#headers = this.#with(token);
  }

  /** Undefined until the token is known: then await `load`. */
  get known(): AccessHeaders | undefined {
    return this.#headers;
  }

  /** Asks for the token. Calls that begin meanwhile wait for the same answer. Errors: UNAUTHENTICATED. */
  load(): Promise<AccessHeaders> {
    this.#asking ??= this.#load().finally(() => {
      this.#asking = undefined;
    });
    return this.#asking;
  }

  /** To be called after UNAUTHENTICATED. Returns whether the next call carries another token. */
  refused(): boolean {
    if (this.#ask === undefined) return false;
    this.#headers = undefined;
    return true;
  }

  async #load(): Promise<AccessHeaders> {
    try {
      this.#headers = this.#with(await this.#ask?.());
      return this.#headers;
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      throw new ConnectError(`the token cannot be read: ${text}`, Code.Unauthenticated);
    }
  }

  #with(token: string | undefined): AccessHeaders {
    return token === undefined ? this.#namespace : { ...this.#namespace, authorization: `Bearer ${token.trim()}` };
  }
}
