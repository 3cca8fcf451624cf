import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, trajectoryNotFound } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { StoredStep } from '../../domain/step.ts';
import { DEFAULT_STATE_NAME } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep } from '../../store/contract/step.ts';
import { findTrajectory, requireStillThere } from '../../stream/find.ts';
import { stepBytes } from '../../stream/steps/step_bytes.ts';
import type { App } from '../app.ts';
import { stateCorrupt, wholeState } from '../state/bytes.ts';
import type { StepPlace } from './branch.ts';
import { resolvePlace, stepAt } from './get_step.ts';

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
export async function getCheckpoint(app: App, caller: Caller, args: GetCheckpointArgs): Promise<Checkpoint> {
  const trajectory = await findTrajectory(app, caller, args.trajectoryId);
  const names = args.stateNames.map((name) => name || DEFAULT_STATE_NAME);
  const found = await findCheckpoint(app, caller, trajectory, args.at, [...new Set(names)]);
  const [inline] = await Promise.all([
    inlineStates(app, caller, trajectory, found.step),
    // While a trajectory is deleted, the latest checkpoint that is left of it, or of its ancestors, is not its latest.
    requireStillThere(app, caller, trajectory),
  ]);
  return { ...found, inline };
}

async function findCheckpoint(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  at: GetCheckpointArgs['at'],
  names: readonly string[],
): Promise<OwnedStep> {
  if (at !== undefined && !('atOrBefore' in at)) {
    const stepNumber = await resolvePlace(app, caller, trajectory, at);
    const found = await stepAt(app, caller, trajectory, stepNumber, 'FULL');
    if (!isCheckpoint(found.step, names)) throw checkpointNotFound(trajectory, `step ${stepNumber} has no`, names);
    return found;
  }
  const last = trajectory.nextStepNumber - 1n;
  const from = at === undefined || at.atOrBefore > last ? last : at.atOrBefore;
  const segments = await app.lineages.whole(app.store, caller.namespace, trajectory);
  const found = await app.store.findCheckpoint(caller.namespace, trajectory.ref.tree, segments, from, names);
  if (found === undefined) await requireStillThere(app, caller, trajectory);
  const searched = last < 0n ? 'which has no steps yet, none has a' : `no step up to ${from} has a`;
  if (found === undefined) throw checkpointNotFound(trajectory, searched, names);
  return found;
}

function isCheckpoint(step: StoredStep, names: readonly string[]): boolean {
  if (names.length === 0) return step.states.length > 0;
  return names.every((name) => step.states.some((state) => state.name === name));
}

/** States are taken in order of name, each that still fits. */
async function inlineStates(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  step: StoredStep,
): Promise<ReadonlyMap<string, Uint8Array>> {
  const inline = new Map<string, Uint8Array>();
  let room = LIMITS.messageBytes - 1024 - stepBytes(step);
  for (const state of step.states) {
    if (state.size > LIMITS.inlineStateBytes || state.size > room) continue;
    room -= state.size;
    try {
      inline.set(state.name, await wholeState(app.store, caller.namespace, state));
    } catch (error) {
      if (!(error instanceof AnabranchError && error.reason === 'STATE_NOT_FOUND')) throw error;
      // A step's states live as long as the step: either both are gone, or the store has lost one.
      const now = await app.store.getTrajectory(caller.namespace, trajectory.id);
      throw now?.ref.key === trajectory.ref.key ? stateCorrupt(state.digest) : trajectoryNotFound(trajectory.id);
    }
  }
  return inline;
}

function checkpointNotFound(trajectory: Trajectory, what: string, names: readonly string[]): AnabranchError {
  const wanted = names.length === 0 ? 'state' : `state named ${names.map((name) => `"${name}"`).join(' and ')}`;
  return new AnabranchError(
    'CHECKPOINT_NOT_FOUND',
    `In trajectory ${trajectory.id} ${what} ${wanted}: ListSteps with has_state or has_any_state shows those that have.`,
    {
      metadata: { trajectory_id: trajectory.id },
    },
  );
}
