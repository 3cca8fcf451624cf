import type { DescService } from '@bufbuild/protobuf';
import { type Client, createClient, type Transport } from '@connectrpc/connect';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';

/**
 * Default deadline of a unary call, in milliseconds. A call without a deadline can hang when its connection is lost.
 */
export const UNARY_DEADLINE_MS = 60_000;

/** The RPCs of a service whose request is a single message. */
type SingleRequest<S extends DescService> = {
  [M in keyof S['method']]: S['method'][M]['methodKind'] extends 'unary' | 'server_streaming' ? M : never;
}[keyof S['method']];

/**
 * The RPCs of a service that a browser can call. AppendSteps and PutState are excluded, because fetch() cannot stream a
 * request.
 */
type WebCalls<S extends DescService> = Pick<Client<S>, SingleRequest<S>>;

const SERVICES = {
  /** Calls of TrajectoryService. */
  trajectories: TrajectoryService,
  /** Calls of StateService. */
  states: StateService,
  /** Calls of RunService: experiments, runs, stages, metrics. */
  runs: RunService,
  /** Calls of RolloutService: tasks, groups, the queue of rollouts, validations, environments. */
  rollouts: RolloutService,
  /** Calls of RetentionService: plans, applies and stores policies that remove states and trajectories. */
  retention: RetentionService,
  /** Calls of AdminService: statistics, verification, backup and vacuum of the database. */
  admin: AdminService,
  /** Calls of ServerService: version and limits, several watches as one call. */
  server: ServerService,
} as const;
type Services = typeof SERVICES;

/** All calls of all services. */
export type AllCalls = { readonly [Name in keyof Services]: Client<Services[Name]> };

/** The calls that every client can make, in Node and in browsers. readSteps() and watchRun() need only these. */
export type ClientCalls = { readonly [Name in keyof Services]: WebCalls<Services[Name]> };

export function callsOver(transport: Transport): AllCalls {
  const calls = Object.entries(SERVICES).map(([name, service]) => [name, createClient(service, transport)]);
  return Object.fromEntries(calls) as AllCalls;
}
