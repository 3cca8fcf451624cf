/**
 * Returns a value as JSON, which gives an equal value back. Throws TypeError for what JSON cannot hold: NaN,
 * infinities, bigints, functions, symbols, bytes, dates and other objects with toJSON(), maps, sets, holes, and objects
 * that contain themselves. Fields that are undefined are left out.
 */
export function jsonText(value: unknown, what: string): string {
  const text = JSON.stringify(
    value,
    function checked(this: Readonly<Record<string, unknown>>, key: string, field: unknown) {
      // `field` is what toJSON() has returned.
      const given = this[key];
      const problem =
        problemOf(given, Array.isArray(this)) ?? (given === field ? undefined : 'an object with toJSON()');
      if (problem !== undefined) {
        const place = key === '' ? what : `${what}: ${JSON.stringify(key)}`;
        throw new TypeError(`${place} is ${problem}, which JSON cannot hold`);
      }
      return field;
    },
  );
  if (text === undefined) throw new TypeError(`${what} is undefined: expected a value that JSON can hold`);
  return text;
}

function problemOf(value: unknown, isItem: boolean): string | undefined {
  switch (typeof value) {
    case 'number':
      return Number.isFinite(value) ? undefined : String(value);
    case 'undefined':
      return isItem ? 'undefined' : undefined;
    case 'bigint':
    case 'function':
    case 'symbol':
      return `a ${typeof value}`;
    case 'object':
      if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer) return 'bytes';
      if (value instanceof Map || value instanceof Set) return `a ${value.constructor.name}`;
      return undefined;
    default:
      return undefined;
  }
}

/** Throws unless a value is text of 1 to `most` bytes that the server accepts as a label or a name. */
export function checkName(value: unknown, what: string, most = 256): asserts value is string {
  if (typeof value !== 'string') throw new TypeError(`${what} is a ${typeof value}: expected text`);
  const size = Buffer.byteLength(value);
  if (size > most || size === 0) throw new RangeError(`${what} has ${size} bytes: expected 1 to ${most}`);
  if (!isStorable(value)) throw new RangeError(`${what} contains U+0000 or half of a surrogate pair`);
}

/** Whether a value is text of at most `most` bytes that the server stores as text. */
export function isTextWithin(value: unknown, most: number): value is string {
  return typeof value === 'string' && Buffer.byteLength(value) <= most && isStorable(value);
}

/** Whether the server stores a text as text. */
export function isStorable(text: string): boolean {
  return text.isWellFormed() && !text.includes('\0');
}
