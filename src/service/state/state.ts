import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { type State, StateSchema } from '../../../gen/es/anabranch/v1/state_pb.js';
import {
  type GetStateRequest,
  GetStateResponseSchema,
  type PutStateRequest,
  PutStateRequestSchema,
  type StateService,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { AnabranchError, invalidField } from '../../domain/errors.ts';
import { digestMismatch, parseDigest } from '../../domain/ids.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { StateInfo, StateUpload } from '../../store/contract/state.ts';
import type { App } from '../../stream/app.ts';
import { type EncodedResponse, withBytes, withSteps } from '../answer/encoded.ts';
import type { Call, Methods } from '../method.ts';
import { addressOf, contentBytes, findContent } from './content.ts';
import { readStates } from './read.ts';
import { getStorageUsage } from './usage.ts';

/** Methods of states (S1 to S12). */
export const stateMethods: Methods<
  typeof StateService,
  'putState' | 'getState' | 'hasStates' | 'readStates' | 'getStorageUsage'
> = {
  async putState(requests, call) {
    const frames = requests[Symbol.asyncIterator]();
    const first = await frames.next();
    if (first.done === true)
      throw invalidField('chunk', 'must be sent in at least one frame; an empty state needs an empty frame');
    call.check(PutStateRequestSchema, first.value);
    const { digest, baseDigest } = first.value;
    const args = { digest, baseDigest, chunks: chunksOf(first.value, frames, call) };
    return { state: fromState(await putState(call.app, call.caller, args)) };
  },

  getState: { messages: getState },

  async hasStates(request, { app, caller }) {
    const digests = new Set(request.digests.map((digest, i) => parseDigest(digest, `digests[${i}]`)));
    return { states: (await app.store.findStates(caller.namespace, [...digests], true)).map(fromState) };
  },

  readStates: { messages: readStates },

  getStorageUsage: { messages: getStorageUsage },
};

/** Returns one chunk at a time, when the store requests it, which bounds the memory (S4). */
async function* chunksOf(
  first: PutStateRequest,
  frames: AsyncIterator<PutStateRequest>,
  { check }: Call,
): AsyncGenerator<Uint8Array> {
  yield first.chunk;
  for (;;) {
    const next = await frames.next();
    if (next.done === true) return;
    check(PutStateRequestSchema, next.value);
    if (next.value.digest !== '') throw invalidField('digest', 'must be set in the first frame only');
    if (next.value.baseDigest !== '') throw invalidField('base_digest', 'must be set in the first frame only');
    yield next.value.chunk;
  }
}

/**
 * Returns at least one chunk (S3, S4). Errors: STATE_NOT_FOUND, TRAJECTORY_NOT_FOUND, STEP_NOT_FOUND,
 * RANGE_BEYOND_END, STATE_CORRUPT.
 */
export async function* getState(
  { digest, reference, offset, length }: GetStateRequest,
  call: Call,
): AsyncGenerator<EncodedResponse, void, undefined> {
  const found = await findContent(call, addressOf(digest, reference));
  const { size, mediaType } = found;
  if (offset > size) throw rangeBeyondState(offset, found);
  const from = Number(offset);
  const to = length === undefined || length > size - from ? size : from + Number(length);
  let others: MessageInitShape<typeof GetStateResponseSchema> = { state: fromState(found), mediaType };
  if (from === to) yield withSteps(GetStateResponseSchema, others, undefined);
  for await (const chunk of contentBytes(call, found, from, to)) {
    yield withBytes(GetStateResponseSchema, others, GetStateResponseSchema.field.chunk, chunk);
    others = {};
  }
}

export function fromState({ digest, size }: StateInfo): State {
  return create(StateSchema, { digest, size: BigInt(size) });
}

function rangeBeyondState(offset: bigint, { digest, size }: StateInfo): AnabranchError {
  return new AnabranchError(
    'RANGE_BEYOND_END',
    `offset is ${offset}, but state ${digest} has ${size} bytes: use an offset of at most ${size}.`,
    { metadata: { digest, size: `${size}` } },
  );
}

interface PutStateArgs {
  /** Digest in the first frame. Optional; empty means unset. */
  readonly digest: string | undefined;
  /** Digest of a state with many equal bytes. Optional; empty means unset. */
  readonly baseDigest?: string;
  /** Pieces of any size. Each is requested when the previous one was written, which bounds the memory. */
  readonly chunks: AsyncIterable<Uint8Array>;
}

/**
 * Stores a state (S4), and resolves when it is durable. Errors: DIGEST_MISMATCH, INVALID_REQUEST (over 256 MiB),
 * STORAGE_FULL, SERVER_DRAINING.
 */
export async function putState(app: App, caller: Caller, args: PutStateArgs): Promise<StateInfo> {
  const stated = args.digest === undefined || args.digest === '' ? undefined : parseDigest(args.digest, 'digest');
  const base = args.baseDigest ? parseDigest(args.baseDigest, 'base_digest') : undefined;
  const upload = app.store.putState(caller.namespace, base);
  try {
    await write(app, upload, args.chunks);
    if (stated !== undefined && stated !== upload.digest()) throw digestMismatch(stated, upload.digest());
    return await upload.finish();
  } catch (error) {
    await abortQuietly(app, upload);
    throw error;
  }
}

/** A2: an upload that waits for its client does not delay a shutdown. Errors: SERVER_DRAINING, INVALID_REQUEST. */
async function write({ drain }: App, upload: StateUpload, chunks: AsyncIterable<Uint8Array>): Promise<void> {
  const iterator = chunks[Symbol.asyncIterator]();
  for (let size = 0; ; ) {
    const next = await drain.race(iterator.next());
    if (next.done === true) return;
    size += next.value.length;
    if (size > LIMITS.stateBytes) throw invalidField('chunk', `a state must have at most ${LIMITS.stateBytes} bytes`);
    await upload.write(next.value);
  }
}

/** Never throws, so that the caller receives the error of the upload. Maintenance removes what remains. */
async function abortQuietly(app: App, upload: StateUpload): Promise<void> {
  try {
    await upload.abort();
  } catch (error) {
    app.logger.warn({ err: error }, 'the data of a failed upload could not be removed now; maintenance will remove it');
  }
}
