import { hash } from 'node:crypto';
import {
  type ArchivePart,
  type ArchiveRecord,
  archiveInvalid,
  type CheckedPart,
  type SmallStatesPart,
} from '../../../../domain/archive.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { checkSteps } from './imported_steps.ts';
import { ROW_KINDS } from './nouns.ts';
import { checkRecord } from './record_checks.ts';

/** Bounds of the records that are handed over together, and that one transaction stores. A record counts its lists. */
const ROWS = 1000;
const RECORDS = 50;
const RECORDS_CHARACTERS = 512 * 1024;

const [QUOTE, BACKSLASH] = ['"', '\\'].map((each) => each.charCodeAt(0));
const SEPARATORS: ReadonlySet<number> = new Set([',', '[', '{', ':'].map((each) => each.charCodeAt(0)));

/** Checks all values of parts of an archive, and parses records. Errors: ARCHIVE_INVALID, and those of the parts. */
export async function* checkedParts(parts: AsyncIterable<ArchivePart>): AsyncGenerator<CheckedPart, void, undefined> {
  for await (const part of parts) yield* checkedPart(part);
}

/** Errors: ARCHIVE_INVALID. */
export function* checkedPart(part: ArchivePart): Generator<CheckedPart, void, undefined> {
  if (part.kind === 'records') return yield* checkedRecords(part.text);
  if (part.kind === 'steps') checkSteps(part);
  if (part.kind === 'small_states') checkSmallStates(part);
  yield { checked: part };
}

function* checkedRecords(text: string): Generator<CheckedPart, void, undefined> {
  let [from, to, rows, records]: [number, number, number, ArchiveRecord[]] = [0, 0, 0, []];
  const group = (): CheckedPart => {
    const isRow = ROW_KINDS.has(records[0]!.record);
    const checked = { kind: 'checked_records', records, text: isRow ? '' : text.slice(from, to) } as const;
    [from, rows, records] = [to, 0, []];
    return { checked };
  };
  for (let end = 0; to < text.length; to = end) {
    const found = text.indexOf('\n', to);
    end = found === -1 ? text.length : found + 1;
    const record = parse(text, to, found === -1 ? end : found);
    checkRecord(record);
    const more = rowsOf(record);
    const isFull = records.length >= RECORDS || rows + more > ROWS || end - from > RECORDS_CHARACTERS;
    const first = records[0]?.record;
    if (first !== undefined && (isFull || record.record !== first || !ROW_KINDS.has(first))) yield group();
    records.push(record);
    rows += more;
  }
  if (records.length > 0) yield group();
}

/** Rows of a record: its own, and those of its lists. */
function rowsOf(record: ArchiveRecord): number {
  return Object.values(record).reduce((rows: number, value) => rows + (Array.isArray(value) ? value.length : 0), 1);
}

/** Counts the values of a line before it is parsed, because it may have millions. */
function parse(text: string, from: number, to: number): ArchiveRecord {
  if (to - from > LIMITS.archiveRecordBytes)
    throw archiveInvalid('a record', `it has more than ${LIMITS.archiveRecordBytes} characters`);
  if (hasTooManyValues(text, from, to))
    throw archiveInvalid('a record', `it has more than ${LIMITS.messageValues} values`);
  let value: unknown;
  try {
    value = JSON.parse(text.slice(from, to));
  } catch (cause) {
    throw archiveInvalid('a record', 'it is no JSON', cause);
  }
  if (typeof value === 'object' && value !== null && typeof (value as ArchiveRecord).record === 'string') {
    return value as ArchiveRecord;
  }
  throw archiveInvalid('a record', 'it is no object that says which record it is');
}

/** Everything between brackets, colons and commas counts. */
function hasTooManyValues(text: string, from: number, to: number): boolean {
  let left = LIMITS.messageValues;
  if (to - from <= left) return false;
  let inString = false;
  for (let at = from; at < to && left >= 0; at += 1) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) inString = !inString;
    else if (inString) at += code === BACKSLASH ? 1 : 0;
    else if (SEPARATORS.has(code)) left -= 1;
  }
  return left < 0;
}

function checkSmallStates({ states }: SmallStatesPart): void {
  for (const { digest, data } of states) {
    const place = `state ${digest}`;
    if (data.length >= LIMITS.smallStateBytes)
      throw archiveInvalid(place, `it has ${data.length} bytes, and is not small`);
    if (hash('sha256', data, 'hex') !== digest) throw archiveInvalid(place, 'its bytes have another digest');
  }
}
