import { readFileSync } from 'node:fs';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, it } from 'vitest';
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { AnabranchError, REASONS, type Reason } from '../../src/domain/errors.ts';
import { codeOf, describeConnectError, toConnectError } from '../../src/rpc/errors.ts';

const PROTO = readFileSync(new URL('../../proto/anabranch/v1/error.proto', import.meta.url), 'utf8');

/** The codes as error.proto documents them: `// NOT_FOUND. …` above `ERROR_REASON_X`. */
function documentedCodes(): Map<string, string> {
  const codes = new Map<string, string>();
  for (const [, comment, name] of PROTO.matchAll(/ {2}\/\/ (.*)\n(?: {2}\/\/ .*\n)* {2}ERROR_REASON_(\w+) = [1-9]/g)) {
    codes.set(name!, comment!);
  }
  return codes;
}

function constantCase(code: Code): string {
  if (code === Code.Canceled) return 'CANCELLED';
  return Code[code].replace(/(?<=[a-z])(?=[A-Z])/g, '_').toUpperCase();
}

class Log {
  readonly errors: object[] = [];
  readonly warnings: object[] = [];
  debug(): void {}
  info(): void {}
  warn(fields: object): void {
    this.warnings.push(fields);
  }
  error(fields: object): void {
    this.errors.push(fields);
  }
}

describe('errors on the wire', () => {
  it.each([...REASONS])('FM6: %s has the code that error.proto documents', (reason) => {
    expect(documentedCodes().get(reason)).toMatch(new RegExp(`^${constantCase(codeOf(reason, 'read'))}\\b`));
  });

  it('FM6: a write that refers to an unknown state is a failed precondition', () => {
    expect(documentedCodes().get('STATE_NOT_FOUND')).toContain('FAILED_PRECONDITION when a step refers to it');
    expect(codeOf('STATE_NOT_FOUND', 'write')).toBe(Code.FailedPrecondition);
    expect(codeOf('STATE_NOT_FOUND', 'read')).toBe(Code.NotFound);
  });

  it('FM6: an error of the service carries its reason, its metadata and the invalid fields', () => {
    const error = new AnabranchError('STEP_GAP', 'mind the gap', {
      metadata: { next_step_number: '3' },
      violations: [{ field: 'steps[0].step_number', description: 'must be 3' }],
    });
    const sent = toConnectError(error, 'write', new Log());
    expect(sent).toMatchObject({ code: Code.OutOfRange, rawMessage: 'mind the gap' });
    expect(sent.findDetails(ErrorInfoSchema)).toMatchObject([
      { reason: 'STEP_GAP', domain: 'anabranch.v1', metadata: { next_step_number: '3' } },
    ]);
    expect(sent.findDetails(BadRequestSchema)[0]?.fieldViolations).toMatchObject([
      { field: 'steps[0].step_number', description: 'must be 3' },
    ]);
  });

  it.each([
    'STORAGE_FULL',
    'STORAGE_LOST',
    'DATABASE_UNAVAILABLE',
    'SERVER_DRAINING',
    'TOO_MANY_CONNECTIONS',
    'CALLER_LIMIT',
  ] as Reason[])('%s has a retry delay', (reason) => {
    const sent = toConnectError(new AnabranchError(reason, 'later'), 'write', new Log());
    const { retryDelay } = sent.findDetails(RetryInfoSchema)[0]!;
    expect(Number(retryDelay!.seconds) * 1000 + retryDelay!.nanos / 1e6).toBeGreaterThan(0);
  });

  it('any other error is INTERNAL with an id to find it in the log, and without its text', () => {
    const log = new Log();
    const secret = new Error('SELECT password FROM secrets');
    const sent = toConnectError(secret, 'read', log);
    const { reason, metadata } = sent.findDetails(ErrorInfoSchema)[0]!;
    expect(sent.code).toBe(Code.Internal);
    expect(reason).toBe('INTERNAL');
    expect(JSON.stringify([sent.rawMessage, sent.message, metadata])).not.toContain('SELECT');
    expect(log.errors).toEqual([{ err: secret, errorId: metadata.error_id }]);
    expect(sent.rawMessage).toContain(metadata.error_id);
  });

  it('a call whose HTTP/1.1 connection has closed is CANCELLED, which nobody needs to look for in the log', () => {
    const log = new Log();
    const sent = toConnectError(AbortSignal.abort().reason, 'read', log);
    expect(sent.code).toBe(Code.Canceled);
    expect(sent.findDetails(ErrorInfoSchema)).toMatchObject([{ reason: 'CANCELLED' }]);
    expect([log.errors, log.warnings]).toEqual([[], []]);
  });

  it('the cause of an error is logged, never sent', () => {
    const log = new Log();
    const cause = new Error('connect ECONNREFUSED /secret/socket');
    const sent = toConnectError(new AnabranchError('DATABASE_UNAVAILABLE', 'later', { cause }), 'read', log);
    expect(JSON.stringify([sent.rawMessage, sent.findDetails(ErrorInfoSchema)])).not.toContain('secret');
    expect(log.warnings).toMatchObject([{ err: cause }]);
  });

  it.each([
    [
      new ConnectError('message size 9 is larger than configured readMaxBytes 8', Code.ResourceExhausted),
      'MESSAGE_TOO_LARGE',
    ],
    [new ConnectError('message size 9 is larger than configured writeMaxBytes 8', Code.ResourceExhausted), 'INTERNAL'],
    [new ConnectError('parse binary: premature EOF', Code.Internal), 'INVALID_REQUEST'],
    [new ConnectError('protocol error: incomplete envelope', Code.InvalidArgument), 'INVALID_REQUEST'],
    [new ConnectError('serialize binary: no', Code.Internal), 'INTERNAL'],
    [new ConnectError('unknown compression "x"', Code.Unimplemented), 'UNIMPLEMENTED'],
    [new ConnectError('the operation timed out', Code.DeadlineExceeded), 'DEADLINE_EXCEEDED'],
    [new ConnectError('http/2 stream closed with error code CANCEL (0x8)', Code.Canceled), 'CANCELLED'],
    [new ConnectError('http/2 stream closed with error code INTERNAL_ERROR (0x2)', Code.Internal), 'CANCELLED'],
  ])('FM6: %s of Connect is reported as %s', (error, reason) => {
    describeConnectError(error, new Log());
    expect(error.findDetails(ErrorInfoSchema)).toMatchObject([{ reason, domain: 'anabranch.v1' }]);
    expect(error.code).toBe(codeOf(reason as Reason, 'read'));
  });

  it('FM5: a misspelt field of JSON is named', () => {
    const text = 'cannot decode message anabranch.v1.Step from JSON: key "stepNumbr" is unknown';
    const error = new ConnectError(text, Code.InvalidArgument);
    describeConnectError(error, new Log());
    expect(error.findDetails(BadRequestSchema)[0]?.fieldViolations).toMatchObject([{ field: 'stepNumbr' }]);
  });
});
