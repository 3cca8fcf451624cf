import type { Caller } from '../../domain/caller.ts';
import { experimentNotFound } from '../../domain/errors.ts';
import { requireConfig } from '../../domain/json.ts';
import type { Experiment } from '../../domain/run.ts';
import type {
  BookView,
  ExperimentChanges,
  ExperimentFilter,
  ExperimentPlace,
  NewExperiment,
} from '../../store/contract/experiment.ts';
import type { IdempotencyKey } from '../../store/contract/idempotency.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { requireNewName } from './fields.ts';
import { experimentBytes } from './row_bytes.ts';

export interface CreateExperimentArgs extends Omit<NewExperiment, 'id'> {
  /** Empty: the server makes one. */
  readonly experimentId: string;
  readonly key: IdempotencyKey | undefined;
}

/** Errors: EXPERIMENT_EXISTS, REQUEST_ID_REUSED, EXPERIMENT_NOT_FOUND. */
export async function createExperiment(app: App, caller: Caller, args: CreateExperimentArgs): Promise<Experiment> {
  const { experimentId, key, ...fields } = args;
  requireConfig(fields.defaultConfigJson, 'default_config_json');
  const id = experimentId || app.ids.uuid();
  return app.store.createExperiment(caller, { ...fields, id }, key);
}

/** By id or by name. Errors: EXPERIMENT_NOT_FOUND. */
export async function getExperiment(app: App, caller: Caller, place: ExperimentPlace): Promise<Experiment> {
  const found = await app.store.getExperiment(caller.namespace, place);
  if (found === undefined) throw experimentNotFound('id' in place ? place.id : place.name);
  return found;
}

export interface ListExperimentsArgs extends PageArgs {
  readonly filter: ExperimentFilter;
  readonly view: BookView;
}

/** Newest first; a page ends early at about 1 MiB. */
export async function listExperiments(
  app: App,
  caller: Caller,
  args: ListExperimentsArgs,
): Promise<PageOf<Experiment>> {
  const { filter, view } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listExperiments(caller.namespace, filter, { limit, after }, view),
      keyOf: ({ key }) => key,
      bytesOf: (experiment) => experimentBytes(experiment, view),
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    view,
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}

export interface UpdateExperimentArgs {
  readonly experimentId: string;
  /** What the mask names; at least one. */
  readonly changes: ExperimentChanges;
}

/** Errors: EXPERIMENT_NOT_FOUND, EXPERIMENT_EXISTS (name). */
export async function updateExperiment(app: App, caller: Caller, args: UpdateExperimentArgs): Promise<Experiment> {
  if (args.changes.name !== undefined) requireNewName(args.changes.name);
  requireConfig(args.changes.defaultConfigJson ?? '', 'default_config_json');
  return app.store.updateExperiment(caller.namespace, args.experimentId, args.changes);
}
