import type { StoredStep } from '../../domain/step.ts';
import type { StepView } from '../../store/contract/step.ts';

export interface ReadStepsArgs {
  readonly trajectoryId: string;
  readonly startStepNumber: bigint;
  /** Undefined: the end as it is when the call begins, or, with follow, no end. */
  readonly endStepNumber: bigint | undefined;
  readonly view: StepView;
  readonly follow: boolean;
  /** Aborted when the caller is gone: waiting ends at once. */
  readonly signal: AbortSignal;
}

/** The next steps, all of one owner, about 64 KiB at most unless one step alone is larger; or a mark without steps. */
export interface StepsRead {
  /** The owner; empty without steps. */
  readonly trajectoryId: string;
  readonly steps: readonly StoredStep[];
  /** The first step not read yet. */
  readonly nextStepNumber: bigint;
  readonly caughtUp: boolean;
  readonly sealed: boolean;
}
