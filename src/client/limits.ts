import { LIMITS } from '../../gen/es/anabranch/v1/limits.js';
import type { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import type { WebCalls } from './calls.ts';
import { isTransient } from './retry.ts';

/** Limits by the names of docs/limitations.md. */
export type Limits = typeof LIMITS;

/** The limits of the version of this client. */
export const DEFAULT_LIMITS: Limits = LIMITS;

/** An unreachable server must not delay callers: they ask again at the next opportunity. */
const ASK_DEADLINE_MS = 5_000;

/** The limits of one server: the defaults of this version until the server has answered. */
export class ServerLimits {
  readonly #server: Pick<WebCalls<typeof ServerService>, 'getServerInfo'>;
  #current = DEFAULT_LIMITS;
  #asking: Promise<void> | undefined;

  constructor(server: Pick<WebCalls<typeof ServerService>, 'getServerInfo'>) {
    this.#server = server;
  }

  /** The limits that are known now. Sends nothing. */
  get current(): Limits {
    return this.#current;
  }

  /** Asks the server, unless it has answered already. Resolves when the attempt has ended. Never rejects. */
  load(): Promise<void> {
    this.#asking ??= this.#ask();
    return this.#asking;
  }

  async #ask(): Promise<void> {
    try {
      const { limits } = await this.#server.getServerInfo({}, { timeoutMs: ASK_DEADLINE_MS });
      const numbers = Object.entries(limits).map(([name, value]) => [name, Number(value)]);
      this.#current = Object.freeze({ ...DEFAULT_LIMITS, ...Object.fromEntries(numbers) });
    } catch (error) {
      // A server that does not know the method has the defaults. Any other one is asked again.
      if (isTransient(error)) this.#asking = undefined;
    }
  }
}
