import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, stageNotFound } from '../../domain/errors.ts';
import type { Stage, StageKind } from '../../domain/run.ts';
import type { BookView } from '../../store/contract/experiment.ts';
import type { NewStage, StageChanges, StageFilter, StagePlace } from '../../store/contract/stage.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { stageBytes } from './row_bytes.ts';

/** One row however many race. Errors: RUN_NOT_FOUND. */
export async function getOrCreateStage(
  app: App,
  caller: Caller,
  args: Omit<NewStage, 'id'>,
): Promise<{ readonly stage: Stage; readonly created: boolean }> {
  return app.store.getOrCreateStage(caller, { ...args, id: app.ids.uuid() });
}

/** Errors: STAGE_NOT_FOUND. */
export async function getStage(app: App, caller: Caller, place: StagePlace): Promise<Stage> {
  const found = await app.store.getStage(caller.namespace, place);
  if (found !== undefined) return found;
  throw stageNotFound('id' in place ? place.id : `${place.kind} ${place.number} of run ${place.runId}`);
}

export interface ListStagesArgs extends PageArgs {
  readonly runId: string;
  readonly filter: StageFilter;
  readonly view: BookView;
}

/** In the order of making; a page ends early at about 1 MiB. Errors: RUN_NOT_FOUND. */
export async function listStages(app: App, caller: Caller, args: ListStagesArgs): Promise<PageOf<Stage>> {
  const { runId, filter, view } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listStages(caller.namespace, runId, filter, { limit, after }, view),
      keyOf: ({ key }) => key,
      bytesOf: (stage) => stageBytes(stage, view),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    view,
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}

export interface UpdateStageArgs {
  readonly stageId: string;
  /** What the mask names; at least one. */
  readonly changes: StageChanges;
}

/** Metrics and timings are merged by key. Errors: STAGE_NOT_FOUND. */
export async function updateStage(app: App, caller: Caller, { stageId, changes }: UpdateStageArgs): Promise<Stage> {
  return app.store.updateStage(caller.namespace, stageId, changes);
}

/** Errors: STAGE_NOT_FOUND. */
export async function closeQueue(app: App, caller: Caller, args: { readonly stageId: string }): Promise<Stage> {
  return app.store.closeQueue(caller.namespace, args.stageId);
}

/** C-33: the stage to resume from. Errors: RUN_NOT_FOUND, STAGE_NOT_FOUND. */
export async function getLatestCheckpointedStage(
  app: App,
  caller: Caller,
  { runId, kind }: { readonly runId: string; readonly kind: StageKind },
): Promise<Stage> {
  const found = await app.store.getLatestCheckpointedStage(caller.namespace, runId, kind);
  if (found !== undefined) return found;
  throw new AnabranchError(
    'STAGE_NOT_FOUND',
    `Run ${runId} has no ${kind} stage that is COMPLETED and has a model_checkpoint_uri: begin at the first.`,
    { metadata: { run: runId } },
  );
}
