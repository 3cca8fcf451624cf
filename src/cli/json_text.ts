/**
 * JSON for the option `--json`. Strings have escapes for characters that control a terminal or are invisible, so that
 * names and texts of others can do neither. Their values are unchanged.
 */
import { type DescMessage, type MessageShape, toJsonString } from '@bufbuild/protobuf';
import { UNPRINTABLE } from './columns.ts';
import { JSON_FORM } from './server_access.ts';

/** Returns a value as JSON in one line. */
export function valueJson(value: unknown, replacer?: (key: string, value: unknown) => unknown): string {
  return escaped(JSON.stringify(value, replacer));
}

/** Returns a message as JSON in one line, as the server sends it over HTTP. */
export function messageJson<Desc extends DescMessage>(schema: Desc, message: MessageShape<Desc>): string {
  return escaped(toJsonString(schema, message, JSON_FORM));
}

/** In JSON without line breaks, such characters are in strings only. */
function escaped(json: string): string {
  return json.replace(UNPRINTABLE, (characters) => {
    let escapes = '';
    for (let i = 0; i < characters.length; i += 1)
      escapes += `\\u${characters.charCodeAt(i).toString(16).padStart(4, '0')}`;
    return escapes;
  });
}
