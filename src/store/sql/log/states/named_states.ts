import { withAttached } from '../../../../domain/pruning.ts';
import { contentStates, isKept, type StateRef } from '../../../../domain/step.ts';
import { SmallStates } from '../../../../domain/step_codec/small_states.ts';
import type { NamedState, StepView } from '../../../contract/step.ts';
import type { OwnedSegment } from '../read/read_stored.ts';
import { type Segment, SegmentCursor } from '../read/segment.ts';
import { readStates, type StoredStates } from '../read/stored_body.ts';
import { verified } from './bytes.ts';

/** Goes through steps of [from, to) with their states. Small ones have their bytes. Errors: STEP_CORRUPT. */
export function* smallStatesIn(
  segment: Segment & StoredStates,
  from: bigint,
  to: bigint,
): Generator<{ readonly stepNumber: bigint; readonly states: readonly StateRef[] }, void, undefined> {
  const small = new SmallStates(readStates(segment));
  for (const at = new SegmentCursor(segment); at.next() && at.stepNumber < to; ) {
    const states = statesOf(at, small);
    if (at.stepNumber >= from) yield { stepNumber: at.stepNumber, states };
  }
}

/** Returns the states of the current step. Small ones have their bytes. Must be called for each step of the segment. */
export function statesOf(at: SegmentCursor, small: SmallStates): StateRef[] {
  return at.readStates().map((state): StateRef => {
    const data = small.next(state.size);
    return data === undefined ? state : { ...state, data };
  });
}

/** Collects the states that steps and their contents name, with the bytes of small ones. */
export class NamedStates {
  readonly #view: StepView;
  readonly #inlineBytes: number;
  #segment: Segment | undefined;
  #small: ReadonlyMap<bigint, readonly StateRef[]> = new Map();

  /** States with more bytes are left out. Those of contents are not: their size is not known here. */
  constructor(view: StepView, inlineBytes: number) {
    this.#view = view;
    this.#inlineBytes = inlineBytes;
  }

  /** Returns the states of the current step of `at`. Errors: STEP_CORRUPT, STATE_CORRUPT. */
  of({ segment, small }: OwnedSegment, at: SegmentCursor, attached: readonly StateRef[] = []): NamedState[] {
    if (segment !== this.#segment) {
      this.#segment = segment;
      this.#small =
        small === undefined || small.states.length === 0 ? new Map() : statesByStep({ ...segment, ...small });
    }
    const step = at.read(this.#view);
    const states = withAttached(this.#small.get(at.stepNumber) ?? step.states, attached);
    return [
      ...contentStates(step).map((digest) => ({ digest })),
      ...states.filter((state) => isKept(state) && state.size <= this.#inlineBytes).map(checked),
    ];
  }
}

/** Errors: STATE_CORRUPT. */
function checked(state: StateRef): NamedState {
  if (state.data !== undefined) verified(state.data, state.digest);
  return state;
}

function statesByStep(segment: Segment & StoredStates): ReadonlyMap<bigint, readonly StateRef[]> {
  const steps = smallStatesIn(segment, segment.first_step_number, segment.next_step_number);
  return new Map(Array.from(steps, ({ stepNumber, states }) => [stepNumber, states]));
}
