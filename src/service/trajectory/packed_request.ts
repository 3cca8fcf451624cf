import type { Message } from '@bufbuild/protobuf';
import { type PackedEntry, withInlineStates } from '../../domain/step_codec/packed_step.ts';
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

export function fromPacked({ trajectoryId, uid, writerEpoch, steps }: PackedEntry): NewEntry {
  return { trajectoryId, uid: uid || undefined, writerEpoch, ...withInlineStates(steps), tags: [], seal: undefined };
}
