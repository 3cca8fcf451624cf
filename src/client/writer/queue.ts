import { WireType } from '@bufbuild/protobuf/wire';
import type { AppendResult } from './contract.ts';

/** Field `steps` of AppendStepsRequest. */
const STEPS_FIELD = 2;

/** A step that is not durable yet. It is encoded once, so that every replay sends the same bytes. */
export interface Entry {
  readonly field: { readonly no: number; readonly wireType: WireType; readonly data: Uint8Array };
  /** False while bytes that the step refers to are being uploaded. */
  ready: boolean;
  /** Settles when the step is durable, or when the writer fails. */
  readonly stored: Deferred<AppendResult>;
}

/**
 * The unacked steps of one writer, in order. An index (`seq`) counts from 0 with the writer's first step, and the
 * step's number is `start + seq`. Indexes never change.
 */
export class StepQueue {
  #entries: (Entry | undefined)[] = [];
  /** Index in #entries of the first unacked step. The acked steps before it are removed in batches. */
  #head = 0;
  #start = 0n;
  #acked = 0;
  #bytes = 0;

  /** Sets the number of the writer's first step. Must be called once, before the first add(). */
  startAt(stepNumber: bigint): void {
    this.#start = stepNumber;
  }

  /** Index of the first unacked step. */
  get acked(): number {
    return this.#acked;
  }

  /** Index of the next step to be appended. */
  get size(): number {
    return this.#acked + this.waiting;
  }

  /** Number of steps that are not durable yet. */
  get waiting(): number {
    return this.#entries.length - this.#head;
  }

  /** Size of the waiting steps on the wire. */
  get waitingBytes(): number {
    return this.#bytes;
  }

  numberOf(seq: number): bigint {
    return this.#start + BigInt(seq);
  }

  /** Returns the index of a step number. Negative for numbers before this writer's first step. */
  indexOf(stepNumber: bigint): number {
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

  /** Resolves all steps before `seq` as durable; `seq` is at most `made`. Returns their size in bytes. */
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
    this.#removeAcked();
    return freed;
  }

  /**
   * Rejects all waiting steps. Unawaited rejections must not end the process, because flush() and close() report them
   * again.
   */
  failAll(error: Error): void {
    for (const entry of this.#entries.slice(this.#head)) {
      entry?.stored.promise.catch(() => undefined);
      entry?.stored.reject(error);
    }
  }

  #removeAcked(): void {
    if (this.#head === this.#entries.length) {
      this.#entries = [];
      this.#head = 0;
    } else if (this.#head >= 1024 && this.#head * 2 >= this.#entries.length) {
      this.#entries = this.#entries.slice(this.#head);
      this.#head = 0;
    }
  }
}

/** A promise together with the functions that settle it. (`Promise.withResolvers` needs Node 22.) */
export class Deferred<T> {
  readonly promise: Promise<T>;
  resolve!: (value: T) => void;
  reject!: (reason: unknown) => void;

  constructor() {
    this.promise = new Promise<T>((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }
}
