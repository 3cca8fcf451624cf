import type { DescService } from '@bufbuild/protobuf';
import type { Client } from '@connectrpc/connect';
import type { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import type { RetentionService } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import type { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import type { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import type { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import type { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import type { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';

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

/** The calls that every client can make, in Node and in browsers. readSteps() and watchRun() need only these. */
export interface ClientCalls {
  readonly trajectories: WebCalls<typeof TrajectoryService>;
  readonly states: WebCalls<typeof StateService>;
  readonly runs: WebCalls<typeof RunService>;
  readonly rollouts: WebCalls<typeof RolloutService>;
  readonly retention: WebCalls<typeof RetentionService>;
  readonly admin: WebCalls<typeof AdminService>;
  readonly server: WebCalls<typeof ServerService>;
}
