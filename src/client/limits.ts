import { Code, ConnectError, createClient, type Transport } from '@connectrpc/connect';
import { LIMITS, VERSION } from '../../gen/es/anabranch/v1/limits.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { UNARY_DEADLINE_MS } from './calls.ts';

/** Limits by the names of docs/limitations.md. */
export type Limits = typeof LIMITS;

/** The limits of the version of this client. */
export const DEFAULT_LIMITS: Limits = LIMITS;

/** Options of a call that asks the server for its version and limits. */
interface AskOptions {
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number | undefined;
}

/** The limits of one server: the defaults of this version until the server has answered. */
export class ServerLimits {
  readonly #transport: Transport;
  #current = DEFAULT_LIMITS;
  #known = false;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** The limits that are known now. Sends nothing. */
  get current(): Limits {
    return this.#current;
  }

  /**
   * Asks the server for its version and limits, unless it has answered already. Rejects with FAILED_PRECONDITION if
   * this client cannot use a server of that version, and with the error of the call if the server does not answer.
   */
  async load({ signal, timeoutMs = UNARY_DEADLINE_MS }: AskOptions = {}): Promise<void> {
    if (this.#known) return;
    const options = { timeoutMs: Math.min(timeoutMs, UNARY_DEADLINE_MS), ...(signal === undefined ? {} : { signal }) };
    const { version, limits } = await createClient(ServerService, this.#transport).getServerInfo({}, options);
    if (!areCompatible(VERSION, version)) {
      const text = `client version ${VERSION} cannot use server version ${version}: install the same major version of both (below 1.0, the same minor version)`;
      throw new ConnectError(text, Code.FailedPrecondition);
    }
    const numbers = Object.entries(limits).map(([name, value]) => [name, Number(value)]);
    this.#current = Object.freeze({ ...DEFAULT_LIMITS, ...Object.fromEntries(numbers) });
    this.#known = true;
  }
}

/** Asks the server for its version and limits before the first call. An incompatible server gets no other call. */
export function askingFirst(transport: Transport, limits: ServerLimits): Transport {
  return {
    unary: async (method, signal, timeoutMs, ...rest) => {
      // The caller of GetServerInfo can read any version.
      if (method.name !== ServerService.method.getServerInfo.name) await limits.load({ signal, timeoutMs });
      return await transport.unary(method, signal, timeoutMs, ...rest);
    },
    stream: async (method, signal, timeoutMs, ...rest) => {
      await limits.load({ signal, timeoutMs });
      return await transport.stream(method, signal, timeoutMs, ...rest);
    },
  };
}

/**
 * Returns whether a client can use a server: their major versions are the same and, while these are 0, their minor
 * versions.
 */
export function areCompatible(client: string, server: string): boolean {
  const [own, other] = [client, server].map((version) => /^(0\.\d+|[1-9]\d*)\./.exec(version)?.[1]);
  return own !== undefined && own === other;
}
