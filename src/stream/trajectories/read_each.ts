import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import type { EncodedSteps, TrajectoryRange } from '../../store/contract/step.ts';
import type { App } from '../app.ts';
import { rowBytes } from '../row_bytes.ts';
import { type Blob, InlineStates } from '../steps/inline_states.ts';
import { readRange, type StepsRead } from '../steps/read.ts';
import type { Shown } from '../steps/step_page.ts';

/** Something that is returned with the steps of a trajectory. */
export interface Wanted<Item> {
  readonly item: Item;
  /** Undefined if there are no steps to return. */
  readonly range: TrajectoryRange | undefined;
  /** About the stored size of the steps. */
  readonly bytes: number;
}

/** One message; at most 1 MiB. */
export interface ItemRead<Item> {
  readonly item: Item;
  /** Whether this is the first message of the item. It has room for the item. */
  readonly isFirst: boolean;
  readonly steps: EncodedSteps | undefined;
  /** States that the next steps name. Such a message has nothing else, and is not the first one. */
  readonly blobs?: readonly Blob[];
  /** The first step of the range that was not returned yet. */
  readonly nextStepNumber: bigint;
  readonly isDone: boolean;
  /** Why the steps are incomplete: TRAJECTORY_DELETED, STEP_CORRUPT or STATE_CORRUPT. Then the item is done. */
  readonly failure?: AnabranchError;
}

/** Larger ranges are read in pages, each by a statement of its own. */
const SMALL = { bytes: 64 * 1024, steps: 256n };

/** What one statement reads of several trajectories. */
const TOGETHER = { bytes: 256 * 1024, steps: 2048n, trajectories: 128 };

/** What is returned of steps. `inline` is what earlier reads of the same call have sent of their states. */
export type ShownOfCall = Shown & { readonly inline: InlineStates | undefined };

/** Returns what a call shows of steps, before its first read. */
export function shownOfCall({ store }: App, { namespace }: Caller, { view, inlineBytes }: Shown): ShownOfCall {
  return { view, inlineBytes, inline: inlineBytes > 0 ? new InlineStates(store, namespace, inlineBytes) : undefined };
}

/**
 * Returns items in order, each followed by the steps of its trajectory. Reads small trajectories together, and the next
 * ones while some are sent. Errors: SERVER_DRAINING.
 */
export async function* readEach<Item>(
  app: App,
  caller: Caller,
  pages: AsyncIterable<readonly Wanted<Item>[]>,
  shown: ShownOfCall,
): AsyncGenerator<ItemRead<Item>, void, undefined> {
  const { inline } = shown;
  const groups = groupsOf(pages);
  const opening = async (): Promise<readonly Opened<Item>[] | undefined> => {
    const group = await groups.next();
    return group.done === true ? undefined : open(app, caller, group.value, shown);
  };
  let ahead = opening();
  for (;;) {
    const opened = await ahead;
    if (opened === undefined) return;
    ahead = opening();
    ahead.catch(() => undefined); // rethrown by `await`, unless the client disconnects before
    inline?.expect(opened.flatMap(({ parts }) => parts));
    for (const each of opened) yield* send(app, each, inline);
  }
}

/** Divides pages into groups that are read together, each a single large range or some small ones. */
async function* groupsOf<Item>(
  pages: AsyncIterable<readonly Wanted<Item>[]>,
): AsyncGenerator<readonly Wanted<Item>[], void, undefined> {
  for await (const page of pages) {
    let group: Wanted<Item>[] = [];
    let [bytes, steps] = [0, 0n];
    for (const wanted of page) {
      const count = stepsOf(wanted);
      const isFull = bytes + wanted.bytes > TOGETHER.bytes || steps + count > TOGETHER.steps;
      if (group.length > 0 && (isFull || isLarge(wanted) || group.length === TOGETHER.trajectories)) {
        yield group;
        [group, bytes, steps] = [[], 0, 0n];
      }
      group.push(wanted);
      bytes += wanted.bytes;
      steps += count;
      if (!isLarge(wanted)) continue;
      yield group;
      [group, bytes, steps] = [[], 0, 0n];
    }
    if (group.length > 0) yield group;
  }
}

function stepsOf({ range }: Pick<Wanted<unknown>, 'range'>): bigint {
  return range === undefined ? 0n : range.to - range.from;
}

function isLarge(wanted: Wanted<unknown>): boolean {
  return stepsOf(wanted) > SMALL.steps || (stepsOf(wanted) > 0n && wanted.bytes > SMALL.bytes);
}

interface Opened<Item> {
  readonly wanted: Wanted<Item>;
  /** The first steps. */
  readonly parts: readonly EncodedSteps[];
  /** The steps after `parts`, unless there are none. */
  readonly rest: AsyncGenerator<StepsRead, void, undefined> | undefined;
  /** The first read of `rest`, if it has begun. */
  readonly first: Promise<IteratorResult<StepsRead, void>> | undefined;
}

async function open<Item>(
  app: App,
  caller: Caller,
  group: readonly Wanted<Item>[],
  shown: Shown,
): Promise<readonly Opened<Item>[]> {
  const ranges = group.flatMap(({ range }) => (range === undefined || range.from >= range.to ? [] : [range]));
  const together =
    ranges.length < 2 ? [] : await app.store.readEncodedRanges(caller.namespace, ranges, shown.view, shown.inlineBytes);
  const found = new Map(ranges.map((range, i) => [range, together[i] ?? []]));
  return group.map((wanted) => {
    const { range } = wanted;
    const parts = (range && found.get(range)) ?? [];
    const next = parts.reduce((number, { count }) => number + BigInt(count), range?.from ?? 0n);
    if (range === undefined || next >= range.to) return { wanted, parts, rest: undefined, first: undefined };
    const args = { startStepNumber: next, endStepNumber: range.to, ...shown };
    const rest = readRange(app, caller, range.trajectory, args);
    const first = group.length === 1 ? rest.next() : undefined;
    first?.catch(() => undefined); // rethrown by `await`
    return { wanted, parts, rest, first };
  });
}

async function* send<Item>(
  app: App,
  opened: Opened<Item>,
  inline: InlineStates | undefined,
): AsyncGenerator<ItemRead<Item>, void, undefined> {
  const { item, range } = opened.wanted;
  const end = range?.to ?? 0n;
  let nextStepNumber = range?.from ?? 0n;
  let isFirst = true;
  const read = (steps: EncodedSteps | undefined, isDone: boolean): ItemRead<Item> => {
    app.drain.throwIfBegun();
    const message = { item, isFirst, steps, nextStepNumber, isDone };
    isFirst = false;
    return message;
  };
  if (nextStepNumber >= end) {
    yield read(undefined, true);
    return;
  }
  try {
    for await (const part of partsOf(opened)) {
      for await (const blobs of inline?.of(part) ?? []) {
        yield { item, isFirst: false, steps: undefined, blobs, nextStepNumber, isDone: false };
      }
      if (isFirst && rowBytes(item) + part.bytes.length > ANSWER_BYTES) yield read(undefined, false);
      nextStepNumber += BigInt(part.count);
      yield read(part, nextStepNumber >= end);
    }
  } catch (error) {
    if (!(error instanceof AnabranchError && INCOMPLETE.has(error.reason))) throw error;
    yield { ...read(undefined, true), failure: error };
  }
}

/** Errors that end one item, and not the call. */
const INCOMPLETE: ReadonlySet<string> = new Set(['TRAJECTORY_DELETED', 'STEP_CORRUPT', 'STATE_CORRUPT']);

/** Errors: TRAJECTORY_DELETED, STEP_CORRUPT, STATE_CORRUPT. */
async function* partsOf<Item>({ parts, rest, first }: Opened<Item>): AsyncGenerator<EncodedSteps, void, undefined> {
  yield* parts;
  if (rest === undefined) return;
  for (let next = await (first ?? rest.next()); next.done !== true; next = await rest.next()) {
    if (next.value.part !== undefined) yield next.value.part;
  }
}
