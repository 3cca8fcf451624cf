/**
 * A time in nanoseconds since 1970 in UTC, within the range of protobuf's Timestamp (years 1 to 9999). The store keeps
 * times as text that sorts by time and is readable: `2026-11-21T12:15:00.123456789Z`.
 */
export type Instant = bigint;

const BILLION = 1_000_000_000n;
const FIRST_SECOND = -62_135_596_800;
const LAST_SECOND = 253_402_300_799;

/** Returns whether the parts make a time of the years 1 to 9999. */
export function isInstant(seconds: bigint | number, nanos: number): boolean {
  return seconds >= FIRST_SECOND && seconds <= LAST_SECOND && nanos >= 0 && nanos <= 999_999_999;
}

export function instantFromParts(seconds: bigint, nanos: number): Instant {
  return seconds * BILLION + BigInt(nanos);
}

export function instantToParts(instant: Instant): { seconds: bigint; nanos: number } {
  let nanos = instant % BILLION;
  if (nanos < 0n) nanos += BILLION;
  return { seconds: (instant - nanos) / BILLION, nanos: Number(nanos) };
}

/** Formats a time with 6 digits of a second (the database's clock) or 9 (clients' times). */
export function formatInstant(instant: Instant, digits: 6 | 9 = 9): string {
  const { seconds, nanos } = instantToParts(instant);
  const base = new Date(Number(seconds) * 1000).toISOString().slice(0, 19);
  return `${base}.${String(nanos).padStart(9, '0').slice(0, digits)}Z`;
}

/**
 * Parses the text of `formatInstant`, and Postgres' form of a timestamptz in UTC (`2026-11-21 12:15:00.1234+00`).
 * Parses by hand for speed, because every row has several times.
 */
export function parseInstant(text: string): Instant {
  const year = twoDigits(text, 0) * 100 + twoDigits(text, 2);
  const [month, day] = [twoDigits(text, 5) - 1, twoDigits(text, 8)];
  const [hours, minutes, seconds] = [twoDigits(text, 11), twoDigits(text, 14), twoDigits(text, 17)];
  // Date reads years below 100 as years of the 20th century. 400 years always have the same number of days.
  const millis = Date.UTC(year + 400, month, day, hours, minutes, seconds) - MILLIS_IN_400_YEARS;
  const inRange = month >= 0 && month < 12 && day >= 1 && day <= 31 && hours < 24 && minutes < 60 && seconds < 60;
  if (!inRange || Number.isNaN(millis)) throw new RangeError(`invalid time: ${text}`);
  let nanos = 0;
  if (text[19] === '.') {
    for (let at = 20, scale = 100_000_000; scale >= 1; at += 1, scale /= 10) {
      const value = digit(text, at);
      if (Number.isNaN(value)) break;
      nanos += value * scale;
    }
  }
  return BigInt(millis) * 1_000_000n + BigInt(nanos);
}

const MILLIS_IN_400_YEARS = Date.UTC(2400, 0) - Date.UTC(2000, 0);

function twoDigits(text: string, at: number): number {
  return digit(text, at) * 10 + digit(text, at + 1);
}

function digit(text: string, at: number): number {
  const value = text.charCodeAt(at) - 48;
  return value >= 0 && value <= 9 ? value : Number.NaN;
}
