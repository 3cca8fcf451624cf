import type { Caller } from '../../domain/caller.ts';
import type { OwnedStep } from '../../store/contract/step.ts';
import type { App } from '../app.ts';
import type { StepPlace } from './branch.ts';

export interface GetCheckpointArgs {
  readonly trajectoryId: string;
  /** Exactly a step; or the latest at or before one; undefined: the latest. */
  readonly at: StepPlace | { readonly atOrBefore: bigint } | undefined;
  /** Only a step that has states of all these names (empty: `env`); none: of any name. */
  readonly stateNames: readonly string[];
}

export interface Checkpoint extends OwnedStep {
  /** Bytes of the step's states by name, as far as the answer stays below 1 MiB; verified against their digests. */
  readonly inline: ReadonlyMap<string, Uint8Array>;
}

/** RD3. Errors: TRAJECTORY_NOT_FOUND, CHECKPOINT_NOT_FOUND, STEP_NOT_FOUND, TAG_NOT_FOUND, STATE_CORRUPT. */
export async function getCheckpoint(_app: App, _caller: Caller, _args: GetCheckpointArgs): Promise<Checkpoint> {
  throw new Error('being written');
}
