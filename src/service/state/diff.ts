import type { MessageInitShape } from '@bufbuild/protobuf';
import {
  type DiffStatesRequest,
  type DiffStatesResponseSchema,
  NoPatchReason,
} from '../../../gen/es/anabranch/v1/state_service_pb.js';
import { ChangedRanges } from '../../domain/changed_ranges.ts';
import type { PatchResult } from '../../domain/json_patch.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Call } from '../method.ts';
import { addressOf, contentBytes, type FoundContent, findContent } from './content.ts';
import { fromState } from './get.ts';

type Pieces = AsyncGenerator<Uint8Array, void, undefined>;

/**
 * S7: returns a JSON Patch, or the ranges in which the bytes differ. Errors: STATE_NOT_FOUND, TRAJECTORY_NOT_FOUND,
 * STEP_NOT_FOUND, STATE_CORRUPT.
 */
export async function diffStates(
  request: DiffStatesRequest,
  call: Call,
): Promise<MessageInitShape<typeof DiffStatesResponseSchema>> {
  const { digest, reference, otherDigest, otherReference } = request;
  const address = addressOf(digest, reference);
  const otherAddress = addressOf(otherDigest, otherReference, 'other_digest');
  const [one, other] = await Promise.all([findContent(call, address), findContent(call, otherAddress)]);
  const states = {
    state: fromState(one),
    mediaType: one.mediaType,
    otherState: fromState(other),
    otherMediaType: other.mediaType,
  };
  if (one.digest === other.digest) return { ...states, identical: true };
  const result = await patchOf(call, one, other);
  if ('patchJson' in result) return { ...states, patchJson: result.patchJson };
  const { ranges, isTruncated } = await compareBytes(call, one, other);
  return {
    ...states,
    noPatchReason: NoPatchReason[result.noPatch],
    changedRanges: ranges.map(({ start, end }) => ({ startOffset: BigInt(start), endOffset: BigInt(end) })),
    truncated: isTruncated,
  };
}

async function patchOf(call: Call, one: FoundContent, other: FoundContent): Promise<PatchResult> {
  if (Math.max(one.size, other.size) > LIMITS.patchStateBytes) return { noPatch: 'TOO_LARGE' };
  const load = () => Promise.all([loadShared(call, one), loadShared(call, other)]);
  return call.app.patches.patch(load, call.signal);
}

async function loadShared(call: Call, found: FoundContent): Promise<SharedArrayBuffer> {
  const shared = new SharedArrayBuffer(found.size);
  const bytes = new Uint8Array(shared);
  let offset = 0;
  for await (const piece of contentBytes(call, found)) {
    bytes.set(piece, offset);
    offset += piece.length;
  }
  return shared;
}

/** Reads both states side by side, up to the end of the smaller one. Holds a piece of each. */
async function compareBytes(call: Call, one: FoundContent, other: FoundContent): Promise<ChangedRanges> {
  const changed = new ChangedRanges();
  const common = Math.min(one.size, other.size);
  const pieces = sideBySide(contentBytes(call, one, 0, common), contentBytes(call, other, 0, common));
  for await (const { offset, bytes, otherBytes } of pieces) {
    await call.app.store.slots.take();
    changed.compare(offset, bytes, otherBytes);
    if (changed.isTruncated) break;
  }
  changed.addRest([one.size, other.size]);
  return changed;
}

interface SideBySide {
  readonly offset: number;
  readonly bytes: Uint8Array;
  readonly otherBytes: Uint8Array;
}

/** Yields bytes of both states at equal offsets. Their pieces may have different sizes. */
async function* sideBySide(one: Pieces, other: Pieces): AsyncGenerator<SideBySide, void, undefined> {
  let offset = 0;
  let [left, otherLeft] = [new Uint8Array(), new Uint8Array()] as [Uint8Array, Uint8Array];
  for (;;) {
    if (left.length === 0) left = await nextOf(one);
    if (otherLeft.length === 0) otherLeft = await nextOf(other);
    const length = Math.min(left.length, otherLeft.length);
    if (length === 0) return;
    yield { offset, bytes: left.subarray(0, length), otherBytes: otherLeft.subarray(0, length) };
    offset += length;
    left = left.subarray(length);
    otherLeft = otherLeft.subarray(length);
  }
}

async function nextOf(pieces: Pieces): Promise<Uint8Array> {
  const next = await pieces.next();
  return next.done === true ? new Uint8Array() : next.value;
}
