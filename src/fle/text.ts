import type { Cell, Row } from './source.ts';

const NULL: Cell = { type: 'null', value: null };

export function cellOf(row: Row, column: string): Cell {
  return row.get(column) ?? NULL;
}

/** Returns the bytes of a cell, or of its decimal text if it is a number. Undefined for NULL. */
export function bytesOf({ value }: Cell): Uint8Array | undefined {
  if (value === null || value instanceof Uint8Array) return value ?? undefined;
  return new TextEncoder().encode(String(value));
}

/** Returns the text of a cell, with U+FFFD in place of bytes that are not UTF-8. Undefined for NULL. */
export function textOf(cell: Cell): string | undefined {
  const bytes = bytesOf(cell);
  return bytes === undefined ? undefined : new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
}

/**
 * Decodes bytes as UTF-8. Returns undefined if they are not UTF-8 or contain U+0000, which the store does not accept.
 */
export function exactText(bytes: Uint8Array): string | undefined {
  if (bytes.includes(0)) return undefined;
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return undefined;
  }
}

/** Returns the longest beginning of the text that fits the bounds of a label, a name or a task id. */
export function bounded(text: string, maxBytes = 256): string {
  const storable = text.replaceAll('\0', '\uFFFD').toWellFormed();
  const bytes = new TextEncoder().encode(storable);
  if (bytes.byteLength <= maxBytes) return storable;
  // A character that was cut becomes U+FFFD, which can be longer than the cut bytes.
  return new TextDecoder().decode(bytes.subarray(0, maxBytes)).replace(/\uFFFD+$/u, '');
}

const TIME = /^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?)(Z|[+-]\d\d(?::?\d\d)?)?$/;

/** Parses a time of FLE. Without an offset it is UTC, like SQLite's CURRENT_TIMESTAMP. */
export function timeOf(cell: Cell): Date | undefined {
  const [, date, time, offset = 'Z'] = TIME.exec(textOf(cell) ?? '') ?? [];
  if (date === undefined) return undefined;
  const parsed = new Date(`${date}T${time}${offset.length === 3 ? `${offset}:00` : offset}`);
  return Number.isNaN(parsed.getTime()) ? undefined : parsed;
}
