import { pointerPart } from './json_pointer.ts';

/** A value within a text that strict JSON does not allow. */
export interface InvalidValue {
  /** JSON Pointer (RFC 6901) to the value. Empty: the value is the whole text. */
  readonly path: string;
  /** The value as written, for example `NaN`. */
  readonly value: string;
}

/** White space, then a string, a structural character, or any other value. */
const TOKEN = /[ \t\n\r]*(?:("[^"\\]*(?:\\.[^"\\]*)*")|([[\]{}:,])|([^ \t\n\r"[\]{}:,]+))/suy;
const STRICT = /^(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)$/u;

/**
 * Returns the first value that strict JSON does not allow, such as NaN and Infinity as written by Python's
 * `json.dumps`. The rest of the text is not checked. Returns undefined if there is none, or if the text before it is
 * not JSON either.
 */
export function findInvalidValue(text: string): InvalidValue | undefined {
  // The key or the index at each level of nesting.
  const path: (string | number)[] = [];
  let isKey = false;
  for (const [, string, mark, value] of tokensOf(text)) {
    if (value !== undefined && !STRICT.test(value)) return { path: path.map(pointerPart).join(''), value };
    if (string !== undefined && isKey) path[path.length - 1] = keyOf(string);
    if (mark === '{') path.push('');
    else if (mark === '[') path.push(0);
    else if (mark === '}' || mark === ']') path.pop();
    else if (mark === ',') {
      const last = path.at(-1);
      if (typeof last === 'number') path[path.length - 1] = last + 1;
    }
    isKey = mark === '{' || (mark === ',' && typeof path.at(-1) === 'string');
  }
  return undefined;
}

/** Ends at the first character that belongs to no token. */
function* tokensOf(text: string): Generator<RegExpExecArray> {
  const pattern = new RegExp(TOKEN);
  for (let token = pattern.exec(text); token !== null; token = pattern.exec(text)) yield token;
}

/** Returns a key without its quotes and escapes, or unchanged if its escapes are not JSON. */
function keyOf(string: string): string {
  try {
    return JSON.parse(string) as string;
  } catch {
    return string.slice(1, -1);
  }
}
