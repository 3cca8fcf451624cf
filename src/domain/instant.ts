/**
 * A moment: nanoseconds since 1970 in UTC, as protobuf's Timestamp can hold it (years 1 to 9999). Kept as text in the store, which
 * sorts as time does and which people can read: `2026-11-21T12:15:00.123456789Z`.
 */
export type Instant = bigint;

const BILLION = 1_000_000_000n;

export function instantFromParts(seconds: bigint, nanos: number): Instant {
  return seconds * BILLION + BigInt(nanos);
}

export function instantToParts(instant: Instant): { seconds: bigint; nanos: number } {
  let nanos = instant % BILLION;
  if (nanos < 0n) nanos += BILLION;
  return { seconds: (instant - nanos) / BILLION, nanos: Number(nanos) };
}

/** With as many digits of a second as asked for: 6 for the database's clock, 9 for clients' times. */
export function formatInstant(instant: Instant, digits: 6 | 9 = 9): string {
  const { seconds, nanos } = instantToParts(instant);
  const base = new Date(Number(seconds) * 1000).toISOString().slice(0, 19);
  return `${base}.${String(nanos).padStart(9, '0').slice(0, digits)}Z`;
}

/** Reads what `formatInstant` wrote, and Postgres' own form of a timestamptz in UTC (`2026-11-21 12:15:00.1234+00`). */
export function parseInstant(text: string): Instant {
  const dot = text.indexOf('.', 19);
  const millis = Date.parse(`${text.slice(0, 10)}T${text.slice(11, 19)}Z`);
  if (Number.isNaN(millis)) throw new RangeError(`not a time: ${text}`);
  const fraction = dot === -1 ? '' : text.slice(dot + 1).replace(/[^0-9].*$/, '');
  return BigInt(millis / 1000) * BILLION + BigInt(fraction.padEnd(9, '0').slice(0, 9));
}
