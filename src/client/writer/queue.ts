import { WireType } from '@bufbuild/protobuf/wire';
import { Deferred } from '../deferred.ts';
import type { AppendResult } from './contract.ts';

/** Field `steps` of AppendStepsRequest. */
const STEPS_FIELD = 2;

/** A step that is not durable yet, encoded once: every replay sends the same bytes. */
export interface Entry {
  readonly field: { readonly no: number; readonly wireType: WireType; readonly data: Uint8Array };
  /** False while bytes that the step names are still being put. */
  ready: boolean;
  /** Settles when the step is durable, or when it never will be. */
  readonly stored: Deferred<AppendResult>;
}

/**
 * The unacked steps of one writer, in order. A place in it (`seq`) counts from 0 with the writer's first step; the step's
 * number is `start + seq`. Never renumbers.
 */
export class StepQueue {
  #entries: (Entry | undefined)[] = [];
  /** Where in #entries the first unacked one is; those before it are gone, their places go in batches. */
  #head = 0;
  #start = 0n;
  #acked = 0;
  #bytes = 0;

  /** The number of the first step this writer makes; said once, before the first add(). */
  startAt(stepNumber: bigint): void {
    this.#start = stepNumber;
  }

  /** Place of the first unacked step. */
  get acked(): number {
    return this.#acked;
  }

  /** Place of the next step to be made. */
  get made(): number {
    return this.#acked + this.waiting;
  }

  /** How many steps are not durable yet. */
  get waiting(): number {
    return this.#entries.length - this.#head;
  }

  /** Their size on the wire. */
  get waitingBytes(): number {
    return this.#bytes;
  }

  numberOf(seq: number): bigint {
    return this.#start + BigInt(seq);
  }

  /** The place of a number; negative for numbers before this writer's first. */
  placeOf(stepNumber: bigint): number {
    return Number(stepNumber - this.#start);
  }

  at(seq: number): Entry {
    return this.#entries[this.#head + seq - this.#acked]!;
  }

  add(bytes: Uint8Array, ready: boolean): Entry {
    const field = { no: STEPS_FIELD, wireType: WireType.LengthDelimited, data: bytes };
    const entry: Entry = { field, ready, stored: new Deferred() };
    this.#entries.push(entry);
    this.#bytes += bytes.byteLength;
    return entry;
  }

  /** Everything before `seq` is durable; `seq` is at most `made`. Returns how many bytes that were. */
  ackTo(seq: number): number {
    const nextStepNumber = this.numberOf(seq);
    let freed = 0;
    for (; this.#acked < seq; this.#acked += 1, this.#head += 1) {
      const entry = this.#entries[this.#head]!;
      this.#entries[this.#head] = undefined;
      freed += entry.field.data.byteLength;
      entry.stored.resolve({ stepNumber: this.numberOf(this.#acked), nextStepNumber });
    }
    this.#bytes -= freed;
    this.#letGo();
    return freed;
  }

  /** Nothing more will be stored. Rejections that nobody awaits are taken as heard: flush() and close() tell them again. */
  failAll(error: Error): void {
    for (const entry of this.#entries.slice(this.#head)) {
      entry?.stored.promise.catch(() => undefined);
      entry?.stored.reject(error);
    }
  }

  #letGo(): void {
    if (this.#head === this.#entries.length) {
      this.#entries = [];
      this.#head = 0;
    } else if (this.#head >= 1024 && this.#head * 2 >= this.#entries.length) {
      this.#entries = this.#entries.slice(this.#head);
      this.#head = 0;
    }
  }
}
