import { type ClientCalls, callsOver } from '../calls.ts';
import { askingFirst, ServerLimits } from '../limits.ts';
import { type ConnectOptions, connectTransport } from './transport.ts';

/**
 * A client of one server, for browsers. It uses fetch() and opens no connection of its own. Unary calls have a deadline
 * of one minute; the call option `timeoutMs` overrides it.
 */
export interface AnabranchClient extends ClientCalls {
  /** Origin of the server: `http://host:port`. */
  readonly url: string;
}

/**
 * Creates a client. The first call asks the server for its version: an incompatible one fails every call with
 * FAILED_PRECONDITION. Throws TypeError if the address is invalid.
 */
export function connectClient(options: ConnectOptions): AnabranchClient {
  const { url, transport: direct } = connectTransport(options);
  const transport = askingFirst(direct, new ServerLimits(direct));
  return { url, ...callsOver(transport) };
}
