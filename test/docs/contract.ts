/** The descriptors of the public contract, for the tests that compare documents with it. */
import { createRegistry, type Registry } from '@bufbuild/protobuf';
import { file_anabranch_v1_admin_service } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { file_anabranch_v1_error } from '../../gen/es/anabranch/v1/error_pb.js';
import { file_anabranch_v1_retention_service } from '../../gen/es/anabranch/v1/retention_service_pb.js';
import { file_anabranch_v1_rollout } from '../../gen/es/anabranch/v1/rollout_pb.js';
import { file_anabranch_v1_rollout_service } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { file_anabranch_v1_run } from '../../gen/es/anabranch/v1/run_pb.js';
import { file_anabranch_v1_run_service } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { file_anabranch_v1_server_service } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { file_anabranch_v1_state } from '../../gen/es/anabranch/v1/state_pb.js';
import { file_anabranch_v1_state_service } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { file_anabranch_v1_status } from '../../gen/es/anabranch/v1/status_pb.js';
import { file_anabranch_v1_trajectory } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { file_anabranch_v1_trajectory_service } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';

export const registry: Registry = createRegistry(
  file_anabranch_v1_admin_service,
  file_anabranch_v1_error,
  file_anabranch_v1_retention_service,
  file_anabranch_v1_rollout,
  file_anabranch_v1_rollout_service,
  file_anabranch_v1_run,
  file_anabranch_v1_run_service,
  file_anabranch_v1_state,
  file_anabranch_v1_server_service,
  file_anabranch_v1_state_service,
  file_anabranch_v1_status,
  file_anabranch_v1_trajectory,
  file_anabranch_v1_trajectory_service,
);

/** Names of all messages, services, RPCs, enums, fields and enum values, without their packages. */
export function contractNames(): Set<string> {
  return new Set(
    [...registry].flatMap((type) => {
      if (type.kind === 'message') return [type.name, ...type.fields.map((field) => field.name)];
      if (type.kind === 'service') return [type.name, ...type.methods.map((method) => method.name)];
      if (type.kind === 'enum') return [type.name, ...type.values.flatMap((value) => [value.name, value.localName])];
      return [];
    }),
  );
}
