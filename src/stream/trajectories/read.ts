import type { Caller } from '../../domain/caller.ts';
import type { AnabranchError } from '../../domain/errors.ts';
import { ownBegin, type Trajectory } from '../../domain/trajectory.ts';
import type {
  SizedTrajectory,
  TrajectoryFilter,
  TrajectoryPlace,
  TrajectorySort,
} from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';
import { rowBytes } from '../row_bytes.ts';
import { endOfRange } from '../steps/read.ts';
import type { Shown } from '../steps/step_page.ts';
import { type ItemRead, readEach, shownOfCall, type Wanted } from './read_each.ts';

export interface ReadTrajectoriesArgs extends Shown {
  readonly filter: TrajectoryFilter;
  readonly order: TrajectorySort;
  readonly steps: 'NONE' | 'OWN' | 'LINEAGE';
  /** Where an earlier call ended. */
  readonly after: Position | undefined;
}

/** Where a call ended: within a trajectory, or after it. */
export interface Position {
  /** Key of the newest trajectory that existed when the first call began. */
  readonly newest: bigint;
  readonly place: TrajectoryPlace;
  /** The steps of the trajectory that were not returned yet. Undefined after the trajectory. */
  readonly rest: { readonly from: bigint; readonly to: bigint } | undefined;
}

interface Found {
  /** Undefined if the trajectory was deleted between two calls. */
  readonly trajectory: Trajectory | undefined;
  readonly place: TrajectoryPlace;
  /** The end of the steps to return. */
  readonly end: bigint;
  /** Whether an earlier call has returned the trajectory. */
  readonly isResumed: boolean;
}

interface TrajectoriesRead extends Omit<ItemRead<Found>, 'item' | 'isFirst' | 'nextStepNumber' | 'failure'> {
  /** Set in the first message of a trajectory. */
  readonly trajectory: Trajectory | undefined;
  readonly isDeleted: boolean;
  /** The damage because of which the steps are incomplete: STEP_CORRUPT or STATE_CORRUPT. */
  readonly damage: AnabranchError | undefined;
  /** Undefined before the first trajectory. */
  readonly position: Position | undefined;
}

/** Places read by one statement. */
const PLACES = 4096;

/** Trajectories read by one statement: few if they can be large. */
const FETCH = { least: 16, most: 256 };

/** Mean size of trajectories of which many are read by one statement. */
const SMALL_BYTES = 4096;

/**
 * RD6: returns the trajectories that match the filter and exist when the call begins, each followed by its steps.
 * Errors: SERVER_DRAINING.
 */
export async function* readTrajectories(
  app: App,
  caller: Caller,
  args: ReadTrajectoriesArgs,
): AsyncGenerator<TrajectoriesRead, void, undefined> {
  const newest = args.after?.newest ?? (await newestKey(app, caller));
  if (newest === undefined) return;
  let position = args.after;
  const shown = shownOfCall(app, caller, args);
  const pages = pagesOf(app, caller, { ...args, filter: { ...args.filter, newest } });
  for await (const { item, isFirst, nextStepNumber, failure, ...read } of readEach(app, caller, pages, shown)) {
    const { trajectory, place, end, isResumed } = item;
    if (read.blobs === undefined)
      position = { newest, place, rest: read.isDone ? undefined : { from: nextStepNumber, to: end } };
    const isDeleted = trajectory === undefined || failure?.reason === 'TRAJECTORY_DELETED';
    yield {
      ...read,
      isDeleted,
      damage: isDeleted ? undefined : failure,
      trajectory: isFirst && !isResumed ? trajectory : undefined,
      position,
    };
  }
}

async function newestKey({ store }: App, { namespace }: Caller): Promise<bigint | undefined> {
  const order = { by: 'CREATION', descending: true } as const;
  const [last] = await store.orderTrajectories(namespace, {}, order, { limit: 1, after: undefined });
  return last?.key;
}

async function* pagesOf(
  app: App,
  caller: Caller,
  args: ReadTrajectoriesArgs,
): AsyncGenerator<readonly Wanted<Found>[], void, undefined> {
  const { after } = args;
  if (after?.rest !== undefined) yield [await restOf(app, caller, after.place, after.rest)];
  let limit = FETCH.least;
  for await (const places of placesOf(app, caller, args)) {
    for (let at = 0; at < places.length; ) {
      const page = places.slice(at, at + limit);
      at += page.length;
      const keys = page.map(({ key }) => key);
      const found = await app.store.findTrajectories(caller.namespace, { keys });
      const byKey = new Map(found.map((sized) => [sized.trajectory.ref.key, sized]));
      yield page.flatMap((place) => {
        const sized = byKey.get(place.key);
        return sized === undefined ? [] : [wantedOf(sized, place, args.steps)];
      });
      const bytes = found.reduce((sum, { trajectory }) => sum + rowBytes(trajectory), 0);
      limit = bytes < SMALL_BYTES * found.length ? Math.min(4 * limit, FETCH.most) : FETCH.least;
    }
  }
}

async function* placesOf(
  { store }: App,
  { namespace }: Caller,
  { filter, order, after }: ReadTrajectoriesArgs,
): AsyncGenerator<readonly TrajectoryPlace[], void, undefined> {
  for (let last = after?.place; ; ) {
    const page = await store.orderTrajectories(namespace, filter, order, { limit: PLACES, after: last });
    yield page;
    last = page.at(-1);
    if (page.length < PLACES) return;
  }
}

function wantedOf(
  { trajectory, stepBytes, ownBytes }: SizedTrajectory,
  place: TrajectoryPlace,
  steps: ReadTrajectoriesArgs['steps'],
): Wanted<Found> {
  const item = { trajectory, place, end: trajectory.nextStepNumber, isResumed: false };
  if (steps === 'NONE') return { item, range: undefined, bytes: 0 };
  const from = steps === 'OWN' ? ownBegin(trajectory) : 0n;
  const range = { trajectory, from, to: trajectory.nextStepNumber };
  return { item, range, bytes: steps === 'OWN' ? ownBytes : stepBytes };
}

/** Returns the steps of a trajectory that an earlier call has begun to return. */
async function restOf(
  { store }: App,
  { namespace }: Caller,
  place: TrajectoryPlace,
  rest: NonNullable<Position['rest']>,
): Promise<Wanted<Found>> {
  const [sized] = await store.findTrajectories(namespace, { keys: [place.key] });
  const item = { trajectory: sized?.trajectory, place, end: rest.to, isResumed: true };
  if (sized === undefined) return { item, range: undefined, bytes: 0 };
  const range = { trajectory: sized.trajectory, from: rest.from, to: endOfRange(sized.trajectory, rest.to) };
  return { item, range, bytes: sized.stepBytes };
}
