import type { Caller } from '../../domain/caller.ts';
import { environmentNotFound } from '../../domain/errors.ts';
import type { Status, Verb } from '../../domain/lifecycle.ts';
import type { Environment } from '../../domain/rollout.ts';
import type { NewEnvironment } from '../../store/contract/environment.ts';
import type { IdempotencyKey } from '../../store/contract/idempotency.ts';
import type { Said } from '../../store/contract/run.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { environmentBytes } from './row_bytes.ts';

export interface CreateEnvironmentArgs extends Omit<NewEnvironment, 'id'> {
  /** Empty: the server makes one. */
  readonly environmentId: string;
  readonly key: IdempotencyKey | undefined;
}

/** Errors: RUN_NOT_FOUND, ENVIRONMENT_EXISTS, REQUEST_ID_REUSED, ENVIRONMENT_NOT_FOUND. */
export async function createEnvironment(app: App, caller: Caller, args: CreateEnvironmentArgs): Promise<Environment> {
  const { environmentId, key, ...fields } = args;
  const id = environmentId || app.ids.uuid();
  return app.store.createEnvironment(caller, { ...fields, id }, key);
}

/** Errors: ENVIRONMENT_NOT_FOUND. */
export async function getEnvironment(
  app: App,
  caller: Caller,
  { environmentId }: { readonly environmentId: string },
): Promise<Environment> {
  const found = await app.store.getEnvironment(caller.namespace, environmentId);
  if (found === undefined) throw environmentNotFound(environmentId);
  return found;
}

export interface ListEnvironmentsArgs extends PageArgs {
  readonly of: { readonly runId: string } | { readonly rolloutId: string };
  /** Undefined: any. */
  readonly statuses: readonly Status[] | undefined;
}

/** Newest first; a page ends early at about 1 MiB. Errors: RUN_NOT_FOUND, ROLLOUT_NOT_FOUND. */
export async function listEnvironments(
  app: App,
  caller: Caller,
  args: ListEnvironmentsArgs,
): Promise<PageOf<Environment>> {
  const { of, statuses } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listEnvironments(caller.namespace, of, statuses, { limit, after }),
      keyOf: ({ key }) => key,
      bytesOf: environmentBytes,
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    'FULL',
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}

export interface MoveEnvironmentArgs {
  readonly environmentId: string;
  readonly verb: Exclude<Verb, 'reopen'>;
  readonly said: Said;
  /** Undefined: it stays. */
  readonly externalId?: string | undefined;
}

/** L2, L5. Errors: ENVIRONMENT_NOT_FOUND, ILLEGAL_TRANSITION, RESULT_CONFLICT. */
export async function moveEnvironment(app: App, caller: Caller, args: MoveEnvironmentArgs): Promise<Environment> {
  const { environmentId, verb, said, externalId } = args;
  return app.store.moveEnvironment(caller, environmentId, verb, said, externalId);
}
