import { type Client, Code, ConnectError, createClient, type Interceptor } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { parseAddress } from './address.ts';
import { ConnectionPool } from './connection_pool.ts';
import { askingFirst, DEFAULT_LIMITS, ServerLimits } from './limits.ts';

/** Options of connectClient(). */
export interface ConnectOptions {
  /** Address of the server: `host:port`, `http://host:port` or `https://host:port`. */
  readonly address: string;
  /** Connect interceptors, for example for credentials or tracing. The first one is the outermost. */
  readonly interceptors?: readonly Interceptor[];
}

/**
 * A client of one server. It opens a second HTTP/2 connection shortly before the streams of the first one reach the
 * server's limit, and so on. Any number of callers can share one client. Unary calls have a deadline of one minute; the
 * call option `timeoutMs` overrides it.
 */
export interface AnabranchClient {
  /** Origin of the server: `http://host:port`. */
  readonly url: string;
  /** Calls every RPC of TrajectoryService. */
  readonly trajectories: Client<typeof TrajectoryService>;
  /** Calls every RPC of StateService. */
  readonly states: Client<typeof StateService>;
  /** Calls every RPC of RunService: experiments, runs, stages, metrics. */
  readonly runs: Client<typeof RunService>;
  /** Calls every RPC of RolloutService: tasks, groups, the queue of rollouts, validations, environments. */
  readonly rollouts: Client<typeof RolloutService>;
  /** Calls every RPC of RetentionService: plans, applies and stores policies that remove states and trajectories. */
  readonly retention: Client<typeof RetentionService>;
  /** Calls every RPC of AdminService: statistics, verification, backup and vacuum of the database. */
  readonly admin: Client<typeof AdminService>;
  /** Calls every RPC of ServerService: version and limits, and Watch. */
  readonly server: Client<typeof ServerService>;
  /** The limits of the server: the defaults of this version until the first call has asked it. */
  readonly limits: ServerLimits;
  /** Closes the client and cancels every call on it. Close writers and metric loggers first, because they flush. */
  close(): void;
}

/** Largest message that the client accepts. Leaves room for servers with a larger limit than this version. */
const READ_MAX_BYTES = 4 * DEFAULT_LIMITS.messageBytes;

/** Pings detect a dead peer or path within 45 seconds, also while an open stream is idle. */
const PING = { pingIntervalMs: 30_000, pingTimeoutMs: 15_000 };

/** In MB. Node's default of 10 refuses streams while many of them have a frame in flight. */
const HTTP2 = { maxSessionMemory: 128 };

/**
 * Creates a client. The first call connects, and asks the server for its version: an incompatible one fails every call
 * with FAILED_PRECONDITION. After a lost connection, the next call connects again. Throws TypeError if the address is
 * invalid.
 */
export function connectClient(options: ConnectOptions): AnabranchClient {
  const url = parseAddress(options.address);
  const interceptors = [...(options.interceptors ?? []), explainMisdirected];
  const open = () => {
    const sessionManager = new PatientSessions(url, PING, HTTP2);
    const transport = createGrpcTransport({
      baseUrl: url,
      sessionManager,
      acceptCompression: [],
      readMaxBytes: READ_MAX_BYTES,
      interceptors,
    });
    return { transport, abort: () => sessionManager.abort() };
  };
  const pool: ConnectionPool = new ConnectionPool(open, () => limits.current.streamsPerConnection);
  const limits = new ServerLimits(pool);
  const transport = askingFirst(pool, limits);
  return {
    url,
    trajectories: createClient(TrajectoryService, transport),
    states: createClient(StateService, transport),
    runs: createClient(RunService, transport),
    rollouts: createClient(RolloutService, transport),
    retention: createClient(RetentionService, transport),
    admin: createClient(AdminService, transport),
    server: createClient(ServerService, transport),
    limits,
    close: () => pool.close(),
  };
}

/**
 * Keeps an `error` listener on every session. Http2SessionManager removes its listeners when it drops a session, but
 * the session can still emit `error`, and an unhandled `error` event ends the process. This happens with a peer that
 * speaks HTTP/1.1, and when the client is closed after its first call failed. The listener ignores the error, because
 * every call gets it from its own stream.
 */
class PatientSessions extends Http2SessionManager {
  readonly #listenedTo = new WeakSet<object>();

  override async request(...args: Parameters<Http2SessionManager['request']>) {
    const stream = await super.request(...args);
    const { session } = stream;
    if (session !== undefined && !this.#listenedTo.has(session)) {
      this.#listenedTo.add(session);
      session.on('error', () => undefined);
    }
    return stream;
  }
}

/**
 * Turns HTTP 421 into a permanent error that says what to do. The server sends 421 when it does not answer to the name
 * in the address.
 */
const explainMisdirected: Interceptor = (next) => async (request) => {
  try {
    return await next(request);
  } catch (error) {
    if (!(error instanceof ConnectError) || error.rawMessage !== 'HTTP 421') throw error;
    const { hostname } = new URL(request.url);
    throw new ConnectError(
      `The server does not answer to the name ${hostname} (HTTP 421): use the address that it listens on, or start it with --allowed-host ${hostname}.`,
      Code.FailedPrecondition,
      undefined,
      undefined,
      error,
    );
  }
};
