import type { Digest } from '../ids.ts';
import type { Instant } from '../instant.ts';
import { contentStates, type NewState, type StateRef, type Step } from '../step.ts';
import type { WireWriter } from './wire_writer.ts';
import { writeStep } from './write.ts';

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
  /** Sorted by name. */
  readonly states: readonly SentState[];
  /** Digests of the states that contents refer to, in order, each once. */
  readonly contentStates: readonly Digest[];
  /** The bytes of contents that are stored as states (FM4), in order. */
  readonly contentData: readonly NewState[];
  /** The step as `writeStep` writes it. States that came without their bytes have no size yet. */
  readonly bytes: Uint8Array;
}

/** A state of a received step. */
export interface SentState extends StateRef {
  /** Undefined: the state was named by its digest. */
  readonly data: Uint8Array | undefined;
}

/** A received step with the bytes that came with it. */
export interface SentStep extends Step {
  readonly states: readonly SentState[];
  readonly contentData: readonly NewState[];
}

/** Packs a step that has been checked. `out` must be empty, and is empty afterwards. */
export function packStep(out: WireWriter, step: SentStep): PackedStep {
  const { stepNumber, reward, terminated, truncated, startTime, endTime, metrics, states, contentData } = step;
  writeStep(out, step);
  return {
    stepNumber,
    reward,
    terminated,
    truncated,
    startTime,
    endTime,
    metrics,
    states,
    contentStates: contentStates(step),
    contentData,
    bytes: out.take(),
  };
}
