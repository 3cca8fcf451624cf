import type { FieldMask } from '@bufbuild/protobuf/wkt';
import { invalidField } from '../../domain/errors.ts';
import { shorten } from '../../domain/ids.ts';

/**
 * What a mask names, each path with how to read its field. (In JSON a mask is spelt `name,metadataJson`; its reader
 * turns that into the names here.)
 * Errors: INVALID_REQUEST for a mask that names nothing, or something else.
 */
export function changesOf<Changes extends object>(
  mask: FieldMask | undefined,
  fields: { readonly [path: string]: () => Partial<Changes> },
): Partial<Changes> {
  const paths = mask?.paths ?? [];
  const names = Object.keys(fields).join(', ');
  if (paths.length === 0) throw invalidField('update_mask', `must name at least one of ${names}`);
  let changes: Partial<Changes> = {};
  for (const path of paths) {
    const read = Object.hasOwn(fields, path) ? fields[path] : undefined;
    if (read === undefined) throw invalidField('update_mask', `may name ${names}, not "${shorten(path)}"`);
    changes = { ...changes, ...read() };
  }
  return changes;
}

/**
 * Returns those of the fields that a mask names. Errors: INVALID_REQUEST for a mask that names nothing, or something
 * else.
 */
export function maskedFields<Fields extends object>(mask: FieldMask | undefined, fields: Fields): Partial<Fields> {
  const readers = Object.entries(fields).map(([name, value]) => [protoName(name), () => ({ [name]: value })]);
  return changesOf<Fields>(mask, Object.fromEntries(readers));
}

function protoName(localName: string): string {
  return localName.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}
