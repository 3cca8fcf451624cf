import pg from 'pg';

/** Types of row values: integers are bigint, and times are text. */
export const TYPES = {
  getTypeParser(oid: number, format?: 'text' | 'binary') {
    if (oid === pg.types.builtins.INT8) return BigInt;
    if (oid === pg.types.builtins.TIMESTAMPTZ) return readTimestamp;
    return pg.types.getTypeParser(oid, format as 'text');
  },
} as pg.CustomTypesConfig;

/** Types for large results: integers are numbers, and a time that consecutive rows share is parsed once. */
export function rowTypes(): pg.CustomTypesConfig {
  let last = { text: '', time: '' };
  const readTime = (text: string): string => {
    if (text !== last.text) last = { text, time: readTimestamp(text) };
    return last.time;
  };
  return {
    getTypeParser(oid: number, format?: 'text' | 'binary') {
      if (oid === pg.types.builtins.INT8) return readWhole;
      return oid === pg.types.builtins.TIMESTAMPTZ ? readTime : TYPES.getTypeParser(oid, format as 'text');
    },
  } as pg.CustomTypesConfig;
}

function readWhole(text: string): number {
  const number = Number(text);
  if (!Number.isSafeInteger(number)) throw new RangeError(`too large to be read as a number: ${text}`);
  return number;
}

/**
 * Converts Postgres' text of a time to the store's format. The session uses UTC, but a pooler may use another time
 * zone.
 */
export function readTimestamp(text: string): string {
  const [, date, time, fraction = '', offset = '+00'] =
    /^(\S+) (\d\d:\d\d:\d\d)(?:\.(\d+))?([+-]\d\d(?::?\d\d)?)?$/.exec(text) ?? [];
  if (date === undefined || time === undefined) throw new RangeError(`not a time: ${text}`);
  const digits = fraction.padEnd(6, '0');
  if (offset === '+00') return `${date}T${time}.${digits}Z`;
  const minutes = offset.length === 3 ? `${offset}:00` : offset;
  return `${new Date(`${date}T${time}${minutes}`).toISOString().slice(0, 19)}.${digits}Z`;
}
