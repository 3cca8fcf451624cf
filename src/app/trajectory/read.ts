import type { Caller } from '../../domain/caller.ts';
import type { AnabranchError } from '../../domain/errors.ts';
import type { StoredStep } from '../../domain/step.ts';
import type { StepView } from '../../store/contract/step.ts';
import type { App } from '../app.ts';

export interface ReadStepsArgs {
  readonly trajectoryId: string;
  readonly startStepNumber: bigint;
  /** Undefined: the end as it is when the call begins, or, with follow, no end. */
  readonly endStepNumber: bigint | undefined;
  readonly view: StepView;
  readonly follow: boolean;
  /** Aborted when the caller is gone: waiting ends at once. */
  readonly signal: AbortSignal;
  /**
   * With follow: called when what was yielded last has not been taken for `settings.slowReaderMs` (R3). A suspended generator cannot end a
   * stream, so whoever holds the wire must; should the generator be asked for more all the same, it throws the same error.
   */
  readonly onSlowReader?: (error: AnabranchError) => void;
}

/** The next steps, all of one owner, about 256 KiB at most unless one step alone is larger; or a mark without steps. */
export interface StepsRead {
  /** The owner; empty without steps. */
  readonly trajectoryId: string;
  readonly steps: readonly StoredStep[];
  /** The first step not read yet. */
  readonly nextStepNumber: bigint;
  readonly caughtUp: boolean;
  readonly sealed: boolean;
}

/**
 * RD1, RD2: steps [start, end) in order, across branch points; with `follow` goes on as steps are committed. Nothing is read ahead of what was
 * taken, but for one page. Errors: TRAJECTORY_NOT_FOUND, RANGE_BEYOND_END, TRAJECTORY_DELETED, SLOW_READER, SERVER_DRAINING (follow only).
 */
// biome-ignore lint/correctness/useYield: being written
export async function* readSteps(
  _app: App,
  _caller: Caller,
  _args: ReadStepsArgs,
): AsyncGenerator<StepsRead, void, undefined> {
  throw new Error('being written');
}
