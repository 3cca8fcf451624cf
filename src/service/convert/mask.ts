import type { DescField, DescMessage, MessageShape } from '@bufbuild/protobuf';
import type { FieldMask } from '@bufbuild/protobuf/wkt';
import { invalidField } from '../../domain/errors.ts';
import { shorten } from '../../domain/ids.ts';

type FieldsOf<Desc extends DescMessage> = Omit<MessageShape<Desc>, '$typeName' | '$unknown'>;

/** Converters of the fields that are stored as other values than the request has. */
type Converters<Fields, Converted> = {
  readonly [Name in keyof Converted]: (value: Name extends keyof Fields ? Fields[Name] : never) => Converted[Name];
};

type Masked<Fields, Converted> = Partial<Omit<Fields, keyof Converted> & Converted>;

/**
 * Returns the fields that the mask of an update names, converted. The mask may name all fields that follow it in the
 * proto (`updatableFields`). Errors: INVALID_REQUEST for a mask that names nothing, or something else.
 */
export function maskedFields<Desc extends DescMessage, Converted extends object>(
  schema: Desc,
  request: MessageShape<Desc> & { readonly updateMask?: FieldMask | undefined },
  converters: Converters<FieldsOf<Desc>, Converted>,
): Masked<FieldsOf<Desc>, NoInfer<Converted>> {
  const paths = request.updateMask?.paths ?? [];
  const fields = updatableFields(schema);
  const names = fields.map(({ name }) => name).join(', ');
  if (paths.length === 0) throw invalidField('update_mask', `must name at least one of ${names}`);
  const values = request as Readonly<Record<string, unknown>>;
  const convert = converters as Readonly<Record<string, ((value: unknown) => unknown) | undefined>>;
  const masked = paths.map((path) => {
    const field = fields.find(({ name }) => name === path);
    if (field === undefined) throw invalidField('update_mask', `may name ${names}, not "${shorten(path)}"`);
    const value = values[field.localName];
    const converter = Object.hasOwn(convert, field.localName) ? convert[field.localName] : undefined;
    return [field.localName, converter === undefined ? value : converter(value)];
  });
  return Object.fromEntries(masked) as Masked<FieldsOf<Desc>, Converted>;
}

/** Returns the fields that an update changes: those with a number above that of `update_mask`. */
function updatableFields({ field, fields }: DescMessage): readonly DescField[] {
  const mask = field.updateMask;
  return mask === undefined ? [] : fields.filter(({ number }) => number > mask.number);
}
