import type { DescEnum, DescField, DescMessage, MessageShape } from '@bufbuild/protobuf';
import {
  isReflectList,
  isReflectMap,
  isReflectMessage,
  type Path,
  pathToString,
  reflect,
} from '@bufbuild/protobuf/reflect';
import type { Violation as Broken } from '@bufbuild/protovalidate';
import type { Violation } from '../domain/errors.ts';
import { shorten } from '../domain/ids.ts';

/** Describes a rule of the proto that a request violates: the field, the expected value and the received value. */
export function toViolation<Desc extends DescMessage>(
  schema: Desc,
  message: MessageShape<Desc>,
  broken: Broken,
): Violation {
  const at = pathToString(broken.field.map(shortKey));
  // The rule for mutually exclusive fields belongs to their message, which has no path if it is the request itself.
  const field = at === '' ? (/one of (\w+)/.exec(broken.message)?.[1] ?? '') : at;
  const description = wanted(broken);
  const came = broken.ruleId === 'required' ? '' : whatCame(schema, message, broken);
  return { field, description: came === '' ? description : `${description} (${came})` };
}

/** Clients choose keys of any size, but an error must fit into the headers of a response. */
function shortKey(part: Path[number]): Path[number] {
  return part.kind === 'map_sub' && typeof part.key === 'string' ? { ...part, key: shorten(part.key) } : part;
}

function whatCame<Desc extends DescMessage>(
  schema: Desc,
  message: MessageShape<Desc>,
  { field, forKey }: Broken,
): string {
  return forKey ? keyWords(field) : valueWords(valueAt(schema, message, field), enumOf(field));
}

function wanted({ ruleId, message, field }: Broken): string {
  const listed = enumOf(field);
  switch (ruleId) {
    case 'required':
      return 'must be set';
    case 'string.pattern':
      return message.replace(/^does not match regex pattern/, 'must match');
    case 'enum.defined_only':
      return `must be one of ${(listed?.values ?? []).map(({ name }) => name).join(', ')}`;
    case 'enum.in':
      return `must be one of ${namesIn(message, listed)}`;
    case 'enum.not_in':
      return `must not be ${namesIn(message, listed)}`;
    default:
      return message;
  }
}

/** `must be in list [5, 6, 7]` → `STATUS_COMPLETED, STATUS_FAILED, STATUS_CANCELLED`. */
function namesIn(message: string, listed: DescEnum | undefined): string {
  const numbers = message.match(/-?\d+/g) ?? [];
  return numbers.map((number) => listed?.value[Number(number)]?.name ?? number).join(', ');
}

function enumOf(path: Path): DescEnum | undefined {
  const field = path.findLast((part) => part.kind === 'field') as DescField | undefined;
  return field?.enum;
}

function valueAt<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>, path: Path): unknown {
  let at: unknown = reflect(schema, message);
  for (const part of path) {
    if (part.kind === 'field' && isReflectMessage(at)) at = at.isSet(part) || !part.message ? at.get(part) : undefined;
    else if (part.kind === 'list_sub' && isReflectList(at)) at = at.get(part.index);
    else if (part.kind === 'map_sub' && isReflectMap(at)) at = at.get(part.key);
    else return undefined;
  }
  return path.length === 0 ? undefined : at;
}

function valueWords(value: unknown, listed: DescEnum | undefined): string {
  if (listed !== undefined && typeof value === 'number') return `it is ${listed.value[value]?.name ?? value}`;
  if (typeof value === 'bigint' || typeof value === 'number') return `it is ${value}`;
  if (typeof value === 'string') return textWords('it', value);
  if (value instanceof Uint8Array) return `it has ${value.length} bytes`;
  if (isReflectList(value) || isReflectMap(value)) return `it has ${value.size}`;
  return '';
}

function keyWords(path: Path): string {
  const last = path.at(-1);
  return last?.kind === 'map_sub' ? textWords('the key', String(last.key)) : '';
}

function textWords(what: string, text: string): string {
  const bytes = Buffer.byteLength(text);
  if (bytes === 0) return `${what} is empty`;
  return bytes > 80 ? `${what} has ${bytes} bytes` : `${what} is "${shorten(text)}"`;
}
