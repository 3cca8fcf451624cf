import {
  create,
  type DescField,
  type DescMessage,
  type MessageInitShape,
  type MessageShape,
  ScalarType,
} from '@bufbuild/protobuf';
import { describe, expect, it } from 'vitest';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import {
  ClaimRolloutsRequestSchema,
  CompleteRolloutRequestSchema,
  CreateRolloutsRequestSchema,
  RolloutService,
  UpdateRolloutRequestSchema,
  UpsertTasksRequestSchema,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import {
  AppendStepRequestSchema,
  ListTrajectoriesRequestSchema,
  TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { AnabranchError } from '../../src/domain/errors.ts';
import { RequestFields } from '../../src/rpc/request_fields.ts';

const fields = new RequestFields();
const ID = '0192C7A4-7B1E-7D3C-9B5A-3F1E2D4C5B6A';

function checked<Desc extends DescMessage>(schema: Desc, request: MessageInitShape<Desc>): MessageShape<Desc> {
  const message = create(schema, request);
  fields.check(schema, message);
  return message;
}

function fieldRefused<Desc extends DescMessage>(schema: Desc, request: MessageInitShape<Desc>): string | undefined {
  try {
    checked(schema, request);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'INVALID_REQUEST') return error.violations[0]?.field;
    throw error;
  }
  return undefined;
}

describe('fields of requests are checked as their descriptors say', () => {
  it.each<[string, () => string | undefined, string]>([
    ['text', () => fieldRefused(ListTrajectoriesRequestSchema, { taskId: 'a\0' }), 'task_id'],
    ['half a surrogate pair', () => fieldRefused(ListTrajectoriesRequestSchema, { name: '\ud800' }), 'name'],
    ['text in a list', () => fieldRefused(ClaimRolloutsRequestSchema, { taskIds: ['a', '\0'] }), 'task_ids[1]'],
    ['a key of a map', () => fieldRefused(ClaimRolloutsRequestSchema, { labels: { a: 'b', '\0': 'c' } }), 'labels'],
    ['a value of a map', () => fieldRefused(ClaimRolloutsRequestSchema, { labels: { a: '\0' } }), 'labels'],
    ['a key of numbers', () => fieldRefused(UpdateRolloutRequestSchema, { metrics: { '\0': 1 } }), 'metrics'],
    [
      'text in a message in a list',
      () => fieldRefused(CompleteRolloutRequestSchema, { validations: [{}, { query: '\0' }] }),
      'validations[1].query',
    ],
    [
      'text in two nested lists',
      () => fieldRefused(UpsertTasksRequestSchema, { tasks: [{ tags: { values: ['a', '\0'] } }] }),
      'tasks[0].tags.values[1]',
    ],
    [
      'invalid JSON',
      () => fieldRefused(CreateRolloutsRequestSchema, { rollouts: [{ inputJson: '{}' }, { inputJson: '{NaN}' }] }),
      'rollouts[1].input_json',
    ],
    [
      'JSON that cannot be stored',
      () => fieldRefused(CompleteRolloutRequestSchema, { result: { summaryJson: '"\0"' } }),
      'result.summary_json',
    ],
    ['a duration', () => fieldRefused(ClaimRolloutsRequestSchema, { wait: { seconds: 1n, nanos: -1 } }), 'wait'],
    [
      'a time',
      () => fieldRefused(ListTrajectoriesRequestSchema, { createTimeTo: { seconds: 253_402_300_800n } }),
      'create_time_to',
    ],
    [
      'a time in a map',
      () => fieldRefused(UpdateRolloutRequestSchema, { timings: { 'a"b': { endTime: { nanos: -1 } } } }),
      'timings["a\\"b"].end_time',
    ],
  ])('%s is refused with its path', (_what, refused, field) => {
    expect(refused()).toBe(field);
  });

  it('W11: empty JSON counts as unset, and unset fields are not checked', () => {
    expect(fieldRefused(CreateRolloutsRequestSchema, { rollouts: [{ inputJson: '', metadataJson: '{"a": 1}' }] })).toBe(
      undefined,
    );
  });

  it('a step is checked where it is stored', () => {
    expect(fieldRefused(AppendStepRequestSchema, { step: { infoJson: 'NaN' } })).toBe(undefined);
    expect(fieldRefused(AppendStepRequestSchema, { uid: 'a\0', step: {} })).toBe('uid');
  });

  it('FM1: UUIDs are converted to lower case in every field, and other text is not', () => {
    const { stageId, rollouts } = checked(CreateRolloutsRequestSchema, {
      stageId: ID,
      rollouts: [{ rolloutId: ID, taskId: 'Task', startFrom: { trajectoryId: ID } }, { rolloutId: '' }],
    });
    expect(stageId).toBe(ID.toLowerCase());
    expect(rollouts[0]).toMatchObject({
      rolloutId: ID.toLowerCase(),
      taskId: 'Task',
      startFrom: { trajectoryId: ID.toLowerCase() },
    });
    expect(rollouts[1]?.rolloutId).toBe('');
    expect(checked(UpdateRolloutRequestSchema, { environmentIds: [ID] }).environmentIds).toEqual([ID.toLowerCase()]);
  });

  it('FM1: every field with the name of an id is a UUID, except names that clients choose freely', () => {
    const others = new Set<string>();
    const seen = new Set<DescMessage>();
    const look = (schema: DescMessage): void => {
      if (seen.has(schema)) return;
      seen.add(schema);
      for (const field of schema.fields) {
        if (field.message !== undefined) look(field.message);
        else if (isText(field) && /^uid$|_ids?$/.test(field.name) && !isLowered(schema, field)) others.add(field.name);
      }
    };
    for (const { methods } of [
      TrajectoryService,
      StateService,
      RunService,
      RolloutService,
      AdminService,
      ServerService,
    ]) {
      for (const { input } of methods) look(input);
    }
    expect([...others].sort()).toEqual(
      [
        'branch_task_id',
        'call_id',
        'external_id',
        'request_id',
        'task_id',
        'task_ids',
        'worker_id',
        'writer_id',
      ].sort(),
    );
  });
});

function isText(field: DescField): boolean {
  return field.scalar === ScalarType.STRING;
}

function isLowered(schema: DescMessage, { localName, fieldKind }: DescField): boolean {
  const value = fieldKind === 'list' ? [ID] : ID;
  const message = { ...create(schema), [localName]: value };
  fields.check(schema, message);
  return String((message as Record<string, unknown>)[localName]) === ID.toLowerCase();
}
