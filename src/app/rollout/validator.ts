import type { Caller } from '../../domain/caller.ts';
import { invalidField, validatorNotFound } from '../../domain/errors.ts';
import type { Validator } from '../../domain/rollout.ts';
import type { ValidatorUpsert } from '../../store/contract/task.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { validatorBytes } from './row_bytes.ts';

/** All or none; what is not given never overwrites. Errors: TASK_NOT_FOUND. */
export async function upsertValidators(
  app: App,
  caller: Caller,
  { validators }: { readonly validators: readonly Omit<ValidatorUpsert, 'newId'>[] },
): Promise<{ readonly ids: readonly string[]; readonly created: number }> {
  const seen = new Set<string>();
  const upserts = validators.map((validator, i) => {
    const field = `validators[${i}]`;
    const name = JSON.stringify([validator.taskId, validator.type]);
    if (seen.has(name)) throw invalidField(`${field}.type`, 'must be there once for a task in a call');
    seen.add(name);
    return { ...validator, newId: app.ids.uuid() };
  });
  return app.store.upsertValidators(caller.namespace, upserts);
}

/** Errors: VALIDATOR_NOT_FOUND. */
export async function getValidator(
  app: App,
  caller: Caller,
  { validatorId }: { readonly validatorId: string },
): Promise<Validator> {
  const found = await app.store.getValidator(caller.namespace, validatorId);
  if (found === undefined) throw validatorNotFound(validatorId);
  return found;
}

/** By type; a page ends early at about 1 MiB. Errors: TASK_NOT_FOUND. */
export async function listValidators(
  app: App,
  caller: Caller,
  args: PageArgs & { readonly taskId: string },
): Promise<PageOf<Validator>> {
  const { taskId } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage<Validator, string>(
    {
      fetch: (limit, after) => app.store.listValidators(caller.namespace, taskId, { limit, after }),
      keyOf: ({ type }) => type,
      bytesOf: validatorBytes,
    },
    pageLimit(args.pageSize),
    cursor?.[0],
    'FULL',
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [page.last ?? '']) : '' };
}
