import { type Client, createClient, type Interceptor } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { parseAddress } from './address.ts';
import { PatientSessions } from './http2_session.ts';
import { Lanes } from './lanes.ts';
import { explainMisdirected } from './misdirected.ts';

/** Where the server is, and how to talk to it. */
export interface ConnectOptions {
  /** `host:port`, `http://host:port` or `https://host:port`. */
  readonly address: string;
  /** Connect interceptors, for credentials or tracing; outermost first. */
  readonly interceptors?: readonly Interceptor[];
}

/**
 * A connection to one server; more than one on the wire when more than 90 streams are open. Everything here may be used by
 * any number of callers at once. Unary calls have a deadline of a minute, unless `timeoutMs` says otherwise.
 */
export interface AnabranchClient {
  /** `http://host:port`, as it was understood. */
  readonly url: string;
  /** Every RPC of TrajectoryService, typed. */
  readonly trajectories: Client<typeof TrajectoryService>;
  /** Every RPC of StateService, typed. */
  readonly states: Client<typeof StateService>;
  /** Every RPC of RunService, typed: experiments, runs, stages, metrics. */
  readonly runs: Client<typeof RunService>;
  /** Every RPC of RolloutService, typed: tasks, groups, the queue of rollouts, validations, environments. */
  readonly rollouts: Client<typeof RolloutService>;
  /** Ends the connection and every call on it, for good. Close writers and metric loggers first: they flush. */
  close(): void;
}

/** Largest answer taken from a server; the server's own limit is 1 MiB a message. */
const READ_MAX_BYTES = 4 * 1024 * 1024;

/** Pings find a dead peer or path within 45 seconds, also while nothing is being said on an open stream. */
const PING = { pingIntervalMs: 30_000, pingTimeoutMs: 15_000 };

/** In MB; Node's default of 10 refuses streams when many of them have a frame on its way. */
const HTTP2 = { maxSessionMemory: 128 };

/** Connects lazily: the first call opens the connection, and a lost one is opened again by the next call. */
export function connectClient(options: ConnectOptions): AnabranchClient {
  const url = parseAddress(options.address);
  const interceptors = [...(options.interceptors ?? []), explainMisdirected];
  const lanes = new Lanes(() => {
    const sessionManager = new PatientSessions(url, PING, HTTP2);
    const transport = createGrpcTransport({
      baseUrl: url,
      sessionManager,
      acceptCompression: [],
      readMaxBytes: READ_MAX_BYTES,
      interceptors,
    });
    return { transport, abort: () => sessionManager.abort() };
  });
  return {
    url,
    trajectories: createClient(TrajectoryService, lanes),
    states: createClient(StateService, lanes),
    runs: createClient(RunService, lanes),
    rollouts: createClient(RolloutService, lanes),
    close: () => lanes.close(),
  };
}
