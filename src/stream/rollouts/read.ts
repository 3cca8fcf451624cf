import type { Caller } from '../../domain/caller.ts';
import { groupNotFound } from '../../domain/errors.ts';
import { isTerminal } from '../../domain/lifecycle.ts';
import type { Group } from '../../domain/rollout.ts';
import type { View } from '../../store/contract/request.ts';
import type { App } from '../app.ts';
import { findStage } from '../find.ts';
import { LookSchedule } from '../look_schedule.ts';
import { shownOfCall } from '../trajectories/read_each.ts';
import { orDeleted, type RolloutsRead, readGroup, type StageReader, stageNow } from './read_group.ts';

/** Groups read by one statement. */
const GROUPS = 256;

export interface ReadRolloutsArgs {
  /** Empty with `groupId`. */
  readonly stageId: string;
  /** Returns the rollouts of this group at once, whatever their status. Default: the groups of the stage. */
  readonly groupId?: string;
  /** Returns only groups whose rollouts are all COMPLETED. Default: all groups whose rollouts are all terminal. */
  readonly completeGroupsOnly: boolean;
  /**
   * Waits for more groups until the queue of the stage is closed and no group is left, or until the stage or its run is
   * terminal and no worker holds a rollout.
   */
  readonly follow: boolean;
  readonly view: View;
  /** States with at most this many bytes are returned with the steps. 0: none. */
  readonly inlineBytes: number;
  /** Ends the wait when it is aborted. */
  readonly signal: AbortSignal;
}

/**
 * Q6: returns the rollouts of a stage with their steps, group by group as groups become terminal, each group once.
 * Reads the groups again after each hint and poll, so no hint needs to be reliable. Errors: STAGE_NOT_FOUND,
 * GROUP_NOT_FOUND, RUN_DELETED, TRAJECTORY_DELETED, SERVER_DRAINING.
 */
export async function* readRollouts(
  app: App,
  caller: Caller,
  args: ReadRolloutsArgs,
): AsyncGenerator<RolloutsRead, void, undefined> {
  const group = args.groupId ? await findGroup(app, caller, args.groupId) : undefined;
  const stage = await findStage(app, caller, group?.stage.id ?? args.stageId);
  const reader: StageReader = { app, caller, stage, view: args.view, shown: shownOfCall(app, caller, args) };
  if (group !== undefined) {
    yield* readGroup(reader, group, () => true);
    return;
  }
  if (!args.follow) {
    yield* readEnded(reader, args, new Set());
    return;
  }
  const schedule = new LookSchedule(app.changes, app.settings);
  // Subscribes before the first look, so that groups that end during the look cause another one.
  schedule.listen((listener) => app.changes.onRun(stage.run.key, listener), app.drain, args.signal);
  try {
    yield* follow(reader, args, schedule);
  } finally {
    schedule.stop();
  }
}

async function* follow(
  reader: StageReader,
  args: ReadRolloutsArgs,
  schedule: LookSchedule,
): AsyncGenerator<RolloutsRead, void, undefined> {
  const sent = new Set<bigint>();
  let caughtUp = false;
  let overSince: number | undefined;
  while (!args.signal.aborted) {
    reader.app.drain.throwIfBegun();
    schedule.beginLook();
    // The stage is read before its groups: no rollout is created after its queue was closed.
    const { status, queueCloseTime } = await stageNow(reader);
    const before = sent.size;
    const remaining = yield* readEnded(reader, args, sent);
    if (!caughtUp || sent.size > before) {
      schedule.sent();
      yield CAUGHT_UP;
      caughtUp = true;
    }
    if (queueCloseTime !== undefined && remaining === 'NONE') return;
    // Queued rollouts of an ended stage are not claimed (Q4), except by a claim that read the stage before it ended.
    const isOver = remaining !== 'HELD' && (isTerminal(status) || (await hasRunEnded(reader)));
    if (!isOver) overSince = undefined;
    else if (overSince === undefined) overSince = performance.now();
    else if (performance.now() - overSince >= reader.app.settings.claimMostMs) return;
    // Whether the stage is over depends on the time too.
    while (!(await schedule.nextLookOrTick()) && overSince === undefined) {
      if (!schedule.progressDue) continue;
      schedule.sent();
      yield CAUGHT_UP;
    }
  }
}

const CAUGHT_UP: RolloutsRead = Object.freeze({
  rollout: undefined,
  steps: undefined,
  rolloutDone: false,
  groupDone: false,
  caughtUp: true,
  blobs: [],
});

async function hasRunEnded({ app, caller, stage }: StageReader): Promise<boolean> {
  const run = await app.store.getRun(caller.namespace, { id: stage.run.id });
  return run !== undefined && isTerminal(run.status);
}

/** Errors: GROUP_NOT_FOUND. */
async function findGroup({ store }: App, { namespace }: Caller, id: string): Promise<Group> {
  const found = await store.getGroup(namespace, { id });
  if (found === undefined) throw groupNotFound(id);
  return found;
}

/** What remains of a stage: nothing, only queued rollouts, or rollouts that workers hold. */
type Remaining = 'NONE' | 'QUEUED' | 'HELD';

/**
 * Yields the rollouts of ended groups that are not in `sent`, and adds these groups to it. Returns what remains of the
 * stage.
 */
async function* readEnded(
  reader: StageReader,
  { completeGroupsOnly, signal }: ReadRolloutsArgs,
  sent: Set<bigint>,
): AsyncGenerator<RolloutsRead, Remaining, undefined> {
  const { app, caller, stage } = reader;
  let remaining: Remaining = 'NONE';
  let after: bigint | undefined;
  for (;;) {
    const page = { limit: GROUPS, after };
    const groups = await orDeleted(reader, app.store.listGroups(caller.namespace, stage.id, page, 'BASIC'));
    for (const group of groups) {
      if (signal.aborted) return remaining;
      app.drain.throwIfBegun();
      if (sent.has(group.key) || isEmpty(group)) continue;
      if (!hasEnded(group)) remaining = remaining === 'HELD' || group.statistics.live > 0n ? 'HELD' : 'QUEUED';
      else if (!completeGroupsOnly || isComplete(group)) {
        const shown = yield* readGroup(reader, group, ({ status }) =>
          completeGroupsOnly ? status === 'COMPLETED' : isTerminal(status),
        );
        if (shown) sent.add(group.key);
        else remaining = 'HELD'; // a rollout was retried meanwhile, so the group is read again
      }
    }
    after = groups.at(-1)?.number;
    if (groups.length < GROUPS) return remaining;
  }
}

function isEmpty({ statistics }: Group): boolean {
  const { pending, live, completed, failed, cancelled } = statistics;
  return pending + live + completed + failed + cancelled === 0n;
}

function hasEnded({ statistics: { pending, live } }: Group): boolean {
  return pending === 0n && live === 0n;
}

function isComplete({ statistics: { failed, cancelled } }: Group): boolean {
  return failed === 0n && cancelled === 0n;
}
