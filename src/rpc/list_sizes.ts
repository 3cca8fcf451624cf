import { type DescMessage, getOption, hasOption, type MessageShape } from '@bufbuild/protobuf';
import { field as rules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';
import type { Violation } from '../domain/errors.ts';

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
export class ListSizes {
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
