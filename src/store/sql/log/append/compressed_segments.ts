import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { AppendBatch, AppendOutcome } from '../../../contract/append.ts';
import type { SegmentCompressor } from '../../kit/compression.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import {
  COMPRESSED,
  compressedBody,
  compressedStates,
  type StoredBody,
  type StoredStates,
} from '../read/stored_body.ts';

/** Steps of a segment that may be stored, not compressed. */
export interface PlainSegment {
  readonly trajectory: bigint;
  readonly first: bigint;
  /** The encoded steps, and the bytes of their small states. */
  readonly body: Uint8Array;
  readonly states: Uint8Array;
}

interface CompressedSegment {
  readonly plain: PlainSegment;
  readonly columns: StoredBody & StoredStates;
}

/**
 * Compressed copies of segments, made before a transaction decides which steps are stored. A copy is used only for a
 * segment with exactly its bytes.
 */
export class CompressedSegments {
  readonly #segments: ReadonlyMap<string, CompressedSegment>;

  private constructor(segments: readonly CompressedSegment[]) {
    this.#segments = new Map(
      segments.map((segment) => [tupleKey(segment.plain.trajectory, segment.plain.first), segment]),
    );
  }

  /** Compresses the segments on other threads. */
  static async make(compressor: SegmentCompressor, segments: readonly PlainSegment[]): Promise<CompressedSegments> {
    return new CompressedSegments(await Promise.all(segments.map((segment) => compressed(compressor, segment))));
  }

  /** Returns the columns of a segment, or undefined if there is no copy of it. */
  of(
    trajectory: bigint,
    first: bigint,
    body: Uint8Array,
    states: Uint8Array,
  ): CompressedSegment['columns'] | undefined {
    const found = this.#segments.get(tupleKey(trajectory, first));
    const isCopy = found !== undefined && isEqual(found.plain.body, body) && isEqual(found.plain.states, states);
    return isCopy ? found.columns : undefined;
  }
}

async function compressed(compressor: SegmentCompressor, plain: PlainSegment): Promise<CompressedSegment> {
  const [body, states] = await Promise.all([
    compressedBody(compressor, plain.first, plain.body),
    compressedStates(compressor, plain.states),
  ]);
  return { plain, columns: { ...body, ...states } };
}

function isEqual(a: Uint8Array, b: Uint8Array): boolean {
  return Buffer.compare(a, b) === 0;
}

type SegmentSteps = Pick<SegmentRow, 'first_step_number' | 'next_step_number'>;

/** Returns the segments that are compressed. */
export function compressedByTrajectory(segments: readonly SegmentRow[]): ReadonlyMap<bigint, readonly SegmentSteps[]> {
  return Map.groupBy(
    segments.filter(({ encoding }) => encoding === COMPRESSED),
    ({ trajectory }) => trajectory,
  );
}

/** Returns the outcome of a batch with the number of its steps in these segments, which hold new steps. */
export function withCompressedSteps(
  outcome: AppendOutcome,
  { steps }: Pick<AppendBatch, 'steps'>,
  segments: readonly SegmentSteps[] | undefined,
): AppendOutcome {
  const first = steps[0]?.stepNumber;
  if (outcome.kind !== 'committed' || first === undefined || segments === undefined) return outcome;
  let compressedSteps = 0;
  for (const { first_step_number: from, next_step_number: to } of segments) {
    const end = outcome.nextStepNumber < to ? outcome.nextStepNumber : to;
    compressedSteps += Math.max(0, Number(end - (first > from ? first : from)));
  }
  return { ...outcome, compressedSteps };
}
