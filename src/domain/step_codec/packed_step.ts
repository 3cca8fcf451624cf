import type { Digest } from '../ids.ts';
import type { Instant } from '../instant.ts';
import {
  contentStates,
  hasRow,
  isSmall,
  type NewState,
  type StateRef,
  type Step,
  type TensorState,
  tensorStates,
} from '../step.ts';
import { stepDigest } from '../step_digest.ts';
import { readStep } from './read.ts';
import type { WireWriter } from './wire_writer.ts';
import { writeStep } from './write.ts';

/** Minimum size of a packed step in memory. */
export const PACKED_STEP_BYTES = 400;

/** A received step, checked and ready to be stored. */
export interface PackedStep {
  readonly stepNumber: bigint;
  readonly reward: number | undefined;
  readonly terminated: boolean;
  readonly truncated: boolean;
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  /** In the order in which they came. */
  readonly metrics: ReadonlyMap<string, number>;
  readonly labels: ReadonlyMap<string, string>;
  /** Sorted by name. Without `data`, a state was named by its digest. */
  readonly states: readonly StateRef[];
  /** Digests of the states that contents refer to, in order, each once. */
  readonly contentStates: readonly Digest[];
  /** The states among them that have the items of tensors, with the sizes that they must have. */
  readonly tensorStates: readonly TensorState[];
  /** The bytes of contents that are stored as states (FM4), in order. */
  readonly contentData: readonly NewState[];
  /** The step as `writeStep` writes it. States that came without their bytes have no size yet. */
  readonly bytes: Uint8Array;
}

/** A received step with the bytes that came with it. */
export interface SentStep extends Step {
  readonly contentData?: readonly NewState[];
}

/** Steps ready to be stored, and the bytes of their inline states that are not small, each digest once. */
export interface NewSteps {
  readonly steps: readonly PackedStep[];
  readonly states: readonly NewState[];
}

/** What a unary append of a request that was not decoded writes to one trajectory. Fields are those of AppendEntry. */
export interface PackedEntry {
  readonly trajectoryId: string;
  readonly uid: string;
  readonly writerEpoch: bigint | undefined;
  readonly steps: readonly PackedStep[];
}

/** The steps of a frame that was not decoded. */
export class PackedFrame {
  readonly steps: readonly PackedStep[];
  /** Size of the frame. */
  readonly bytes: number;

  constructor(steps: readonly PackedStep[], bytes: number) {
    this.steps = steps;
    this.bytes = bytes;
  }
}

/** Packs a step that has been checked. `out` must be empty, and is empty afterwards. */
export function packStep(out: WireWriter, step: SentStep): PackedStep {
  writeStep(out, step);
  return packed(step, out.take());
}

/** Returns a step with its encoding. */
export function packed(step: SentStep, bytes: Uint8Array): PackedStep {
  const { stepNumber, reward, terminated, truncated, startTime, endTime } = step;
  const { metrics, labels, states, contentData = NONE } = step;
  return {
    stepNumber,
    reward,
    terminated,
    truncated,
    startTime,
    endTime,
    metrics,
    labels,
    states,
    contentStates: contentStates(step),
    tensorStates: tensorStates(step),
    contentData,
    bytes,
  };
}

const NONE: readonly never[] = [];

/** Returns the steps with their inline states. */
export function withInlineStates(steps: readonly PackedStep[]): NewSteps {
  let inline: Map<Digest, NewState> | undefined;
  for (const { states, contentData } of steps) {
    for (const state of states) {
      const { digest, data } = state;
      if (data !== undefined && !isSmall(state)) inline = (inline ?? new Map()).set(digest, { digest, data });
    }
    for (const state of contentData) inline = (inline ?? new Map()).set(state.digest, state);
  }
  return { steps, states: inline === undefined ? NONE : [...inline.values()] };
}

/** Returns the digests of the states with rows of their own that a step refers to. */
export function rowStates({ states, contentStates }: PackedStep): readonly Digest[] {
  if (states.length === 0) return contentStates;
  const digests: Digest[] = [];
  for (const state of states) if (hasRow(state)) digests.push(state.digest);
  return [...digests, ...contentStates];
}

/** W6: returns the digest of an encoded step: that of the step as the client sent it. Errors: DamagedStep. */
export function storedStepDigest(bytes: Uint8Array): Digest {
  return stepDigest(readStep(bytes, 0, bytes.length));
}
