import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { AppendBatch, AppendOutcome } from '../../../contract/append.ts';
import type { Compressor } from '../../kit/compression.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import {
  COMPRESSED,
  compressedBody,
  compressedStates,
  type StoredBody,
  type StoredStates,
} from '../read/stored_body.ts';

/** Steps of a row that may be stored, not compressed. */
export interface PlainRow {
  readonly trajectory: bigint;
  readonly first: bigint;
  /** The encoded steps, and the bytes of their small states. */
  readonly body: Uint8Array;
  readonly states: Uint8Array;
}

interface CompressedRow {
  readonly plain: PlainRow;
  readonly columns: StoredBody & StoredStates;
}

/**
 * Compressed copies of rows, made before a transaction decides which steps are stored. A copy is used only for a row
 * with exactly its bytes.
 */
export class CompressedRows {
  readonly #rows: ReadonlyMap<string, CompressedRow>;

  private constructor(rows: readonly CompressedRow[]) {
    this.#rows = new Map(rows.map((row) => [tupleKey(row.plain.trajectory, row.plain.first), row]));
  }

  /** Compresses the rows on other threads. */
  static async make(compressor: Compressor, rows: readonly PlainRow[]): Promise<CompressedRows> {
    return new CompressedRows(await Promise.all(rows.map((row) => compressed(compressor, row))));
  }

  /** Returns the columns of a row, or undefined if there is no copy of it. */
  of(trajectory: bigint, first: bigint, body: Uint8Array, states: Uint8Array): CompressedRow['columns'] | undefined {
    const found = this.#rows.get(tupleKey(trajectory, first));
    const isCopy = found !== undefined && isEqual(found.plain.body, body) && isEqual(found.plain.states, states);
    return isCopy ? found.columns : undefined;
  }
}

async function compressed(compressor: Compressor, plain: PlainRow): Promise<CompressedRow> {
  const [body, states] = await Promise.all([
    compressedBody(compressor, plain.first, plain.body),
    compressedStates(compressor, plain.states),
  ]);
  return { plain, columns: { ...body, ...states } };
}

function isEqual(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

type RowSteps = Pick<SegmentRow, 'first_step_number' | 'next_step_number'>;

/** Returns the rows that are compressed. */
export function compressedByTrajectory(rows: readonly SegmentRow[]): ReadonlyMap<bigint, readonly RowSteps[]> {
  return Map.groupBy(
    rows.filter(({ encoding }) => encoding === COMPRESSED),
    ({ trajectory }) => trajectory,
  );
}

/** Returns the outcome of a batch with the number of its steps in these rows, which hold new steps. */
export function withCompressedSteps(
  outcome: AppendOutcome,
  { steps }: Pick<AppendBatch, 'steps'>,
  rows: readonly RowSteps[] | undefined,
): AppendOutcome {
  const first = steps[0]?.stepNumber;
  if (outcome.kind !== 'committed' || first === undefined || rows === undefined) return outcome;
  let compressedSteps = 0;
  for (const { first_step_number: from, next_step_number: to } of rows) {
    const end = outcome.nextStepNumber < to ? outcome.nextStepNumber : to;
    compressedSteps += Math.max(0, Number(end - (first > from ? first : from)));
  }
  return { ...outcome, compressedSteps };
}
