import { create } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { setTrailerStatus } from '@connectrpc/connect/protocol-grpc';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { AppendStepRequestSchema } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { BadRequestSchema, ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { AnabranchError, type ErrorDetails, REASONS, type Reason } from '../../src/domain/errors.ts';
import { LIMITS } from '../../src/domain/limits.ts';
import { connectErrorOf, describeConnectError } from '../../src/rpc/errors.ts';
import { createRequestValidator } from '../../src/rpc/validate.ts';
import { CHARACTER } from '../support/character.ts';

const SILENT = { debug() {}, info() {}, warn() {}, error() {} };

/** HTTP/2 counts 32 bytes for each header beside its name and value. */
function headerBytes(error: ConnectError): number {
  const headers = [...setTrailerStatus(new Headers(), error)];
  return headers.reduce((sum, [name, value]) => sum + name.length + value.length + 32, 0);
}

function sent(reason: Reason, message: string, details: ErrorDetails = {}) {
  const error = connectErrorOf(new AnabranchError(reason, message, details), 'write');
  return {
    error,
    bytes: headerBytes(error),
    info: error.findDetails(ErrorInfoSchema)[0]!,
    violations: error.findDetails(BadRequestSchema)[0]?.fieldViolations ?? [],
  };
}

/** Text of any size, of characters of one to four bytes, whole and halved. */
const nasty = fc
  .tuple(
    fc.oneof(
      fc.string({ unit: fc.constantFrom('a', ' ', '"', '%', 'ü', '€', '🙂', '\ud83d', '\ude42', '\0'), minLength: 1 }),
      fc.string({ unit: CHARACTER, minLength: 1 }),
    ),
    fc.constantFrom(1, 3, 30, 300, 3000),
  )
  .map(([text, times]) => text.repeat(times));

const violation = fc.record({ field: nasty, description: nasty });

describe('FM6: the headers of an error', () => {
  it('have at most 6 KiB, whatever the error contains', () => {
    const property = fc.property(
      fc.constantFrom(...REASONS),
      nasty,
      fc.dictionary(fc.constantFrom('branch_ids', 'tag', 'digest', 'step_number', 'fields'), nasty),
      fc.oneof(fc.array(violation, { maxLength: 3 }), fc.array(violation, { minLength: 20, maxLength: 100 })),
      fc.nat(1_000_000),
      (reason, message, metadata, violations, unlistedViolations) => {
        const {
          error,
          bytes,
          info,
          violations: listed,
        } = sent(reason, message, {
          metadata,
          violations,
          unlistedViolations,
        });
        expect(bytes).toBeLessThanOrEqual(LIMITS.errorBytes);
        expect(error.rawMessage.isWellFormed()).toBe(true);
        if (reason === 'INTERNAL') return;
        const leftOut = violations.length - listed.length + unlistedViolations;
        expect(info.metadata.violations_left_out).toBe(leftOut === 0 ? undefined : `${leftOut}`);
      },
    );
    fc.assert(property, { numRuns: 300 });
  });

  it.each(['a', 'ü', '€', '🙂'])(
    'contain the longest text of "%s" that fits, truncated between characters',
    (character) => {
      const { error, info, violations } = sent('INVALID_REQUEST', character.repeat(9000), {
        metadata: { tag: character.repeat(9000) },
        violations: [{ field: character.repeat(9000), description: character.repeat(9000) }],
      });
      const texts = [error.rawMessage, info.metadata.tag, violations[0]!.field, violations[0]!.description];
      for (const text of texts) expect(text).toMatch(new RegExp(`^(?:${character})+\\.\\.\\.$`, 'u'));
      expect(error.rawMessage.length).toBeGreaterThan(100);
    },
  );

  it('contain most errors in full', () => {
    const ids = Array.from({ length: 20 }, () => '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a').join(',');
    const violations = Array.from({ length: 10 }, (_, i) => ({
      field: `steps[${i}].name`,
      description: 'must be set',
    }));
    const {
      error,
      info,
      violations: listed,
    } = sent('HAS_BRANCHES', 'It has branches.', {
      metadata: { branch_ids: ids },
      violations,
    });
    expect(error.rawMessage).toBe('It has branches.');
    expect(info.metadata).toEqual({ branch_ids: ids });
    expect(listed).toMatchObject(violations);
  });

  it('contain as many violations as fit, and the number of those left out', () => {
    const violations = Array.from({ length: 20 }, (_, i) => ({
      field: `step.actions[${i}].${'type.'.repeat(30)}`,
      description: 'must be at most 128 bytes (it has 129 bytes)'.repeat(4),
    }));
    const { error, info, violations: listed } = sent('INVALID_REQUEST', 'The request is invalid.', { violations });
    expect(listed.length).toBeGreaterThan(2);
    expect(listed.length).toBeLessThan(20);
    const leftOut = 20 - listed.length;
    expect(info.metadata).toEqual({ violations_left_out: `${leftOut}` });
    expect(error.rawMessage).toBe(`The request is invalid. (${leftOut} more violations are not listed)`);
  });

  it('contain the number of violations left out beyond the 20 that are checked', () => {
    const step = { actions: Array.from({ length: 100 }, () => ({ type: 'x'.repeat(129) })) };
    const request = create(AppendStepRequestSchema, { trajectoryId: '0192c7a4-7b1e-7d3c-9b5a-3f1e2d4c5b6a', step });
    let thrown: unknown;
    try {
      createRequestValidator([]).check(AppendStepRequestSchema, request);
    } catch (error) {
      thrown = error;
    }
    const error = connectErrorOf(thrown as AnabranchError, 'write');
    const listed = error.findDetails(BadRequestSchema)[0]!.fieldViolations;
    expect(error.findDetails(ErrorInfoSchema)[0]?.metadata).toEqual({ violations_left_out: `${100 - listed.length}` });
    expect(error.rawMessage).toMatch(new RegExp(`\\(${100 - listed.length} more violations are not listed\\)$`));
  });

  it.each([
    ['not found, as health answers', new ConnectError('€'.repeat(100_000), Code.NotFound)],
    ['unimplemented', new ConnectError('€'.repeat(100_000), Code.Unimplemented)],
    [
      'misspelt JSON',
      new ConnectError(`cannot decode field a.b from JSON: ${'🙂'.repeat(9000)}`, Code.InvalidArgument),
    ],
  ])('have at most 6 KiB if Connect raised the error: %s', (_what, error) => {
    describeConnectError(error, SILENT);
    expect(headerBytes(error)).toBeLessThanOrEqual(LIMITS.errorBytes);
  });
});
