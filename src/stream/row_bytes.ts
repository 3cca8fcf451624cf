/** Maximum size of a number, status or time, with its tag. */
const VALUE_BYTES = 24;
/** Maximum size of the tag and length of a text. */
const TEXT_BYTES = 8;

/**
 * Returns an upper bound of the encoded size of a row's message (RD3). Counts all values of the row, so that new fields
 * are included.
 */
export function rowBytes(row: unknown): number {
  if (typeof row === 'string') return TEXT_BYTES + Buffer.byteLength(row);
  if (row instanceof Map) return [...row].reduce((bytes, entry) => bytes + rowBytes(entry), 0);
  if (typeof row !== 'object' || row === null) return VALUE_BYTES;
  return Object.values(row).reduce((bytes: number, value) => bytes + rowBytes(value), TEXT_BYTES);
}

/** Maximum size of the rows in one message. Half of the limit is left for a run and its progress. */
const PART_BYTES = 512 * 1024;

/** Splits rows so that each part fits into a message. */
export function* rowParts<Row>(rows: readonly Row[]): Generator<Row[]> {
  let part: Row[] = [];
  let bytes = 0;
  for (const row of rows) {
    const size = rowBytes(row);
    if (part.length > 0 && bytes + size > PART_BYTES) {
      yield part;
      [part, bytes] = [[], 0];
    }
    part.push(row);
    bytes += size;
  }
  if (part.length > 0) yield part;
}
