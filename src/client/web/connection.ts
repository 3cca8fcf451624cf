import { createClient } from '@connectrpc/connect';
import { AdminService } from '../../../gen/es/anabranch/v1/admin_service_pb.js';
import { RetentionService } from '../../../gen/es/anabranch/v1/retention_service_pb.js';
import { RolloutService } from '../../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { TrajectoryService } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { ClientCalls } from '../calls.ts';
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
