import { createClient } from '@connectrpc/connect';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { connectTransport } from '../../src/client/web/transport.ts';
import { readAccess } from './access.ts';
import type { Api } from './client.ts';

/** Creates a client of the services that the page calls. The built page has no descriptors of the others. */
export function connect(address: string): Api {
  const { token, namespace } = readAccess();
  const { transport } = connectTransport({ address, token: token || undefined, namespace: namespace || undefined });
  return {
    trajectories: createClient(TrajectoryService, transport),
    runs: createClient(RunService, transport),
    rollouts: createClient(RolloutService, transport),
    server: createClient(ServerService, transport),
    admin: createClient(AdminService, transport),
  };
}
