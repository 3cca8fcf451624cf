import type { DescField, DescMethod, MessageShape } from '@bufbuild/protobuf';
import { type ReflectMessage, reflect } from '@bufbuild/protobuf/reflect';
import type { Caller } from '../../domain/caller.ts';
import { stateDigest } from '../../domain/state_digest.ts';
import type { IdempotencyKey } from '../../store/contract/request.ts';

/** Whether the order of list elements changes a digest. */
type ListOrder = 'as sent' | 'as a set';

/**
 * ID1: returns the idempotency key of a request; undefined without a `request_id`. Its digest covers the numbers and
 * values of all other fields that are set. So a new field does not change the digests of requests without it.
 */
export function idempotencyKeyOf<M extends DescMethod>(
  method: M,
  request: MessageShape<M['input']> & { readonly requestId: string },
): IdempotencyKey | undefined {
  const { requestId } = request;
  if (requestId === '') return undefined;
  const fields = setFields(reflect(method.input, request), 'as sent', ['request_id']);
  return { rpc: method.name, requestId, requestDigest: digestOf(fields) };
}

/**
 * W1: returns the digest that a trajectory keeps of the request that creates it: of the RPC, and of all fields that say
 * what is created.
 */
export function createDigestOf<M extends DescMethod>(method: M, request: MessageShape<M['input']>): string {
  const fields = setFields(reflect(method.input, request), 'as sent', ['request_id', 'if_exists']);
  return digestOf([method.name, ...fields]);
}

/**
 * Returns what tokens of a query are bound to: the caller's namespace, the RPC, all fields of the request except page
 * size and tokens, and the row key of a resource. The order of list elements does not matter.
 */
export function tokenBindingOf<M extends DescMethod>(
  { namespace }: Caller,
  method: M,
  request: MessageShape<M['input']>,
  key?: bigint,
): string {
  const fields = setFields(reflect(method.input, request), 'as a set', ['page_size', 'page_token', 'resume_token']);
  return digestOf([namespace, method.name, fields, `${key}`]);
}

function digestOf(fields: readonly unknown[]): string {
  return stateDigest(Buffer.from(JSON.stringify(fields)));
}

/** Numbers and values of the fields that are set, in order of their numbers. */
function setFields(message: ReflectMessage, order: ListOrder, leftOut: readonly string[] = []): unknown[] {
  return message.sortedFields
    .filter((field) => message.isSet(field) && !leftOut.includes(field.name))
    .flatMap((field) => [field.number, fieldValue(message, field, order)]);
}

function fieldValue(message: ReflectMessage, field: DescField, order: ListOrder): unknown {
  const value = (each: unknown) => plainValue(each, order);
  switch (field.fieldKind) {
    case 'list': {
      const values = [...message.get(field)].map(value);
      return order === 'as a set' && field.listKind !== 'message' ? [...new Set(values)].sort() : values;
    }
    case 'map':
      return [...message.get(field)]
        .map(([key, each]): [string, unknown] => [String(key), value(each)])
        .sort(([one], [other]) => (one < other ? -1 : 1));
    default:
      return value(message.get(field));
  }
}

/** Returns a value that JSON can represent, unique for each value of a field. */
function plainValue(value: unknown, order: ListOrder): unknown {
  if (typeof value === 'bigint') return `${value}`;
  if (Object.is(value, -0)) return '-0';
  if (typeof value === 'number') return Number.isFinite(value) ? value : `${value}`;
  if (value instanceof Uint8Array) return Buffer.from(value).toString('base64');
  return isMessage(value) ? setFields(value, order) : value;
}

function isMessage(value: unknown): value is ReflectMessage {
  return typeof value === 'object' && value !== null && 'sortedFields' in value;
}
