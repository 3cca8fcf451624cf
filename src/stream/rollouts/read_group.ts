import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Stage } from '../../domain/run.ts';
import { rolloutCursor } from '../../store/contract/rollout.ts';
import type { EncodedSteps } from '../../store/contract/step.ts';
import type { View } from '../../store/contract/view.ts';
import type { App } from '../app.ts';
import { rowBytes } from '../row_bytes.ts';
import type { StepsRead } from '../steps/read.ts';
import { readRange } from '../steps/read.ts';

/** Rollouts read by one statement. In FULL view they can be large. */
const FETCH = { BASIC: 256, FULL: 16 };

/** A call that reads the rollouts of a stage. */
export interface StageReader {
  readonly app: App;
  readonly caller: Caller;
  /** The stage when the call began. */
  readonly stage: Stage;
  readonly view: View;
}

/** One message; at most 1 MiB. */
export interface RolloutsRead {
  /** Set in the first message of a rollout. */
  readonly rollout: Rollout | undefined;
  /** Steps of the rollout that was set last, or none. */
  readonly steps: EncodedSteps | undefined;
  readonly rolloutDone: boolean;
  readonly groupDone: boolean;
  readonly caughtUp: boolean;
}

/**
 * Returns the rollouts of a group, as they were when this call began, with the steps of their attempts. Omits rollouts
 * without an attempt, unless the group has no others. Returns false without messages if some rollouts are not `ready`.
 * Reads the next rollout while one is sent.
 */
export async function* readGroup(
  reader: StageReader,
  { id }: Group,
  ready: (rollout: Rollout) => boolean,
): AsyncGenerator<RolloutsRead, boolean, undefined> {
  const siblings: Rollout[] = [];
  for await (const rollout of rolloutsOf(reader, id, 'BASIC')) siblings.push(rollout);
  if (!siblings.every(ready)) return false;
  const tried = siblings.filter(({ attempt }) => attempt > 0);
  // Clients that count groups receive every group.
  const shown = tried.length > 0 ? tried : siblings;
  const rows = inRequestedView(reader, id, shown);
  const opening = async (): Promise<Opened | undefined> => {
    const row = await rows.next();
    return row.done === true ? undefined : open(reader, row.value);
  };
  let ahead = opening();
  for (let left = shown.length; left > 0; left -= 1) {
    const opened = await ahead;
    if (opened === undefined) break;
    ahead = opening();
    ahead.catch(() => undefined); // rethrown by `await`, unless the client disconnects before
    yield* readOpened(reader, opened, left === 1);
  }
  return true;
}

async function* rolloutsOf(reader: StageReader, groupId: string, view: View): AsyncGenerator<Rollout, void, undefined> {
  const { store } = reader.app;
  const limit = FETCH[view];
  let last: Rollout | undefined;
  for (;;) {
    const page = { limit, after: last && rolloutCursor(last) };
    const rows = await orDeleted(reader, store.listRollouts(reader.caller.namespace, { of: { groupId } }, page, view));
    yield* rows;
    last = rows.at(-1);
    if (rows.length < limit) return;
  }
}

/** Returns the rollouts in the requested view. A rollout that was retried meanwhile is returned as it had ended. */
async function* inRequestedView(
  reader: StageReader,
  groupId: string,
  shown: readonly Rollout[],
): AsyncGenerator<Rollout, void, undefined> {
  if (reader.view === 'BASIC') {
    yield* shown;
    return;
  }
  const rows = rolloutsOf(reader, groupId, 'FULL');
  for (const was of shown) {
    let now = await rows.next();
    // Skips rollouts that are omitted or were created meanwhile. A rollout is deleted only with its run.
    while (!now.done && now.value.key !== was.key) now = await rows.next();
    if (now.done) throw runDeleted(reader);
    const { attempt, status } = now.value;
    const same = attempt === was.attempt && isTerminal(status);
    yield same ? now.value : withJsonOf(now.value, was);
  }
}

/** Adds the JSON fields, which the BASIC view leaves out, to a rollout. */
function withJsonOf(whole: Rollout, basic: Rollout): Rollout {
  const json = Object.entries(whole).filter(([name]) => name.endsWith('Json'));
  return { ...basic, ...Object.fromEntries(json) };
}

interface Opened {
  readonly rollout: Rollout;
  /** The end of its trajectory; 0 if the trajectory is empty or was deleted. */
  readonly end: bigint;
  readonly reading: AsyncGenerator<StepsRead, void, undefined> | undefined;
  readonly first: Promise<IteratorResult<StepsRead, void>> | undefined;
}

/** Finds the trajectory of a rollout and starts to read it. */
async function open({ app, caller, view }: StageReader, rollout: Rollout): Promise<Opened> {
  const { trajectoryId } = rollout;
  const found = trajectoryId === '' ? undefined : await app.store.getTrajectory(caller.namespace, trajectoryId);
  if (found === undefined) return { rollout, end: 0n, reading: undefined, first: undefined };
  const reading = readRange(app, caller, found, { startStepNumber: 0n, endStepNumber: undefined, view });
  const first = reading.next();
  first.catch(() => undefined); // rethrown by `await`
  return { rollout, end: found.nextStepNumber, reading, first };
}

async function* readOpened(
  reader: StageReader,
  { rollout, end, reading, first }: Opened,
  isLast: boolean,
): AsyncGenerator<RolloutsRead, void, undefined> {
  let begins: Rollout | undefined = rollout;
  let next = first;
  while (reading !== undefined && next !== undefined) {
    const read = await orDeleted(reader, next);
    if (read.done === true) break;
    const { part: steps, nextStepNumber } = read.value;
    if (begins !== undefined && !fitTogether(begins, steps)) {
      yield { rollout: begins, steps: undefined, rolloutDone: false, groupDone: false, caughtUp: false };
      begins = undefined;
    }
    const done = nextStepNumber >= end;
    yield { rollout: begins, steps, rolloutDone: done, groupDone: done && isLast, caughtUp: false };
    begins = undefined;
    next = reading.next();
  }
  if (end === 0n) yield { rollout: begins, steps: undefined, rolloutDone: true, groupDone: isLast, caughtUp: false };
}

function fitTogether(rollout: Rollout, steps: EncodedSteps | undefined): boolean {
  return rowBytes(rollout) + (steps?.bytes.length ?? 0) <= ANSWER_BYTES;
}

/** Reports RUN_DELETED for a resource that was not found, if its stage does not exist any more. */
export async function orDeleted<T>(reader: StageReader, reading: Promise<T>): Promise<T> {
  try {
    return await reading;
  } catch (error) {
    if (error instanceof AnabranchError && NOT_FOUND.has(error.reason)) await stageNow(reader);
    throw error;
  }
}

const NOT_FOUND: ReadonlySet<string> = new Set(['STAGE_NOT_FOUND', 'GROUP_NOT_FOUND', 'TRAJECTORY_DELETED']);

/** Reads the stage again. Errors: RUN_DELETED. */
export async function stageNow(reader: StageReader): Promise<Stage> {
  const { id, key } = reader.stage;
  const now = await reader.app.store.getStage(reader.caller.namespace, { id });
  if (now?.key !== key) throw runDeleted(reader);
  return now;
}

function runDeleted({ stage }: StageReader): AnabranchError {
  return new AnabranchError(
    'RUN_DELETED',
    `Run ${stage.run.id} was deleted while its rollouts were being read. The response is incomplete.`,
    { metadata: { run_id: stage.run.id } },
  );
}
