/** A number, a status or a time with its tag. */
const VALUE_BYTES = 24;
/** The tag and the length of a text. */
const TEXT_BYTES = 8;

/**
 * Returns no fewer bytes than the message of a row takes when it is encoded, for answers that must stay below a limit
 * (RD3). All values of the row are counted, so that a new field is counted too.
 */
export function rowBytes(row: unknown): number {
  if (typeof row === 'string') return TEXT_BYTES + Buffer.byteLength(row);
  if (row instanceof Map) return [...row].reduce((bytes, entry) => bytes + rowBytes(entry), 0);
  if (typeof row !== 'object' || row === null) return VALUE_BYTES;
  return Object.values(row).reduce((bytes: number, value) => bytes + rowBytes(value), TEXT_BYTES);
}

/** Bytes of the rows of one message. Leaves room for a run with its progress, which are smaller than this together. */
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
