import { archiveInvalid, type SmallStatesPart, type StatePart } from '../../../../domain/archive.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { createStateHasher, type StateHasher } from '../../../../domain/state_digest.ts';
import type { NewState } from '../../../../domain/step.ts';
import type { StateUpload } from '../../../contract/state.ts';
import type { StatesEngine } from '../../log/engine.ts';
import { findStates, Upload } from '../../log/states/states.ts';

/** Bytes of states that wait for the steps that name them. More are stored before these steps. */
const MOST_BYTES = 8 * 1024 * 1024;
/** Memory of a state besides its bytes. */
const STATE_BYTES = 256;

/** A state whose pieces are arriving. */
interface Arriving {
  readonly digest: Digest;
  readonly size: number;
  readonly hasher: StateHasher;
  /** Undefined for a state that is uploaded, or stored already. */
  readonly data: Buffer | undefined;
  readonly upload: StateUpload | undefined;
  at: number;
}

/** The states that arrived for some steps. */
interface TakenStates {
  readonly inline: NewState[];
  readonly small: ReadonlyMap<Digest, Uint8Array>;
  readonly smallBytes: number;
}

/**
 * The states of an archive: those that can be inline wait for the steps that name them, so that they are stored with
 * these; larger ones are stored at once. The digest of each is verified.
 */
export class PendingStates {
  readonly #engine: StatesEngine;
  readonly #namespace: string;
  #arriving: Arriving | undefined;
  /** A state whose bytes do not match its digest. A record must follow that says that it was left out. */
  #mismatched: Digest | undefined;
  #inline = new Map<Digest, NewState>();
  #small = new Map<Digest, Uint8Array>();
  #bytes = 0;
  #smallBytes = 0;
  /** Number of states with rows of their own so far. */
  count = 0n;

  constructor(engine: StatesEngine, namespace: string) {
    this.#engine = engine;
    this.#namespace = namespace;
  }

  /** Errors: ARCHIVE_INVALID. */
  addSmall({ states }: SmallStatesPart): void {
    this.refuseUnfinished();
    for (const { digest, data } of states) {
      this.#small.set(digest, data);
      this.#smallBytes += data.length + STATE_BYTES;
      if (this.#smallBytes > MOST_BYTES) throw archiveInvalid(`state ${digest}`, 'too many states come before steps');
    }
  }

  /** Errors: ARCHIVE_INVALID, STORAGE_FULL. */
  async add({ digest, size, offset, bytes }: StatePart): Promise<void> {
    const place = `state ${digest}`;
    if (size > LIMITS.stateBytes)
      throw archiveInvalid(place, `it has ${size} bytes, at most ${LIMITS.stateBytes} are allowed`);
    const state = offset === 0 ? await this.#begin(digest, size) : this.#arriving;
    if (state?.digest !== digest || state.at !== offset || offset + bytes.length > size) {
      throw archiveInvalid(place, 'its pieces are not in order');
    }
    this.#arriving = state;
    state.hasher.update(bytes);
    state.data?.set(bytes, offset);
    await state.upload?.write(bytes);
    state.at += bytes.length;
    if (state.at === size) await this.#end(state);
  }

  /** Returns the states that arrived since the last call. Errors: ARCHIVE_INVALID. */
  take(): TakenStates {
    this.refuseUnfinished();
    const taken = { inline: [...this.#inline.values()], small: this.#small, smallBytes: this.#smallBytes };
    [this.#inline, this.#small, this.#bytes, this.#smallBytes] = [new Map(), new Map(), 0, 0];
    return taken;
  }

  /** The last state was removed while it was exported. Errors: ARCHIVE_INVALID. */
  leaveOut(digest: Digest): void {
    if (this.#mismatched !== digest) throw archiveInvalid(`state ${digest}`, 'it is left out, and did not precede');
    this.#mismatched = undefined;
  }

  /** Errors: ARCHIVE_INVALID. */
  refuseUnfinished(): void {
    if (this.#mismatched !== undefined)
      throw archiveInvalid(`state ${this.#mismatched}`, 'its bytes have another digest');
    if (this.#arriving === undefined) return;
    throw archiveInvalid(`state ${this.#arriving.digest}`, 'it ends before its size');
  }

  /** Stores states that no imported step has brought, because later steps of the archive may name them. */
  async keep(states: readonly NewState[]): Promise<void> {
    const digests = states.map(({ digest }) => digest);
    const stored = new Set(
      (await findStates(this.#engine, this.#namespace, digests, true)).map(({ digest }) => digest),
    );
    for (const { digest, data } of states) {
      if (stored.has(digest)) continue;
      const upload = new Upload(this.#engine, this.#namespace, undefined);
      await upload.write(data);
      await upload.finish();
    }
  }

  /** Deletes what was uploaded of a state that did not arrive whole. */
  async abort(): Promise<void> {
    const upload = this.#arriving?.upload;
    this.#arriving = undefined;
    await upload?.abort();
  }

  async #begin(digest: Digest, size: number): Promise<Arriving> {
    this.refuseUnfinished();
    const isInline = size <= LIMITS.inlineStateBytes;
    const isStored = !isInline && (await findStates(this.#engine, this.#namespace, [digest], true)).length > 0;
    return {
      digest,
      size,
      hasher: createStateHasher(),
      data: isInline ? Buffer.alloc(size) : undefined,
      upload: isInline || isStored ? undefined : new Upload(this.#engine, this.#namespace, undefined),
      at: 0,
    };
  }

  async #end({ digest, hasher, data, upload }: Arriving): Promise<void> {
    if (hasher.digest() !== digest) {
      this.#mismatched = digest;
      return this.abort();
    }
    this.#arriving = undefined;
    await upload?.finish();
    this.count += 1n;
    if (data === undefined) return;
    this.#inline.set(digest, { digest, data });
    this.#bytes += data.length + STATE_BYTES;
    if (this.#bytes <= MOST_BYTES) return;
    const inline = [...this.#inline.values()];
    [this.#inline, this.#bytes] = [new Map(), 0];
    await this.keep(inline);
  }
}
