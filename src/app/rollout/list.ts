import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import type { Rollout } from '../../domain/rollout.ts';
import type { BookView } from '../../store/contract/experiment.ts';
import type { RolloutCursor, RolloutFilter } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { rolloutBytes } from './row_bytes.ts';

export interface ListRolloutsArgs extends PageArgs {
  readonly filter: RolloutFilter;
  readonly view: BookView;
}

/**
 * Lists rollouts by stage, group number and number, or across runs the newest first; a page ends early at about 1 MiB.
 * Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND, GROUP_NOT_FOUND.
 */
export async function listRollouts(app: App, caller: Caller, args: ListRolloutsArgs): Promise<PageOf<Rollout>> {
  const { filter, view } = args;
  requireFilter(filter);
  const cursor = readPageToken(args);
  const page = await gatherPage<Rollout, RolloutCursor>(
    {
      fetch: (limit, after) => app.store.listRollouts(caller.namespace, filter, { limit, after }, view),
      keyOf: filter.of === undefined ? ({ key }) => ({ key }) : placeOf,
      bytesOf: (rollout) => rolloutBytes(rollout, view),
    },
    pageLimit(args.pageSize),
    cursor && readCursor(filter, cursor),
    view,
  );
  const { last } = page;
  if (!page.more || last === undefined) return { items: page.items, nextPageToken: '' };
  const place = ('key' in last ? [last.key] : [last.stage, last.groupNumber, last.number]).map((part) => `${part}`);
  return { items: page.items, nextPageToken: makePageToken(args.binding, place) };
}

function readCursor(filter: RolloutFilter, cursor: Parameters<typeof cursorInt>[0]): RolloutCursor {
  if (filter.of === undefined) return { key: cursorInt(cursor, 0) };
  return { stage: cursorInt(cursor, 0), groupNumber: cursorInt(cursor, 1), number: cursorInt(cursor, 2) };
}

/** Where a rollout stands in a list. */
export function placeOf({ stage, group, number }: Rollout): RolloutCursor {
  return { stage: stage.key, groupNumber: group.number, number };
}

function requireFilter(filter: RolloutFilter): void {
  if (Number.isNaN(filter.minReward)) throw invalidField('min_reward', 'must be a number, not NaN');
  if (Number.isNaN(filter.maxReward)) throw invalidField('max_reward', 'must be a number, not NaN');
  if (filter.of !== undefined || filter.taskId !== undefined || filter.workerId !== undefined) return;
  throw invalidField('run_id', 'none of run_id, stage_id, group_id, task_id and worker_id is set: set at least one');
}
