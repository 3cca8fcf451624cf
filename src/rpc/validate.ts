import {
  create,
  type DescMessage,
  type DescService,
  getOption,
  hasOption,
  type MessageShape,
} from '@bufbuild/protobuf';
import { createValidator } from '@bufbuild/protovalidate';
import { field as rules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';
import { WatchSubjectSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { AnabranchError, type Violation } from '../domain/errors.ts';
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

/** A field that can be too long, or that contains a message with such fields. */
interface Part {
  /** The name in the proto. */
  readonly name: string;
  readonly localName: string;
  readonly most: bigint | undefined;
  readonly within: DescMessage | undefined;
}

/**
 * Finds lists and maps that are longer than their rules allow, in a request and in its nested single messages. The
 * validator would also validate every element of such a list.
 */
class ListSizes {
  readonly #parts = new Map<DescMessage, readonly Part[]>();

  tooLong<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): Violation[] {
    return this.#tooLong(schema, message as Readonly<Record<string, unknown>>, '');
  }

  #tooLong(schema: DescMessage, message: Readonly<Record<string, unknown>>, path: string): Violation[] {
    const found: Violation[] = [];
    for (const { name, localName, most, within } of this.#partsOf(schema)) {
      const value = message[localName];
      if (value === undefined) continue;
      const field = `${path}${name}`;
      if (within !== undefined) found.push(...this.#tooLong(within, value as Record<string, unknown>, `${field}.`));
      if (most === undefined) continue;
      const size = Array.isArray(value) ? value.length : Object.keys(value as object).length;
      const wanted = Array.isArray(value)
        ? `must contain no more than ${most} item(s)`
        : `map must be at most ${most} entries`;
      if (size > most) found.push({ field, description: `${wanted} (it has ${size})` });
    }
    return found;
  }

  #partsOf(schema: DescMessage): readonly Part[] {
    const known = this.#parts.get(schema);
    if (known !== undefined) return known;
    const parts: Part[] = [];
    for (const field of schema.fields) {
      const { name, localName, fieldKind } = field;
      const type = hasOption(field, rules) ? getOption(field, rules).type : undefined;
      let most: bigint | undefined;
      if (type?.case === 'repeated' && type.value.maxItems > 0n) most = type.value.maxItems;
      if (type?.case === 'map' && type.value.maxPairs > 0n) most = type.value.maxPairs;
      const within = fieldKind === 'message' && field.oneof === undefined ? field.message : undefined;
      if (most !== undefined || within !== undefined) parts.push({ name, localName, most, within });
    }
    this.#parts.set(schema, parts);
    return parts;
  }
}
