import { Code, ConnectError, type Interceptor, type Transport } from '@connectrpc/connect';
import { createConnectTransport } from '@connectrpc/connect-web';
import { Access, type AccessOptions } from '../access.ts';
import { parseAddress } from '../address.ts';
import { UNARY_DEADLINE_MS } from '../calls.ts';
import { isUnauthenticated } from '../errors.ts';
import { traceHeaders } from '../trace_context.ts';

/** Options of connectClient(). */
export interface ConnectOptions extends AccessOptions {
  /**
   * Address of the server: `host:port`, `http://host:port` or `https://host:port`. The server must allow the page's
   * origin with `--allowed-origin`.
   */
  readonly address: string;
  /** Connect interceptors, for example for tracing. The first one is the outermost. */
  readonly interceptors?: readonly Interceptor[];
}

/** Returns the origin of a server, and a transport to it. Throws TypeError if the address is invalid. */
export function connectTransport(options: ConnectOptions): { readonly url: string; readonly transport: Transport } {
  const { origin: url, socket } = parseAddress(options.address);
  if (socket !== undefined)
    throw new TypeError(`address is ${JSON.stringify(options.address)}: browsers need host:port`);
  const interceptors = [...(options.interceptors ?? []), sayingWhoCalls(new Access(options))];
  return {
    url,
    transport: withDefaults(createConnectTransport({ baseUrl: url, useBinaryFormat: true, interceptors })),
  };
}

/**
 * Calls also continue the trace that is active. A unary call whose token was refused is repeated once, with another
 * one. Readers repeat streams.
 */
function sayingWhoCalls(access: Access): Interceptor {
  return (next) => async (request) => {
    const trace = traceHeaders();
    const call = async () => {
      const headers = { ...trace, ...(access.known ?? (await access.load())) };
      for (const [name, value] of Object.entries(headers)) request.header.set(name, value);
      return next(request);
    };
    try {
      return await call();
    } catch (error) {
      if (!isUnauthenticated(error) || !access.refused() || request.stream) throw error;
      return call();
    }
  };
}

/** Sets the default deadline of unary calls, and reports streams that were cut off as UNAVAILABLE. */
function withDefaults(transport: Transport): Transport {
  return {
    unary: (method, signal, timeoutMs = UNARY_DEADLINE_MS, ...rest) =>
      transport.unary(method, signal, timeoutMs, ...rest),
    stream: async (...call) => {
      const response = await transport.stream(...call);
      return { ...response, message: reportingCuts(response.message) };
    },
  };
}

/** connect-web reports a body that ends within a message as INVALID_ARGUMENT, as if the request were invalid. */
const CUT_WITHIN_A_MESSAGE = 'protocol error: incomplete envelope';

async function* reportingCuts<T>(messages: AsyncIterable<T>): AsyncGenerator<T, void, undefined> {
  try {
    yield* messages;
  } catch (error) {
    if (!(error instanceof ConnectError) || error.rawMessage !== CUT_WITHIN_A_MESSAGE) throw error;
    throw new ConnectError('the response ended within a message', Code.Unavailable, undefined, undefined, error);
  }
}
