import { Code, ConnectError, createClient, type Interceptor, type Transport } from '@connectrpc/connect';
import { createConnectTransport } from '@connectrpc/connect-web';
import { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { parseAddress } from '../address.ts';
import { type ClientCalls, UNARY_DEADLINE_MS } from '../calls.ts';

/** Options of connectClient(). */
export interface ConnectOptions {
  /**
   * Address of the server: `host:port`, `http://host:port` or `https://host:port`. The server must allow the page's
   * origin with `--allowed-origin`.
   */
  readonly address: string;
  /** Connect interceptors, for example for credentials or tracing. The first one is the outermost. */
  readonly interceptors?: readonly Interceptor[];
}

/**
 * A client of one server, for browsers. It uses fetch() and opens no connection of its own. Unary calls have a deadline
 * of one minute; the call option `timeoutMs` overrides it.
 */
export interface AnabranchClient extends ClientCalls {
  /** Origin of the server: `http://host:port`. */
  readonly url: string;
}

/** Creates a client. Nothing is sent until the first call. Throws TypeError if the address is invalid. */
export function connectClient(options: ConnectOptions): AnabranchClient {
  const url = parseAddress(options.address);
  const interceptors = [...(options.interceptors ?? [])];
  const transport = withDefaults(createConnectTransport({ baseUrl: url, useBinaryFormat: true, interceptors }));
  return {
    url,
    trajectories: createClient(TrajectoryService, transport),
    states: createClient(StateService, transport),
    runs: createClient(RunService, transport),
    rollouts: createClient(RolloutService, transport),
    retention: createClient(RetentionService, transport),
    admin: createClient(AdminService, transport),
    server: createClient(ServerService, transport),
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
