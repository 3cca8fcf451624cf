import { create, type DescMessage, type MessageInitShape } from '@bufbuild/protobuf';
import { expect, it } from 'vitest';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { CreateRolloutsRequestSchema, RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import {
  BranchRunRequestSchema,
  CreateRunRequestSchema,
  RunService,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { BranchTrajectoryRequestSchema, TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AnabranchError, invalidField, type Reason, taskNotFound } from '../../src/domain/errors.ts';
import { NAMED, nameField } from '../../src/rpc/named_field.ts';

const A = '01900000-0000-7000-8000-00000000000a';

/**
 * Fields that no error is about: names that clients choose freely, filters and bases that may match nothing, and
 * tokens.
 */
const NOT_NAMED = [
  'app_name',
  'base_digest',
  'branch_task_id',
  'call_id',
  'environment_name',
  'external_id',
  'key_id',
  'parent_id',
  'prompt_token_ids',
  'state_name',
  'token_ids',
  'trajectory_ids',
  'worker_id',
  'writer_id',
];

/** Returns the field that the error names. */
function named<Desc extends DescMessage>(
  error: AnabranchError,
  schema: Desc,
  request: MessageInitShape<Desc>,
): string | undefined {
  const result = nameField(error, schema, create(schema, request));
  return result instanceof AnabranchError ? result.violations[0]?.field : undefined;
}

function about(reason: Reason, metadata: Record<string, string>): AnabranchError {
  return new AnabranchError(reason, 'refused', { metadata });
}

function* fieldsOf({ fields }: DescMessage): Generator<string, void, undefined> {
  for (const { name, message, fieldKind } of fields) {
    if (message?.typeName.startsWith('anabranch.') === true && fieldKind !== 'map') yield* fieldsOf(message);
    else yield name;
  }
}

it('FM6: every field of a request that holds an id, a name or a digest is in the table, or known to name nothing', () => {
  const services = [TrajectoryService, StateService, RunService, RolloutService, AdminService, ServerService];
  const fields = new Set(services.flatMap(({ methods }) => methods.flatMap(({ input }) => [...fieldsOf(input)])));
  const refers = [...fields].filter((name) => /(_ids?|_name|^tag|digest)$/.test(name));
  const listed = new Set(Object.values(NAMED).flatMap((entry) => entry.fields));
  expect(refers.filter((name) => !listed.has(name)).sort()).toEqual(NOT_NAMED);
  expect([...listed].filter((name) => !fields.has(name))).toEqual([]);
});

it('FM6: an error names the first field that holds what it is about, with its place in a list', () => {
  const error = taskNotFound('b');
  const rollouts = ['a', 'b', 'b'].map((taskId) => ({ taskId, modelUri: 'b' }));
  expect(named(error, CreateRolloutsRequestSchema, { rollouts })).toBe('rollouts[1].task_id');
  const result = nameField(error, CreateRolloutsRequestSchema, create(CreateRolloutsRequestSchema, { rollouts }));
  expect(result).toMatchObject({ message: `rollouts[1].task_id: ${error.message}`, metadata: error.metadata });
  expect(named(error, CreateRolloutsRequestSchema, {})).toBeUndefined();
});

it('FM6: of a request that creates one thing from another, an id or a name in use is that of what it creates', () => {
  const branch = { trajectoryId: A, branchId: A };
  const exists = about('TRAJECTORY_EXISTS', { trajectory_id: A });
  expect(named(exists, BranchTrajectoryRequestSchema, branch)).toBe('branch_id');
  const run = { runId: A, branchId: A, branchTrajectoryId: A };
  expect(named(exists, BranchRunRequestSchema, run)).toBe('branch_trajectory_id');
  expect(named(about('RUN_EXISTS', { run: A }), BranchRunRequestSchema, run)).toBe('branch_id');
  const root = { actions: [{ name: 'main' }], states: [{ name: 'main' }] };
  const making = { mainTrajectory: { root }, name: 'main' };
  expect(named(about('RUN_EXISTS', { run: 'main' }), CreateRunRequestSchema, making)).toBe('name');
});

it('FM6: a step number that a request has several times is not named', () => {
  const error = about('BRANCH_POINT_BEYOND_END', { step_number: '4' });
  const from = (stepNumber: bigint) => ({ startFrom: { trajectoryId: A, stepNumber } });
  expect(named(error, CreateRolloutsRequestSchema, { rollouts: [from(3n), from(4n)] })).toBe(
    'rollouts[1].start_from.step_number',
  );
  expect(named(error, CreateRolloutsRequestSchema, { rollouts: [from(4n), from(4n)] })).toBeUndefined();
});

it('FM6: errors that name fields already, and other errors, are returned as they are', () => {
  for (const error of [invalidField('task_id', 'is invalid'), about('RUN_ACTIVE', { run: A }), new Error('lost')]) {
    expect(nameField(error, CreateRunRequestSchema, create(CreateRunRequestSchema, { runId: A }))).toBe(error);
  }
});
