import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, invalidField } from '../../domain/errors.ts';
import { firstSteps } from '../../domain/step_codec/forward.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { EncodedSteps } from '../../store/contract/step.ts';
import type { App } from '../app.ts';
import { findTrajectory } from '../find.ts';
import { ticksUntilProgress } from '../look_schedule.ts';
import type { Follower } from './feed.ts';
import { type Blob, InlineStates } from './inline_states.ts';
import { readEncodedPage, type Shown, trajectoryDeleted } from './step_page.ts';

export interface RequestedRange {
  readonly trajectoryId: string;
  readonly startStepNumber: bigint;
  /** Default: the end of the trajectory when the call begins; with `follow`, no end. */
  readonly endStepNumber?: bigint | undefined;
}

export interface ReadStepsArgs extends RequestedRange, Shown {
  readonly follow: boolean;
  /** Ends the wait when it is aborted. */
  readonly signal: AbortSignal;
}

/** The next steps, all of one owner, or a sign of life without steps. About 128 KiB, unless one step is larger. */
export interface StepsRead {
  /** Undefined in a sign of life. Live followers share the object. */
  readonly part: EncodedSteps | undefined;
  /** The first step of the part, or `nextStepNumber`. */
  readonly firstStepNumber: bigint;
  /** The first step that was not read yet. */
  readonly nextStepNumber: bigint;
  readonly caughtUp: boolean;
  readonly sealed: boolean;
  /** States that the next steps name. Such a message has no steps. */
  readonly blobs?: readonly Blob[];
}

/**
 * RD1: returns the steps [start, end) in order, across branch points. With `follow` (RD2, R2), then returns new steps
 * live, each once, until `end`, the seal, or the abort of the signal. Each hint reads again by number, and polls find
 * what lost hints would have told, so no hint needs to be reliable. Reads at most one page ahead of the client. Errors:
 * TRAJECTORY_NOT_FOUND, RANGE_BEYOND_END, TRAJECTORY_DELETED, CALLER_LIMIT, SERVER_DRAINING.
 */
export async function* readSteps(
  app: App,
  caller: Caller,
  args: ReadStepsArgs,
): AsyncGenerator<StepsRead, void, undefined> {
  const inline = args.inlineBytes > 0 ? new InlineStates(app.store, caller.namespace, args.inlineBytes) : undefined;
  for await (const read of readParts(app, caller, args)) {
    const { part, firstStepNumber } = read;
    if (inline !== undefined && part !== undefined) {
      for await (const blobs of inline.of(part)) yield { ...withoutSteps(firstStepNumber), blobs };
    }
    yield read;
  }
}

async function* readParts(app: App, caller: Caller, args: ReadStepsArgs): AsyncGenerator<StepsRead, void, undefined> {
  const trajectory = await findRange(app, caller, args);
  if (!args.follow) {
    yield* readRange(app, caller, trajectory, args);
    return;
  }
  const leave = app.load?.enter('followersPerPrincipal');
  // The row was read before this subscription, so the feed reads it again before it waits.
  const follower = app.feeds.join(caller.namespace, trajectory, args);
  const wake = () => follower.wake();
  const unsubscribeDrain = app.drain.onBegin(wake);
  args.signal.addEventListener('abort', wake, { once: true });
  try {
    yield* follow(app, follower, trajectory, args);
  } finally {
    args.signal.removeEventListener('abort', wake);
    unsubscribeDrain();
    follower.leave();
    leave?.();
  }
}

export function requireRange(start: bigint, end: bigint | undefined): void {
  if (start < 0n) throw invalidField('start_step_number', `must be at least 0, not ${start}`);
  if (end !== undefined && end < start) {
    throw invalidField('end_step_number', `must be at least start_step_number, which is ${start}, not ${end}`);
  }
}

/**
 * RD1: returns the trajectory of a range. The range may begin at the end of the trajectory, and is empty then. Errors:
 * INVALID_REQUEST, TRAJECTORY_NOT_FOUND, RANGE_BEYOND_END.
 */
export async function findRange(app: App, caller: Caller, range: RequestedRange): Promise<Trajectory> {
  const { startStepNumber: start } = range;
  requireRange(start, range.endStepNumber);
  const trajectory = await findTrajectory(app, caller, range.trajectoryId);
  const { id, nextStepNumber } = trajectory;
  if (start <= nextStepNumber) return trajectory;
  throw new AnabranchError(
    'RANGE_BEYOND_END',
    `start_step_number is ${start}, but trajectory ${id} ends at ${nextStepNumber}: start there or before.`,
    { metadata: { next_step_number: `${nextStepNumber}` } },
  );
}

/** Returns the end of a range, at most the end of its trajectory. */
export function endOfRange({ nextStepNumber }: Trajectory, end: bigint | undefined): bigint {
  return end === undefined || end > nextStepNumber ? nextStepNumber : end;
}

/** Returns steps of a trajectory up to the end in its row. Errors: TRAJECTORY_DELETED, SERVER_DRAINING. */
export async function* readRange(
  app: App,
  caller: Caller,
  trajectory: Trajectory,
  args: Pick<ReadStepsArgs, 'startStepNumber' | 'endStepNumber' | keyof Shown>,
): AsyncGenerator<StepsRead, void, undefined> {
  const end = endOfRange(trajectory, args.endStepNumber);
  const fetch = (from: bigint): Promise<EncodedSteps[]> => {
    const page = readEncodedPage(app, caller.namespace, trajectory, [from, end], args);
    page.catch(() => undefined); // rethrown by `await`, unless the client disconnects before
    return page;
  };
  let next = args.startStepNumber;
  let ahead = next < end ? fetch(next) : undefined;
  while (ahead !== undefined) {
    const page: EncodedSteps[] = await ahead;
    let at = next;
    for (const { count } of page) next += BigInt(count);
    // Reads the next page while this one is sent.
    ahead = next < end ? fetch(next) : undefined;
    for (const part of page) {
      app.drain.throwIfBegun();
      const firstStepNumber = at;
      at += BigInt(part.count);
      yield { part, firstStepNumber, nextStepNumber: at, caughtUp: false, sealed: false };
    }
  }
}

async function* follow(
  app: App,
  follower: Follower,
  trajectory: Trajectory,
  args: ReadStepsArgs,
): AsyncGenerator<StepsRead, void, undefined> {
  const to = args.endStepNumber;
  const progressTicks = ticksUntilProgress(app.settings);
  let next = args.startStepNumber;
  let caughtUpSent = false;
  let live = false;
  while (!args.signal.aborted && (to === undefined || next < to)) {
    app.drain.throwIfBegun();
    if (follower.deleted) throw trajectoryDeleted(trajectory.id);
    if (next < follower.end) {
      const page = await follower.page(next, live);
      for (const whole of page) {
        const part = to === undefined ? whole : firstOf(whole, to - next);
        if (part === undefined) return;
        const firstStepNumber = next;
        next += BigInt(part.count);
        const caughtUp = next >= follower.end;
        const sealed = caughtUp && follower.sealed;
        live ||= caughtUp;
        caughtUpSent = caughtUp;
        yield { part, firstStepNumber, nextStepNumber: next, caughtUp, sealed };
        if (sealed) return;
      }
      continue;
    }
    if (follower.sealed) {
      yield caughtUpAt(next, true);
      return;
    }
    live = true;
    if (!caughtUpSent) yield caughtUpAt(next, false);
    await follower.change(next, progressTicks);
    // Without news, the next message is a sign of life.
    caughtUpSent = next < follower.end;
  }
}

/** Returns the first steps of a part, at most `count`; undefined if that is none. */
function firstOf(part: EncodedSteps, count: bigint): EncodedSteps | undefined {
  if (count <= 0n) return undefined;
  if (count >= BigInt(part.count)) return part;
  return { owner: part.owner, count: Number(count), bytes: firstSteps(part.bytes, Number(count)) };
}

function caughtUpAt(nextStepNumber: bigint, sealed: boolean): StepsRead {
  return { ...withoutSteps(nextStepNumber), caughtUp: true, sealed };
}

function withoutSteps(nextStepNumber: bigint): StepsRead {
  return { part: undefined, firstStepNumber: nextStepNumber, nextStepNumber, caughtUp: false, sealed: false };
}
