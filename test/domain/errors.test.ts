import { describe, expect, it } from 'vitest';
import { ErrorReasonSchema } from '../../gen/es/anabranch/v1/error_pb.js';
import { StatusSchema } from '../../gen/es/anabranch/v1/status_pb.js';
import {
  AnabranchError,
  invalidField,
  REASONS,
  stateNotFound,
  stepNotFound,
  tagNotFound,
  trajectoryNotFound,
} from '../../src/domain/errors.ts';
import { isSealed, STATUSES } from '../../src/domain/lifecycle.ts';

describe('the catalogue of errors', () => {
  it('FM6: contains the reasons of error.proto, in its order, and no others', () => {
    const names = ErrorReasonSchema.values.map(({ name }) => name);
    expect(['ERROR_REASON_UNSPECIFIED', ...REASONS.map((reason) => `ERROR_REASON_${reason}`)]).toEqual(names);
  });

  it('FM6: message and metadata contain what a caller needs to continue', () => {
    const id = '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a';
    expect(trajectoryNotFound(id)).toMatchObject({
      reason: 'TRAJECTORY_NOT_FOUND',
      metadata: { trajectory_id: id },
      message: expect.stringContaining(id),
    });
    expect(stepNotFound(id, 9n, 4n)).toMatchObject({
      reason: 'STEP_NOT_FOUND',
      metadata: { trajectory_id: id, step_number: '9', next_step_number: '4' },
      message: expect.stringMatching(/no step 9.*0 to 3/),
    });
    expect(tagNotFound(id, 'best')).toMatchObject({
      reason: 'TAG_NOT_FOUND',
      metadata: { trajectory_id: id, tag: 'best' },
      message: expect.stringContaining('"best"'),
    });
    expect(stateNotFound('ab')).toMatchObject({ reason: 'STATE_NOT_FOUND', metadata: { digest: 'ab' } });
    expect(invalidField('steps[3].info_json', 'must be JSON')).toMatchObject({
      reason: 'INVALID_REQUEST',
      message: 'steps[3].info_json: must be JSON',
      violations: [{ field: 'steps[3].info_json', description: 'must be JSON' }],
    });
  });

  it('FM6: for a trajectory without steps no range of steps 0 to -1 is named', () => {
    expect(stepNotFound('x', 0n, 0n).message).not.toContain('-1');
  });

  it('keeps the cause out of the message', () => {
    const cause = new Error('password=hunter2');
    const error = new AnabranchError('INTERNAL', 'A fault of the server.', { cause });
    expect(error.cause).toBe(cause);
    expect(`${error.message}${JSON.stringify(error.metadata)}`).not.toContain('hunter2');
  });
});

describe('status', () => {
  it('L: has the values of status.proto', () => {
    const names = StatusSchema.values.map(({ name }) => name);
    expect(['STATUS_UNSPECIFIED', ...STATUSES.map((status) => `STATUS_${status}`)]).toEqual(names);
  });

  it('L1: of a trajectory is RUNNING, or terminal', () => {
    expect(isSealed('RUNNING')).toBe(false);
    for (const status of ['COMPLETED', 'FAILED', 'CANCELLED'] as const) expect(isSealed(status)).toBe(true);
  });
});
