import type { Caller } from '../../domain/caller.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep, StepCursor, StepFilter, StepSort, StepView } from '../../store/contract/step.ts';
import { findExperiment, findRun, findTrajectory, requireStillThere } from '../../stream/find.ts';
import { stepBytes } from '../../stream/steps/step_bytes.ts';
import type { App } from '../app.ts';
import {
  cursorInt,
  invalidPageToken,
  makePageToken,
  type PageArgs,
  type PageOf,
  pageLimit,
  readPageToken,
} from '../page_token.ts';

export interface ListStepsArgs extends PageArgs {
  /** Steps of a lineage, or own steps of all trajectories of a task, a run or an experiment. */
  readonly of: StepsOf;
  readonly filter: Omit<StepFilter, 'of'>;
  readonly order: StepSort;
  readonly view: StepView;
}

export type StepsOf =
  | { readonly trajectoryId: string }
  | { readonly taskId: string }
  | { readonly runId: string }
  | { readonly experimentId: string };

/** Of payloads as they are stored; metrics and references to states come on top. */
const PAGE_BYTES = 512 * 1024;
/** Of steps as they are encoded: leaves room for the page token. */
const MESSAGE_BYTES = LIMITS.messageBytes - 1024;

/** RD4. A page ends early where steps are large, and holds at least one step if there is one. Errors: TRAJECTORY_NOT_FOUND, RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND. */
export async function listSteps(app: App, caller: Caller, args: ListStepsArgs): Promise<PageOf<OwnedStep>> {
  const { of, filter, order, view } = args;
  const trajectory = 'trajectoryId' in of ? await findTrajectory(app, caller, of.trajectoryId) : undefined;
  const where: StepFilter = { ...filter, of: await placeOf(app, caller, of, trajectory) };
  const bound = { ...args, binding: `${args.binding}/${trajectory?.ref.key}` };
  const after = cursorOf(readPageToken(bound));
  const list = (limit: number, from: StepCursor | undefined): Promise<OwnedStep[]> =>
    app.store.listSteps(caller.namespace, where, order, { limit, after: from, maxBytes: PAGE_BYTES }, view);

  const found = fitting(await list(pageLimit(args.pageSize), after));
  const last = found.at(-1);
  // A page may end early by its bytes, so only a look behind it tells whether it was the last.
  const more = last !== undefined && (await list(1, afterStep(last))).length > 0;
  await requireThere(app, caller, of, trajectory);
  return { items: found, nextPageToken: more ? makePageToken(bound.binding, cursorText(afterStep(last))) : '' };
}

/** RD3: as many as surely fit into one message, but at least one. */
function fitting(found: OwnedStep[]): OwnedStep[] {
  let bytes = 0;
  const cut = found.findIndex(({ step }, i) => {
    bytes += stepBytes(step);
    return i > 0 && bytes > MESSAGE_BYTES;
  });
  return cut === -1 ? found : found.slice(0, cut);
}

async function placeOf(
  app: App,
  caller: Caller,
  of: ListStepsArgs['of'],
  trajectory: Trajectory | undefined,
): Promise<StepFilter['of']> {
  if (trajectory !== undefined) {
    return { tree: trajectory.ref.tree, segments: await app.lineages.whole(app.store, caller.namespace, trajectory) };
  }
  return 'trajectoryId' in of ? { taskId: '' } : of;
}

/** A deletion removes steps batch by batch, so a page that was read beside it may lack some. Errors: TRAJECTORY_NOT_FOUND and so on. */
async function requireThere(app: App, caller: Caller, of: StepsOf, trajectory: Trajectory | undefined): Promise<void> {
  if (trajectory !== undefined) await requireStillThere(app, caller, trajectory);
  else if ('runId' in of) await findRun(app, caller, of.runId);
  else if ('experimentId' in of) await findExperiment(app, caller, { id: of.experimentId });
}

function afterStep({ owner, step }: OwnedStep): StepCursor {
  return { key: owner.key, stepNumber: step.stepNumber, reward: step.reward, commitTime: step.commitTime };
}

function cursorText({ key, stepNumber, reward, commitTime }: StepCursor): string[] {
  return [`${key}`, `${stepNumber}`, `${commitTime}`, reward === undefined ? '' : `${reward}`];
}

/** Nanoseconds up to the year 6646, which every database can read. */
const TIME_BITS = 68;

function cursorOf(parts: readonly string[] | undefined): StepCursor | undefined {
  if (parts === undefined) return undefined;
  const reward = parts[3];
  const commitTime = cursorInt(parts, 2, TIME_BITS);
  if (reward === undefined || commitTime < 0n) throw invalidPageToken();
  return {
    key: cursorInt(parts, 0),
    stepNumber: cursorInt(parts, 1),
    commitTime,
    reward: reward === '' ? undefined : Number(reward),
  };
}
