import type { Caller } from '../../domain/caller.ts';
import { AnabranchError } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import type { Group, Rollout } from '../../domain/rollout.ts';
import type { Stage } from '../../domain/run.ts';
import type { View } from '../../store/contract/request.ts';
import { rolloutCursor } from '../../store/contract/rollout.ts';
import type { EncodedSteps } from '../../store/contract/step.ts';
import type { App } from '../app.ts';
import type { Blob } from '../steps/inline_states.ts';
import { readEach, type ShownOfCall, type Wanted } from '../trajectories/read_each.ts';

/** Rollouts read by one statement. In FULL view they can be large. */
const FETCH = { BASIC: 256, FULL: 16 };

/** A call that reads the rollouts of a stage. */
export interface StageReader {
  readonly app: App;
  readonly caller: Caller;
  /** The stage when the call began. */
  readonly stage: Stage;
  readonly view: View;
  /** What the call shows of steps. Groups share the states that were sent. */
  readonly shown: ShownOfCall;
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
  /** States that the next steps name. */
  readonly blobs: readonly Blob[];
}

/**
 * Returns the rollouts of a group, as they were when this call began, with the steps of their attempts. Omits rollouts
 * without an attempt, unless the group has no others. Returns false without messages if some rollouts are not `ready`.
 * Reads the next rollouts while some are sent.
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
  let left = shown.length;
  const reads = readEach(reader.app, reader.caller, withTrajectories(reader, id, shown), reader.shown);
  for (;;) {
    const next = await orDeleted(reader, reads.next());
    if (next.done === true) return true;
    const { item, isFirst, steps, blobs = [], isDone, failure } = next.value;
    if (failure !== undefined) await orDeleted(reader, Promise.reject(failure));
    if (isDone) left -= 1;
    const groupDone = isDone && left === 0;
    yield { rollout: isFirst ? item : undefined, steps, rolloutDone: isDone, groupDone, caughtUp: false, blobs };
  }
}

/** Returns the rollouts in the requested view, with the steps of their attempts, a few at a time. */
async function* withTrajectories(
  reader: StageReader,
  groupId: string,
  shown: readonly Rollout[],
): AsyncGenerator<readonly Wanted<Rollout>[], void, undefined> {
  const { app, caller } = reader;
  let page: Rollout[] = [];
  for await (const rollout of inRequestedView(reader, groupId, shown)) {
    page.push(rollout);
    if (page.length < FETCH.FULL && rollout.key !== shown.at(-1)?.key) continue;
    const ids = page.flatMap(({ trajectoryId }) => (trajectoryId === '' ? [] : [trajectoryId]));
    const found = await app.store.findTrajectories(caller.namespace, { ids });
    const byId = new Map(found.map((sized) => [sized.trajectory.id, sized]));
    yield page.map((item) => {
      const sized = byId.get(item.trajectoryId);
      if (sized === undefined) return { item, range: undefined, bytes: 0 };
      const { trajectory, stepBytes } = sized;
      return { item, range: { trajectory, from: 0n, to: trajectory.nextStepNumber }, bytes: stepBytes };
    });
    page = [];
  }
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
