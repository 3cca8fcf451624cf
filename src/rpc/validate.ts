import { create, type DescMessage, type DescService, type MessageShape } from '@bufbuild/protobuf';
import { createValidator } from '@bufbuild/protovalidate';
import { WatchSubjectSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { AnabranchError, type Violation } from '../domain/errors.ts';
import { ListSizes } from './list_sizes.ts';
import { RequestFields } from './request_fields.ts';
import { toViolation } from './violation.ts';

export interface Validator {
  /**
   * Checks a request by the rules of its proto, then by what the types of its fields can hold. Writes its UUIDs in
   * lower case. Errors: INVALID_REQUEST with the fields that break their rules, at most 20, and the number of the
   * others. If lists are too long, only these are named.
   */
  check<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): void;
}

/** Maximum number of violations in an error. A hostile message can have thousands. */
const NAMED_VIOLATIONS = 20;

/** Rules are compiled at their first use, which is slow. So the rules of all requests are compiled once, here. */
export function createRequestValidator(services: readonly DescService[]): Validator {
  const patterns = new Map<string, RegExp>();
  const validator = createValidator({
    regexMatch: (pattern, text) => {
      const compiled = patterns.get(pattern) ?? new RegExp(pattern, 'u');
      patterns.set(pattern, compiled);
      return compiled.test(text);
    },
  });
  const sizes = new ListSizes();
  const inputs = services.flatMap(({ methods }) => methods.map(({ input }) => input));
  // The rules of WatchRequest do not include those of its subjects.
  for (const schema of [...inputs, WatchSubjectSchema]) validator.validate(schema, create(schema));
  const fields = new RequestFields();
  return {
    check(schema, message) {
      const tooLong = sizes.tooLong(schema, message);
      if (tooLong.length > 0) throw invalidRequest(tooLong);
      const result = validator.validate(schema, message);
      if (result.kind === 'error') throw result.error;
      if (result.kind === 'invalid') {
        const named = result.violations.slice(0, NAMED_VIOLATIONS);
        throw invalidRequest(
          named.map((violation) => toViolation(schema, message, violation)),
          result.violations.length - named.length,
        );
      }
      fields.check(schema, message);
    },
  };
}

function invalidRequest(violations: readonly Violation[], unlistedViolations = 0): AnabranchError {
  const text = violations.map(({ field, description }) => `${field}: ${description}`);
  return new AnabranchError('INVALID_REQUEST', `The request is invalid. ${text.join('; ')}`, {
    violations,
    unlistedViolations,
  });
}
