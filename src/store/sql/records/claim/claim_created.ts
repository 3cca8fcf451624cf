import { AnabranchError, trajectoryNotFound } from '../../../../domain/errors.ts';
import type { Claim, NewClaims } from '../../../contract/rollout.ts';
import { Contended } from '../../../contract/store.ts';
import { inOneRoundTrip } from '../../kit/together.ts';
import type { CallerTransaction } from '../../kit/transaction.ts';
import { readStart } from '../rollout/rows.ts';
import type { KeptStage } from '../stage/keys.ts';
import { lockByKey } from './by_key.ts';
import { createClaims, type Granted, previewClaims } from './create.ts';
import type { QueuedRow } from './queue.ts';
import { readContexts } from './stage_contexts.ts';
import { type FoundPoint, holdStartPoints, type LockedStartPoint, nameOf } from './start_points.ts';
import { readTasks } from './tasks.ts';

/**
 * Claims rollouts of one stage that this transaction has created, all of them, in order of key. Errors:
 * STAGE_NOT_CLAIMABLE, CLAIMS_TOO_LARGE, TRAJECTORY_NOT_FOUND and BRANCH_TOO_DEEP (start point).
 */
export async function claimCreated(
  tx: CallerTransaction,
  stage: KeptStage,
  keys: readonly bigint[],
  claim: NewClaims,
): Promise<Claim[]> {
  if (keys.length === 0) return [];
  const rows = (await lockByKey(tx, keys)).sort((a, b) => (a.key < b.key ? -1 : 1));
  const [contexts, points, tasks] = await inOneRoundTrip([
    readContexts(tx, rows),
    holdStartPoints(
      tx,
      rows.flatMap((row) => readStart(row) ?? []),
    ),
    readTasks(tx, rows),
  ]);
  const context = contexts.get(stage.key);
  if (context === undefined) throw stageNotClaimable(stage);
  const request = { ...claim, caller: tx.caller, key: undefined };
  const granted = rows.map((row, i): Granted => {
    return { row, context, point: pointOf(row, points), at: 0, request, ids: claim.trajectories[i]! };
  });
  const fitting = claim.countFitting(previewClaims(granted, tasks, tx.now));
  if (fitting < granted.length) throw claimsTooLarge(granted.length, fitting);
  return (await createClaims(tx, granted, tasks)).value;
}

/** A claim from the queue skips or fails a rollout that cannot begin. This one is refused with its creation. */
function pointOf(row: QueuedRow, points: ReadonlyMap<string, FoundPoint>): LockedStartPoint | undefined {
  const start = readStart(row);
  if (start === undefined) return undefined;
  const point = points.get(nameOf(start));
  if (point === 'missing') throw trajectoryNotFound(start.trajectoryId);
  if (point instanceof AnabranchError) throw point;
  if (point === 'busy') {
    throw new Contended(
      'DATABASE_UNAVAILABLE',
      `A deletion holds the trajectory of start point ${start.trajectoryId}. Nothing was stored. Retry the call.`,
    );
  }
  return point;
}

function stageNotClaimable({ id, status, runStatus }: KeptStage): AnabranchError {
  return new AnabranchError(
    'STAGE_NOT_CLAIMABLE',
    `Stage ${id} is ${status} and its run is ${runStatus}, so its rollouts cannot be claimed. None was created. Resume the run, and reopen what has ended, first, or create the rollouts without \`claim\`.`,
    { metadata: { stage: id, stage_status: status, run_status: runStatus } },
  );
}

function claimsTooLarge(count: number, fitting: number): AnabranchError {
  return new AnabranchError(
    'CLAIMS_TOO_LARGE',
    `The claims of ${count} rollouts, with their tasks and validators, do not fit into one response. None was created. Create at most ${fitting} rollouts in a call with \`claim\`.`,
    { metadata: { rollouts: `${fitting}` } },
  );
}
