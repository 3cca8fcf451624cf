import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, invalidField, stateNotFound } from '../../domain/errors.ts';
import { parseDigest } from '../../domain/ids.ts';
import type { StateInfo } from '../../store/contract/state.ts';
import type { App } from '../../stream/app.ts';
import { stateBytes } from './bytes.ts';

export interface GetStateArgs {
  readonly digest: string;
  readonly offset: bigint;
  /** Undefined: to the end. A range beyond the end is cut. */
  readonly length: bigint | undefined;
}

export interface StateChunk {
  /** In the first chunk only. */
  readonly state: StateInfo | undefined;
  /** At most 256 KiB. */
  readonly chunk: Uint8Array;
}

/** S3, S4: at least one chunk, perhaps an empty one. Errors: STATE_NOT_FOUND, RANGE_BEYOND_END, STATE_CORRUPT. */
export async function* getState(
  app: App,
  caller: Caller,
  args: GetStateArgs,
): AsyncGenerator<StateChunk, void, undefined> {
  const digest = parseDigest(args.digest, 'digest');
  if (args.offset < 0n) throw invalidField('offset', `must be at least 0, not ${args.offset}`);
  if (args.length !== undefined && args.length < 0n)
    throw invalidField('length', `must be at least 0, not ${args.length}`);
  const [info] = await app.store.findStates(caller.namespace, [digest], false);
  if (info === undefined) throw stateNotFound(digest);
  if (args.offset > info.size) throw rangeBeyondState(args.offset, info);
  const from = Number(args.offset);
  const to = args.length === undefined || args.length > info.size - from ? info.size : from + Number(args.length);
  let first: StateInfo | undefined = info;
  for await (const chunk of stateBytes(app.store, caller.namespace, info, from, to)) {
    yield { state: first, chunk };
    first = undefined;
  }
  if (first !== undefined) yield { state: first, chunk: new Uint8Array(0) };
}

function rangeBeyondState(offset: bigint, { digest, size }: StateInfo): AnabranchError {
  return new AnabranchError(
    'RANGE_BEYOND_END',
    `offset is ${offset}, but state ${digest} has ${size} bytes: begin there or before.`,
    {
      metadata: { digest, size: `${size}` },
    },
  );
}
