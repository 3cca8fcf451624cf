import type { DescField, DescMessage, Message } from '@bufbuild/protobuf';
import { reflect } from '@bufbuild/protobuf/reflect';
import { expect } from 'vitest';

/** Names of the fields that an update can change: those below `update_mask`. None without a mask. */
export function pathsOf({ fields }: DescMessage): string[] {
  const mask = fields.findIndex(({ name }) => name === 'update_mask');
  return mask === -1 ? [] : fields.slice(mask + 1).map(({ name }) => name);
}

/** Fields that show another value than the request of that name: the effective config of a run is written anew. */
const COMPUTED = ['anabranch.v1.Run.config_json'];

type Described = readonly [schema: DescMessage, message: Message];

/**
 * Expects that a resource shows the fields that a request set, wherever both have a field of the same name and type.
 * Returns the names of these fields.
 */
export function expectShown([asked, request]: Described, [of, resource]: Described): string[] {
  const sent = reflect(asked, request);
  const common = asked.fields.filter((field) => sent.isSet(field) && isShown(field, of));
  const values = request as unknown as Readonly<Record<string, unknown>>;
  const expected = Object.fromEntries(common.map(({ localName }) => [localName, values[localName]]));
  expect(resource, of.typeName).toMatchObject(expected);
  return common.map(({ name }) => name);
}

function isShown(field: DescField, of: DescMessage): boolean {
  return of.fields.some((other) => isSame(field, other) && !COMPUTED.includes(`${of.typeName}.${other.name}`));
}

function isSame(a: DescField, b: DescField): boolean {
  const typeOf = ({ name, fieldKind, scalar, message, enum: values }: DescField) =>
    [name, fieldKind, scalar, message?.typeName, values?.typeName].join(' ');
  return typeOf(a) === typeOf(b);
}
