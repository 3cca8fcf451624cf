import { create, type DescMessage, type MessageInitShape } from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { PutStateRequestSchema } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import {
  AppendStepRequestSchema,
  CreateTrajectoryRequestSchema,
  GetStepRequestSchema,
  GetTrajectoryRequestSchema,
  ListTrajectoriesRequestSchema,
  ReadStepsRequestSchema,
  SealTrajectoryRequestSchema,
  SetTagRequestSchema,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AnabranchError } from '../../src/domain/errors.ts';
import { createRequestValidator } from '../../src/rpc/validate.ts';

const validator = createRequestValidator([]);
const ID = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';

function broken<Desc extends DescMessage>(schema: Desc, request: MessageInitShape<Desc>): AnabranchError {
  try {
    validator.check(schema, create(schema, request));
  } catch (error) {
    if (error instanceof AnabranchError) return error;
    throw error;
  }
  throw new Error('nothing was wrong');
}

describe('FM6: a request that violates a rule of its proto gets the field, the expected value, and the value received', () => {
  it.each<[string, () => AnabranchError, string, string]>([
    [
      'text with a format',
      () => broken(GetTrajectoryRequestSchema, { trajectoryId: 'my-run' }),
      'trajectory_id',
      'must be a valid UUID (it is "my-run")',
    ],
    [
      'text by a pattern',
      () => broken(SetTagRequestSchema, { trajectoryId: ID, name: '1st\u001b', stepNumber: 1n }),
      'name',
      'must match `^[A-Za-z][A-Za-z0-9._/-]{0,127}$` (it is "1st?")',
    ],
    [
      'text that is too long',
      () => broken(CreateTrajectoryRequestSchema, { name: 'ü'.repeat(200) }),
      'name',
      'must be at most 256 bytes (it has 400 bytes)',
    ],
    [
      'a key',
      () => broken(CreateTrajectoryRequestSchema, { labels: { '': 'x' } }),
      'labels[""]',
      'must be at least 1 bytes (the key is empty)',
    ],
    [
      'a key that is too long',
      () => broken(CreateTrajectoryRequestSchema, { labels: { [`${'k'.repeat(9000)}\n`]: 'x' } }),
      `labels["${'k'.repeat(77)}..."]`,
      'must be at most 64 bytes (the key has 9001 bytes)',
    ],
    [
      'a value of a map',
      () => broken(CreateTrajectoryRequestSchema, { labels: { a: 'x'.repeat(257) } }),
      'labels["a"]',
      'must be at most 256 bytes (it has 257 bytes)',
    ],
    [
      'a number',
      () => broken(ReadStepsRequestSchema, { trajectoryId: ID, startStepNumber: -5n }),
      'start_step_number',
      'must be greater than or equal to 0 (it is -5)',
    ],
    [
      'a missing field',
      () => broken(SetTagRequestSchema, { trajectoryId: ID, name: 'a' }),
      'step_number',
      'must be set',
    ],
    [
      'bytes',
      () => broken(PutStateRequestSchema, { chunk: new Uint8Array(262_145) }),
      'chunk',
      'must be at most 262144 bytes (it has 262145 bytes)',
    ],
    [
      'a list',
      () => broken(ListTrajectoriesRequestSchema, { statuses: Array.from({ length: 9 }, () => Status.RUNNING) }),
      'statuses',
      'must contain no more than 8 item(s) (it has 9)',
    ],
    [
      'an item of a list',
      () => broken(ListTrajectoriesRequestSchema, { statuses: [Status.RUNNING, Status.UNSPECIFIED] }),
      'statuses[1]',
      'must not be STATUS_UNSPECIFIED (it is STATUS_UNSPECIFIED)',
    ],
    [
      'one of several enum values',
      () => broken(SealTrajectoryRequestSchema, { trajectoryId: ID, seal: { status: Status.RUNNING } }),
      'seal.status',
      'must be one of STATUS_COMPLETED, STATUS_FAILED, STATUS_CANCELLED (it is STATUS_RUNNING)',
    ],
    [
      'an unknown enum number',
      () => broken(GetTrajectoryRequestSchema, { trajectoryId: ID, view: 9 as never }),
      'view',
      'must be one of VIEW_UNSPECIFIED, VIEW_BASIC, VIEW_FULL (it is 9)',
    ],
    [
      'none of a oneof',
      () => broken(GetStepRequestSchema, { trajectoryId: ID }),
      'step_number',
      'one of step_number, tag must be set',
    ],
    [
      'two of a oneof, nested deeply',
      () =>
        broken(AppendStepRequestSchema, {
          trajectoryId: ID,
          step: { observations: [{}, { content: { text: 'a', uri: 'b' } }] },
        }),
      'step.observations[1].content',
      'only one of text, json, data, state_digest, uri, tensor can be set',
    ],
  ])('%s', (_what, thrown, field, description) => {
    const error = thrown();
    expect(error.reason).toBe('INVALID_REQUEST');
    expect(error.violations).toEqual([{ field, description }]);
    expect(error.message).toBe(`The request is invalid. ${field}: ${description}`);
  });

  it('every invalid field is named, up to 20', () => {
    const two = broken(ReadStepsRequestSchema, { trajectoryId: '', startStepNumber: -1n });
    expect(two.violations.map(({ field }) => field)).toEqual(['trajectory_id', 'start_step_number']);
    const actions = Array.from({ length: 100 }, () => ({ type: 'x'.repeat(129) }));
    const many = broken(AppendStepRequestSchema, { trajectoryId: ID, step: { actions } });
    expect(many.violations).toHaveLength(20);
  });

  it('T13: elements of lists and maps that are too long are not checked', () => {
    const labels = Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`${i}`, 'v'.repeat(9000)]));
    const observations = Array.from({ length: 1025 }, () => ({ type: 'x'.repeat(129) }));
    const { violations } = broken(CreateTrajectoryRequestSchema, {
      trajectoryId: 'none',
      labels,
      root: { observations },
    });
    expect(violations).toHaveLength(2);
    expect(violations).toContainEqual({ field: 'labels', description: 'map must be at most 64 entries (it has 65)' });
    const description = 'must contain no more than 1024 item(s) (it has 1025)';
    expect(violations).toContainEqual({ field: 'root.observations', description });
  });
});
