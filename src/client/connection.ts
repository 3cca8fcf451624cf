import process from 'node:process';
import { type Client, createClient } from '@connectrpc/connect';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { Access } from './access.ts';
import { parseAddress } from './address.ts';
import { type Environment, withEnvironment } from './environment.ts';
import { ConnectionPool } from './grpc/connection_pool.ts';
import { GrpcTransport } from './grpc/transport.ts';
import { askingFirst, ServerLimits } from './limits.ts';
import type { ConnectOptions } from './options.ts';

/**
 * A client of one server. It opens a second HTTP/2 connection shortly before the streams of the first one reach the
 * server's limit, and so on. Any number of callers can share one client. Unary calls have a deadline of one minute; the
 * call option `timeoutMs` overrides it.
 */
export interface AnabranchClient {
  /** Address of the server: `http://host:port`, `https://host:port` or `unix:PATH`. */
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

/**
 * Creates a client. The first call connects, and asks the server for its version: an incompatible one fails every call
 * with FAILED_PRECONDITION. After a lost connection, the next call connects again. What is not given is taken from the
 * environment: ANABRANCH_ADDRESS, ANABRANCH_NAMESPACE, ANABRANCH_TOKEN or ANABRANCH_TOKEN_FILE, ANABRANCH_CA_FILE,
 * ANABRANCH_CERT_FILE and ANABRANCH_KEY_FILE. Throws TypeError if an option is invalid.
 */
export function connectClient(given: ConnectOptions = {}, env: Environment = process.env): AnabranchClient {
  const options = withEnvironment(given, env);
  const { url, origin, socket } = parseAddress(options.address);
  const { ca, cert, key } = options;
  const tls = {
    ...(ca !== undefined && { ca }),
    ...(cert !== undefined && { cert }),
    ...(key !== undefined && { key }),
  };
  const pool = new ConnectionPool({ origin, socket, tls });
  const direct: GrpcTransport = new GrpcTransport({
    origin,
    pool,
    access: new Access(options),
    interceptors: options.interceptors ?? [],
    streamsPerConnection: () => limits.current.streamsPerConnection,
  });
  const limits = new ServerLimits(direct);
  const transport = askingFirst(direct, limits);
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
