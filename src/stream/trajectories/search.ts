import type { Caller } from '../../domain/caller.ts';
import type { TreeRange } from '../../domain/lineage.ts';
import type { FoundText } from '../../domain/step_search.ts';
import { ownBegin, type Trajectory } from '../../domain/trajectory.ts';
import type { TrajectoryFilter } from '../../store/contract/trajectory.ts';
import type { App } from '../app.ts';

export interface SearchArgs {
  readonly text: string;
  /** The steps of a lineage, or the own steps of trajectories that match a filter. */
  readonly in: Trajectory | TrajectoryFilter;
  readonly maxHits: number;
  /** Where an earlier call ended. */
  readonly after: SearchPosition | undefined;
  readonly signal: AbortSignal;
}

/** The step to continue at. */
export interface SearchPosition {
  readonly key: bigint;
  readonly stepNumber: bigint;
}

/** One message. */
interface SearchShown {
  readonly hits: readonly (FoundText & { readonly trajectoryId: string })[];
  readonly searchedSteps: bigint;
  /** Undefined if everything was searched. */
  readonly position: SearchPosition | undefined;
}

/** Bytes of steps that one statement reads, before compression. Fewer if steps differ much in size. */
const PIECE_BYTES = 2 * 1024 * 1024;
const PIECE_RANGES = 256;

/** Trajectories that one statement reads. */
const PLACES = 256;

/**
 * RD10: searches trajectories from the newest to the oldest, and the steps of each in order. Reads a piece of stored
 * steps while the one before is searched on a thread. Errors: SERVER_DRAINING.
 */
export async function* searchSteps(
  app: App,
  { namespace }: Caller,
  args: SearchArgs,
): AsyncGenerator<SearchShown, void, undefined> {
  const { store } = app;
  const { text, maxHits, signal } = args;
  const pieces =
    'ref' in args.in ? lineagePieces(app, namespace, args.in, args) : filterPieces(app, namespace, args.in, args);
  const begin = async () => {
    const next = await pieces.next();
    if (next.done === true) return undefined;
    const found = store.searchSteps(namespace, next.value.ranges, { text, limit: maxHits });
    found.catch(() => undefined); // rethrown by `await`, unless the caller has enough before
    return { ...next.value, found };
  };
  let searchedSteps = 0n;
  let hits = 0;
  let ahead = begin();
  for (;;) {
    const piece = await ahead;
    if (piece === undefined) return yield { hits: [], searchedSteps, position: undefined };
    ahead = begin();
    ahead.catch(() => undefined);
    app.drain.throwIfBegun();
    signal.throwIfAborted();
    const found = upTo(await piece.found, maxHits - hits);
    hits += found.length;
    const shown = await withOwners(app, namespace, piece.ranges, found);
    const last = found.at(-1);
    if (hits >= maxHits && last !== undefined) {
      for (const { key, from, to } of piece.ranges) {
        searchedSteps += (key === last.owner ? last.stepNumber + 1n : to) - from;
        if (key === last.owner) break;
      }
      yield { hits: shown, searchedSteps, position: { key: last.owner, stepNumber: last.stepNumber + 1n } };
      return;
    }
    const end = piece.ranges.at(-1)!;
    searchedSteps += piece.ranges.reduce((sum, { from, to }) => sum + (to - from), 0n);
    yield { hits: shown, searchedSteps, position: { key: end.key, stepNumber: end.to } };
  }
}

/** Returns the matches up to the step that has the last of `most`. */
function upTo(found: readonly FoundText[], most: number): readonly FoundText[] {
  const last = found[most - 1];
  if (last === undefined) return found;
  const end = found.findIndex(
    ({ owner, stepNumber }, i) => i >= most && (owner !== last.owner || stepNumber !== last.stepNumber),
  );
  return end < 0 ? found : found.slice(0, end);
}

async function withOwners(
  { store }: App,
  namespace: string,
  ranges: readonly TreeRange[],
  found: readonly FoundText[],
): Promise<SearchShown['hits']> {
  const owners = new Map<bigint, string>();
  const named = ranges.filter(({ key }) => found.some(({ owner }) => owner === key));
  for (const [tree, some] of Map.groupBy(named, ({ tree }) => tree)) {
    const there = await store.getOwners(
      namespace,
      tree,
      some.map(({ key }) => key),
    );
    for (const [key, { id }] of there) owners.set(key, id);
  }
  // Leaves out matches of trajectories that were deleted meanwhile.
  return found.flatMap((match) => {
    const trajectoryId = owners.get(match.owner);
    return trajectoryId === undefined ? [] : [{ ...match, trajectoryId }];
  });
}

/** Ranges that one statement reads; each trajectory is in it once. */
interface Piece {
  readonly ranges: readonly TreeRange[];
}

interface SizedRange extends TreeRange {
  /** Mean bytes of a step. */
  readonly stepBytes: number;
}

async function* lineagePieces(
  app: App,
  namespace: string,
  trajectory: Trajectory,
  { after }: SearchArgs,
): AsyncGenerator<Piece, void, undefined> {
  const { tree } = trajectory.ref;
  const [sized] = await app.store.findTrajectories(namespace, { keys: [trajectory.ref.key] });
  const stepBytes = (sized?.stepBytes ?? 0) / Math.max(1, Number(trajectory.nextStepNumber));
  const begin = after?.stepNumber ?? 0n;
  const lineage = await app.lineages.within(app.store, namespace, trajectory, begin, trajectory.nextStepNumber);
  yield* inPieces(lineage.map((range) => ({ ...range, tree, stepBytes })));
}

async function* filterPieces(
  { store }: App,
  namespace: string,
  filter: TrajectoryFilter,
  { after }: SearchArgs,
): AsyncGenerator<Piece, void, undefined> {
  const order = { by: 'CREATION', descending: true } as const;
  // A call that continues begins with the trajectory in which the one before has ended.
  let last = after === undefined ? undefined : { key: after.key + 1n, rank: 0 };
  for (;;) {
    const places = await store.orderTrajectories(namespace, filter, order, { limit: PLACES, after: last });
    const found = await store.findTrajectories(namespace, { keys: places.map(({ key }) => key) });
    found.sort((a, b) => (a.trajectory.ref.key > b.trajectory.ref.key ? -1 : 1));
    const ranges = found.map(({ trajectory, ownBytes }): SizedRange => {
      const { ref, nextStepNumber: to } = trajectory;
      const own = ownBegin(trajectory);
      const from = after?.key === ref.key && after.stepNumber > own ? after.stepNumber : own;
      return { ...ref, from, to, stepBytes: ownBytes / Math.max(1, Number(to - own)) };
    });
    yield* inPieces(ranges.filter(({ from, to }) => from < to));
    last = places.at(-1);
    if (places.length < PLACES) return;
  }
}

function* inPieces(ranges: readonly SizedRange[]): Generator<Piece> {
  let piece: TreeRange[] = [];
  let room = PIECE_BYTES;
  for (const { stepBytes, ...range } of ranges) {
    for (let from = range.from; from < range.to; ) {
      const fitting = BigInt(Math.max(1, Math.floor(room / Math.max(1, stepBytes))));
      const to = from + fitting < range.to ? from + fitting : range.to;
      piece.push({ ...range, from, to });
      room -= Number(to - from) * stepBytes;
      from = to;
      if (from === range.to && room > stepBytes && piece.length < PIECE_RANGES) continue;
      yield { ranges: piece };
      [piece, room] = [[], PIECE_BYTES];
    }
  }
  if (piece.length > 0) yield { ranges: piece };
}
