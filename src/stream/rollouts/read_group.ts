import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Stage } from '../../domain/run.ts';
import type { StoredStep } from '../../domain/step.ts';
import { rolloutCursor } from '../../store/contract/rollout.ts';
import type { View } from '../../store/contract/view.ts';
import type { App } from '../app.ts';
import { rowBytes } from '../row_bytes.ts';
import type { StepsRead } from '../steps/read.ts';
import { readRange } from '../steps/read.ts';
import { stepBytes } from '../steps/step_bytes.ts';

/** Rollouts fetched at a time: whole ones can be large. */
const FETCH = { BASIC: 256, FULL: 16 };

/** What a reader of a stage's rollouts stands on. */
export interface StageReader {
  readonly app: App;
  readonly caller: Caller;
  /** As it was when the call began. */
  readonly stage: Stage;
  readonly view: View;
}

/** What is told at once; fits into 1 MiB. */
export interface RolloutsRead {
  /** One that begins; its steps follow. */
  readonly rollout: Rollout | undefined;
  /** Of the one that began last. */
  readonly steps: readonly StoredStep[];
  readonly rolloutDone: boolean;
  readonly groupDone: boolean;
  readonly caughtUp: boolean;
}

/**
 * The rollouts of a group, as they were when this began, with the steps of their attempts; those without an attempt are
 * left out, unless the group has no others. False: nothing was told, since they are not `ready` any more. The next
 * rollout is on its way while one is being sent.
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
  // Whoever counts groups is told of each.
  const shown = tried.length > 0 ? tried : siblings;
  const rows = asTheyWere(reader, id, shown);
  const opening = async (): Promise<Opened | undefined> => {
    const row = await rows.next();
    return row.done === true ? undefined : open(reader, row.value);
  };
  let ahead = opening();
  for (let left = shown.length; left > 0; left -= 1) {
    const opened = await ahead;
    if (opened === undefined) break;
    ahead = opening();
    ahead.catch(() => undefined); // thrown where it is awaited; nobody awaits it when the reader leaves before
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

/** The rollouts in the view asked for. One that was retried meanwhile is shown as it ended before. */
async function* asTheyWere(
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
    // Siblings are never deleted alone: those in between are left out, or were made meanwhile.
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
  /** Of its trajectory; 0 where that is empty or was deleted. */
  readonly end: bigint;
  readonly reading: AsyncGenerator<StepsRead, void, undefined> | undefined;
  readonly first: Promise<IteratorResult<StepsRead, void>> | undefined;
}

/** Looks up the trajectory, and begins to read it. */
async function open({ app, caller, view }: StageReader, rollout: Rollout): Promise<Opened> {
  const { trajectoryId } = rollout;
  const found = trajectoryId === '' ? undefined : await app.store.getTrajectory(caller.namespace, trajectoryId);
  if (found === undefined) return { rollout, end: 0n, reading: undefined, first: undefined };
  const reading = readRange(app, caller, found, { startStepNumber: 0n, endStepNumber: undefined, view });
  const first = reading.next();
  first.catch(() => undefined); // thrown where it is awaited
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
    const { steps, nextStepNumber } = read.value;
    if (begins !== undefined && !fitTogether(begins, steps)) {
      yield { rollout: begins, steps: [], rolloutDone: false, groupDone: false, caughtUp: false };
      begins = undefined;
    }
    const done = nextStepNumber >= end;
    yield { rollout: begins, steps, rolloutDone: done, groupDone: done && isLast, caughtUp: false };
    begins = undefined;
    next = reading.next();
  }
  if (end === 0n) yield { rollout: begins, steps: [], rolloutDone: true, groupDone: isLast, caughtUp: false };
}

function fitTogether(rollout: Rollout, steps: readonly StoredStep[]): boolean {
  const bytes = steps.reduce((sum, step) => sum + stepBytes(step), rowBytes(rollout));
  return bytes <= ANSWER_BYTES;
}

/** What is not found any more went with its run, unless the stage is still there. Errors: RUN_DELETED. */
export async function orDeleted<T>(reader: StageReader, reading: Promise<T>): Promise<T> {
  try {
    return await reading;
  } catch (error) {
    if (error instanceof AnabranchError && GONE.has(error.reason)) await stageNow(reader);
    throw error;
  }
}

const GONE: ReadonlySet<string> = new Set(['STAGE_NOT_FOUND', 'GROUP_NOT_FOUND', 'TRAJECTORY_DELETED']);

/** Errors: RUN_DELETED. */
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
