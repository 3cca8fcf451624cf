import {
  type DescField,
  type DescMessage,
  getOption,
  hasOption,
  type MessageShape,
  ScalarType,
} from '@bufbuild/protobuf';
import { type Duration, DurationSchema, type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import { field as rules } from '@bufbuild/protovalidate/gen/buf/validate/validate_pb.js';
import { WatchSubjectSchema } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { StepSchema, StepStateSchema } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { invalidField, type Violation } from '../domain/errors.ts';
import { shorten } from '../domain/ids.ts';
import { isStorableText, jsonFault, UNSTORABLE_TEXT } from '../domain/text.ts';
import { durationFault, instantFault } from '../service/convert/values.ts';

/** Returns what is wrong with a value, and its path below the field; undefined if nothing is wrong. */
type FindFault = (value: never) => Violation | undefined;

interface FieldCheck {
  /** As in the proto. */
  readonly name: string;
  readonly localName: string;
  readonly find: FindFault;
  readonly isUuid: boolean;
}

/**
 * Checks the fields of a request for what the rules of the protos cannot say, by the descriptors alone: text is
 * storable (W11), text in `…_json` fields is strict JSON, durations and times are in range. Writes UUIDs in lower case.
 */
export class RequestFields {
  readonly #checks = new Map<DescMessage, readonly FieldCheck[]>();

  /** Errors: INVALID_REQUEST with the first field that is wrong. */
  check<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): void {
    const fault = this.#findIn(schema, message as Record<string, unknown>);
    if (fault !== undefined) throw invalidField(fault.field, fault.description);
  }

  #findIn(schema: DescMessage, message: Record<string, unknown>): Violation | undefined {
    for (const { name, localName, find, isUuid } of this.#checksOf(schema)) {
      const value = message[localName];
      if (value === undefined) continue;
      const fault = find(value as never);
      if (fault !== undefined) return within(name, fault);
      if (isUuid) message[localName] = lowerCase(value as string | readonly string[]);
    }
    return undefined;
  }

  #checksOf(schema: DescMessage): readonly FieldCheck[] {
    const known = this.#checks.get(schema);
    if (known !== undefined) return known;
    const checks = schema.fields.flatMap((field) => this.#checkOf(field) ?? []);
    this.#checks.set(schema, checks);
    return checks;
  }

  #checkOf(field: DescField): FieldCheck | undefined {
    const { name, localName, oneof } = field;
    if (oneof !== undefined) throw new Error(`${field} is in a oneof, which requests do not have`);
    const find = this.#findOf(field);
    return find && { name, localName, find, isUuid: isUuid(field) };
  }

  #findOf(field: DescField): FindFault | undefined {
    switch (field.fieldKind) {
      case 'scalar':
        return textFind(field);
      case 'message':
        return this.#messageFind(field.message);
      case 'list': {
        const find = field.listKind === 'message' ? this.#messageFind(field.message) : textFind(field);
        return find && ((list: readonly never[]) => findInList(list, find));
      }
      case 'map': {
        const find = field.mapKind === 'message' ? this.#messageFind(field.message) : textFind(field);
        return (map: Readonly<Record<string, never>>) => findInMap(map, find);
      }
      default:
        return undefined;
    }
  }

  #messageFind(schema: DescMessage): FindFault | undefined {
    switch (schema) {
      case DurationSchema:
        return (duration: Duration) => faultOf(durationFault(duration));
      case TimestampSchema:
        return (time: Timestamp) => faultOf(instantFault(time));
      // Steps come by the thousand: whatever becomes of them checks them as it goes.
      case StepSchema:
      case StepStateSchema:
      // A subject that breaks a rule fails alone: Watch checks each by itself.
      case WatchSubjectSchema:
        return undefined;
      default:
        return (message: Record<string, unknown>) => this.#findIn(schema, message);
    }
  }
}

function textFind(field: DescField): FindFault | undefined {
  if (field.scalar !== ScalarType.STRING) return undefined;
  if (field.name.endsWith('_json')) return (text: string) => (text === '' ? undefined : faultOf(jsonFault(text)));
  return (text: string) => (isStorableText(text) ? undefined : faultOf(UNSTORABLE_TEXT));
}

function findInList(list: readonly never[], find: FindFault): Violation | undefined {
  for (let i = 0; i < list.length; i += 1) {
    const fault = find(list[i]!);
    if (fault !== undefined) return within(`[${i}]`, fault);
  }
  return undefined;
}

function findInMap(map: Readonly<Record<string, never>>, find: FindFault | undefined): Violation | undefined {
  for (const key in map) {
    if (!isStorableText(key)) return faultOf(UNSTORABLE_TEXT);
    const fault = find?.(map[key]!);
    if (fault !== undefined) return fault.field === '' ? fault : within(`[${JSON.stringify(shorten(key))}]`, fault);
  }
  return undefined;
}

function faultOf(description: string | undefined): Violation | undefined {
  return description === undefined ? undefined : { field: '', description };
}

/** The fault with the path of what is around it. */
function within(outer: string, { field, description }: Violation): Violation {
  const isPlain = field === '' || field.startsWith('[');
  return { field: isPlain ? `${outer}${field}` : `${outer}.${field}`, description };
}

/**
 * Whether the rules of the proto say that the field holds UUIDs. They accept both cases; ids that differ in case only
 * are the same id.
 */
function isUuid(field: DescField): boolean {
  if (!hasOption(field, rules)) return false;
  const { type } = getOption(field, rules);
  const text = type.case === 'repeated' ? type.value.items?.type : type;
  return text?.case === 'string' && text.value.wellKnown.case === 'uuid';
}

function lowerCase(value: string | readonly string[]): string | readonly string[] {
  return typeof value === 'string' ? value.toLowerCase() : value.map((text) => text.toLowerCase());
}
