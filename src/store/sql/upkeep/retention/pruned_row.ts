import { AnabranchError } from '../../../../domain/errors.ts';
import type { Digest } from '../../../../domain/ids.ts';
import type { Instant } from '../../../../domain/instant.ts';
import { markPruned, PRUNABLE_STEP_BYTES, releasedContents, type StepPruning } from '../../../../domain/pruning.ts';
import { isKept, type StateRef, type Step } from '../../../../domain/step.ts';
import { bodyOf } from '../../../../domain/step_codec/frames.ts';
import { SmallStates, writeSmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { Compressor } from '../../kit/compressor.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { withoutRuns } from '../../log/read/step_runs.ts';
import { compressedBody, compressedStates, plainBody, readStates } from '../../log/read/stored_body.ts';
import { encodedStep, SegmentCursor } from '../../log/read/stored_segment.ts';

/** A row of steps to be written in place of the one that was read, and what it does not refer to any more. */
export interface PrunedRow {
  readonly columns: Pick<
    SegmentRow,
    'body' | 'encoding' | 'body_bytes' | 'checksum' | 'states' | 'states_bytes' | 'state_names'
  >;
  /** The steps that are pruned. Those that are too large are not. */
  readonly steps: readonly StepPruning[];
  /** References by contents. */
  readonly released: readonly { readonly stepNumber: bigint; readonly digests: readonly Digest[] }[];
}

/** Returns undefined if the row is damaged: it stays as it is, and reads report the damage. */
export async function prunedRow(
  compressor: Compressor,
  row: SegmentRow,
  prunings: readonly StepPruning[],
  time: Instant,
): Promise<PrunedRow | undefined> {
  try {
    return await rewrite(compressor, row, new Map(prunings.map((each) => [each.stepNumber, each])), time);
  } catch (error) {
    if (error instanceof AnabranchError && error.reason === 'STEP_CORRUPT') return undefined;
    throw error;
  }
}

async function rewrite(
  compressor: Compressor,
  row: SegmentRow,
  prunings: ReadonlyMap<bigint, StepPruning>,
  time: Instant,
): Promise<PrunedRow> {
  const first = row.first_step_number;
  const pruned: StepPruning[] = [];
  const steps: Uint8Array[] = [];
  const states: StateRef[] = [];
  const released: PrunedRow['released'][number][] = [];
  const small = new SmallStates(readStates(row));
  for (const at = new SegmentCursor(row); at.next(); ) {
    const pruning = at.frameBytes > PRUNABLE_STEP_BYTES ? undefined : prunings.get(at.stepNumber);
    if (pruning !== undefined) pruned.push(pruning);
    const step: Step = at.read(pruning === undefined ? 'BASIC' : 'FULL');
    const after = pruning === undefined ? step : markPruned(step, pruning, time);
    steps.push(pruning === undefined ? at.bytes : encodedStep(after));
    for (const [i, { size }] of step.states.entries()) {
      const data = small.next(size);
      const state = after.states[i]!;
      states.push(isKept(state) ? { ...state, data } : state);
    }
    const digests = pruning === undefined ? [] : releasedContents(step, after);
    if (digests.length > 0) released.push({ stepNumber: at.stepNumber, digests });
  }
  const names = pruned.map((each) => [Number(each.stepNumber - first), each.names] as const);
  return {
    columns: { ...(await encoded(compressor, row, steps, states)), state_names: withoutRuns(row.state_names, names) },
    steps: pruned,
    released,
  };
}

/** A row that was not merged yet stays as it is read fastest. */
async function encoded(
  compressor: Compressor,
  row: SegmentRow,
  steps: readonly Uint8Array[],
  states: readonly StateRef[],
) {
  const body = bodyOf(steps);
  const bytes = writeSmallStates(states);
  if (row.body_bytes === null) {
    return { ...plainBody(row.first_step_number, body), states: bytes, states_bytes: null };
  }
  return {
    ...(await compressedBody(compressor, row.first_step_number, body)),
    ...(await compressedStates(compressor, bytes)),
  };
}
