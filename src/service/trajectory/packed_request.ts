import type { Message } from '@bufbuild/protobuf';
import type { AppendBatchRequest } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type PackedEntry, withInlineStates } from '../../domain/step_codec/packed_step.ts';
import { passBatch } from '../../domain/step_codec/pass.ts';
import type { NewEntry } from '../../stream/append/entries.ts';

/** A request of AppendStep or AppendBatch whose steps were checked and packed without decoding them. */
export class PackedRequest<Request extends Message = Message> {
  /** In the order of the request. Undefined: this entry of the message must be decoded. */
  readonly entries: readonly (PackedEntry | undefined)[];
  /** The message, if it has entries that must be decoded: its rules must be checked. */
  readonly unchecked: Request | undefined;
  readonly #decode: () => Request;
  #message: Request | undefined;

  /** Errors: those of `decode`, if an entry is undefined. */
  constructor(entries: PackedRequest['entries'], decode: () => Request) {
    this.entries = entries;
    this.#decode = decode;
    this.unchecked = entries.includes(undefined) ? this.message : undefined;
  }

  /** Errors of entries name fields of it, so it is decoded when the first one fails. */
  get message(): Request {
    this.#message ??= this.#decode();
    return this.#message;
  }
}

/**
 * Returns an AppendBatchRequest whose entries were packed as far as possible. Undefined: all of it must be decoded.
 * Entries are decoded one by one: within a whole message, a malformed entry would reach into the next one.
 */
export function packBatch(
  batch: Uint8Array,
  decode: (entries: readonly Uint8Array[]) => AppendBatchRequest,
): PackedRequest<AppendBatchRequest> | undefined {
  const passed = passBatch(batch);
  if (passed === undefined) return undefined;
  const { entries, bounds } = passed;
  try {
    return new PackedRequest(entries, () => decode(bounds.map(([from, to]) => batch.subarray(from, to))));
  } catch {
    return undefined; // Decoding the whole message explains the error.
  }
}

export function fromPacked({ trajectoryId, uid, writerEpoch, steps }: PackedEntry): NewEntry {
  return { trajectoryId, uid: uid || undefined, writerEpoch, ...withInlineStates(steps), tags: [], seal: undefined };
}
