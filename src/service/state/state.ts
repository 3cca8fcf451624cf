import {
  type PutStateRequest,
  PutStateRequestSchema,
  type StateService,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { parseDigest } from '../../domain/ids.ts';
import type { Call, Methods } from '../method.ts';
import { fromState, getState } from './get.ts';
import { putState } from './put.ts';
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
