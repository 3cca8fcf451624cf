import type { Caller } from '../../domain/caller.ts';
import type { Rollout, Validation, ValidationOverride } from '../../domain/rollout.ts';
import type { NewOverride, NewValidation } from '../../store/contract/rollout.ts';
import type { App } from '../app.ts';
import { gatherPage } from '../page.ts';
import { cursorInt, makePageToken, type PageArgs, type PageOf, pageLimit, readPageToken } from '../page_token.ts';
import { overrideBytes } from './row_bytes.ts';

export interface RecordValidationArgs {
  readonly rolloutId: string;
  /** Undefined: the last one that began. */
  readonly attempt: number | undefined;
  readonly validation: NewValidation;
}

/** M3: one of each name and attempt; the verdict moves with it. Errors: ROLLOUT_NOT_FOUND, NO_ATTEMPT. */
export async function recordValidation(
  app: App,
  caller: Caller,
  { rolloutId, attempt, validation }: RecordValidationArgs,
): Promise<{ readonly rollout: Rollout; readonly validation: Validation }> {
  return app.store.recordValidation(caller.namespace, rolloutId, attempt, validation);
}

export interface OverrideValidationArgs extends NewOverride {
  readonly rolloutId: string;
  /** Undefined: the last one that began. */
  readonly attempt: number | undefined;
}

/** M3: the verdict of an attempt by hand, or its withdrawal; kept in a log. Errors: ROLLOUT_NOT_FOUND, NO_ATTEMPT. */
export async function overrideValidation(
  app: App,
  caller: Caller,
  { rolloutId, attempt, ...override }: OverrideValidationArgs,
): Promise<{ readonly rollout: Rollout; readonly override: ValidationOverride }> {
  return app.store.overrideValidation(caller, rolloutId, attempt, override);
}

/** Newest first; a page ends early at about 1 MiB. Errors: ROLLOUT_NOT_FOUND. */
export async function listValidationOverrides(
  app: App,
  caller: Caller,
  args: PageArgs & { readonly rolloutId: string },
): Promise<PageOf<ValidationOverride>> {
  const { rolloutId: id } = args;
  const cursor = readPageToken(args);
  const page = await gatherPage(
    {
      fetch: (limit, after) => app.store.listValidationOverrides(caller.namespace, id, { limit, after }),
      keyOf: ({ ordinal }) => ordinal,
      bytesOf: overrideBytes,
    },
    pageLimit(args.pageSize),
    cursor === undefined ? undefined : cursorInt(cursor, 0),
    'FULL',
  );
  return { items: page.items, nextPageToken: page.more ? makePageToken(args.binding, [`${page.last}`]) : '' };
}
