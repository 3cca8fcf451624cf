import { create } from '@bufbuild/protobuf';
import {
  type ReadStatesRequest,
  type ReadStatesResponse,
  ReadStatesResponseSchema,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import type { RestoredState } from '../../domain/step.ts';
import { DEFAULT_STATE_NAME } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedState } from '../../store/contract/step.ts';
import type { App } from '../../stream/app.ts';
import { requireStillThere } from '../../stream/find.ts';
import { endOfRange, findRange, type RequestedRange } from '../../stream/steps/read.ts';
import { trajectoryDeleted } from '../../stream/steps/step_page.ts';
import { isMissing, rowReader, smallReader, stateCorrupt } from './bytes.ts';
import { statePruned } from './content.ts';
import { collectPieces, type OwnedPiece, PIECES, piecesOf } from './pieces.ts';

export type ReadStatesArgs = RequestedRange & Pick<ReadStatesRequest, 'name' | 'every'>;

/**
 * S5: returns the states of a range of steps in pieces. Holds only a few chunks in memory. Errors:
 * TRAJECTORY_NOT_FOUND, RANGE_BEYOND_END, TRAJECTORY_DELETED, STATE_PRUNED, STATE_CORRUPT.
 */
export async function* readStates(
  app: App,
  caller: Caller,
  args: ReadStatesArgs,
): AsyncGenerator<ReadStatesResponse, void, undefined> {
  const trajectory = await findRange(app, caller, args);
  for await (const message of collectPieces(app, readPieces(app, caller, trajectory, args))) {
    yield create(ReadStatesResponseSchema, message);
  }
}

async function* readPieces(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  args: ReadStatesArgs,
): AsyncGenerator<OwnedPiece, void, undefined> {
  const last: RestoredState = {};
  try {
    for await (const found of pickStates(app, caller, trajectory, args)) {
      yield* piecesOfFound(app, caller, trajectory, found, last);
    }
  } catch (error) {
    if (!isMissing(error)) throw error;
    // States exist as long as their step, or until they are pruned. So the step was deleted, or the store has lost it.
    await requireStillThere(app, caller, trajectory, trajectoryDeleted);
    throw stateCorrupt(error.metadata.digest ?? '');
  }
  // Not every step has such a state. So only the trajectory's existence proves that the response is complete (RD1).
  await requireStillThere(app, caller, trajectory, trajectoryDeleted);
}

/** S13: leaves out a state that was pruned since it was found. Errors: STATE_PRUNED, if it was pruned in the middle. */
async function* piecesOfFound(
  app: App,
  { namespace }: Caller,
  { id, ref }: Trajectory,
  { owner, stepNumber, state }: OwnedState,
  last: RestoredState,
): AsyncGenerator<OwnedPiece, void, undefined> {
  const read = state.data === undefined ? rowReader(app.store, namespace, state, last) : smallReader(state.data);
  let begun = false;
  try {
    for await (const piece of piecesOf(read, { ...state, stepNumber })) {
      yield { trajectoryId: owner.id, piece };
      begun = true;
    }
  } catch (error) {
    if (!isMissing(error)) throw error;
    const itself = { key: owner.key, from: stepNumber, to: stepNumber + 1n };
    const [step] = await app.store.readSteps(namespace, ref.tree, [itself], { ...itself, ...ONE_STEP }, 'BASIC');
    const now = step?.step.states.find(({ name }) => name === state.name);
    if (now?.prunedTime === undefined) throw error;
    if (begun) throw statePruned({ trajectoryId: id, stepNumber }, now);
  }
}

const ONE_STEP = { maxSteps: 1, maxBytes: 0 };

/** Returns every k-th state, where k is `every`. */
async function* pickStates(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  args: ReadStatesArgs,
): AsyncGenerator<OwnedState, void, undefined> {
  const name = args.name || DEFAULT_STATE_NAME;
  const every = args.every > 1n ? args.every : 1n;
  const { namespace } = caller;
  let from = args.startStepNumber;
  const end = endOfRange(trajectory, args.endStepNumber);
  const lineage = await app.lineages.within(app.store, namespace, trajectory, from, end);
  let found = 0n;
  for (;;) {
    const page = await app.store.listStepStates(namespace, trajectory.ref.tree, lineage, { name, from, limit: PIECES });
    for (const state of page) {
      if (found % every === 0n) yield state;
      found += 1n;
      from = state.stepNumber + 1n;
    }
    if (page.length < PIECES) return;
  }
}
