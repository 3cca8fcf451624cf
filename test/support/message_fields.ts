import { type DescMessage, type Message, ScalarType } from '@bufbuild/protobuf';
import { reflect } from '@bufbuild/protobuf/reflect';

/** Names of the fields of a message and of the messages in it. */
export function fieldsOf(schema: DescMessage, found = new Set<string>()): Set<string> {
  for (const field of schema.fields) {
    found.add(`${schema.typeName}.${field.name}`);
    if (field.message !== undefined) fieldsOf(field.message, found);
  }
  return found;
}

/** Names of the fields with text of a message and of the messages in it, keys of maps included. */
export function textsOf(schema: DescMessage): Set<string> {
  const texts = new Set<string>();
  const look = (message: DescMessage) => {
    for (const field of message.fields) {
      const isText =
        field.scalar === ScalarType.STRING || (field.fieldKind === 'map' && field.mapKey === ScalarType.STRING);
      if (isText) texts.add(`${message.typeName}.${field.name}`);
      if (field.message !== undefined) look(field.message);
    }
  };
  look(schema);
  return texts;
}

/** Adds the names of the fields that are set. */
export function noteFields(schema: DescMessage, message: Message, seen: Set<string>): void {
  const reflected = reflect(schema, message);
  for (const field of schema.fields) {
    if (!reflected.isSet(field)) continue;
    seen.add(`${schema.typeName}.${field.name}`);
    const values = field.fieldKind === 'list' ? [...reflected.get(field)] : [reflected.get(field)];
    if (field.message === undefined) continue;
    for (const value of values) noteFields(field.message, (value as { message: Message }).message, seen);
  }
}
