import { errorMetadata, reasonOf } from '../../../src/client/errors.ts';
import type { PatientClient } from '../patient_client.ts';
import { batchesOf, type NewStep } from '../step_batches.ts';
import { writesId } from './names.ts';
import { creationOf } from './thread_creation.ts';

/** Another process has appended since. */
const OVERTAKEN = ['STEP_CONFLICT', 'STEP_GAP'];
/** The trajectory takes no more steps: another one follows it. */
const ENDED = ['TRAJECTORY_NOT_FOUND', 'TRAJECTORY_EXISTS', 'TRAJECTORY_SEALED', 'WRITER_FENCED'];

interface Waiting {
  readonly step: NewStep;
  readonly resolve: () => void;
  readonly reject: (error: unknown) => void;
}

/** The pending writes of a thread. Calls that wait are sent together: one message is in flight. */
export class WritesLine {
  readonly #client: PatientClient;
  readonly #threadId: string;
  #generation = 0;
  /** Number of the next step, as far as this process knows. */
  #next = 0n;
  #waiting: Waiting[] = [];
  #isSending = false;

  constructor(client: PatientClient, threadId: string) {
    this.#client = client;
    this.#threadId = threadId;
  }

  /** Resolves when the step is durable. Throws RangeError for a step that is too large; others are stored. */
  async add(step: NewStep): Promise<void> {
    await batchesOf(this.#client, [step]);
    const done = new Promise<void>((resolve, reject) => this.#waiting.push({ step, resolve, reject }));
    if (!this.#isSending) void this.#send();
    await done;
  }

  async #send(): Promise<void> {
    this.#isSending = true;
    while (this.#waiting.length > 0) {
      const taken = this.#waiting;
      this.#waiting = [];
      let sent = 0;
      try {
        const steps = taken.map(({ step }) => step);
        for (const batch of await batchesOf(this.#client, steps)) {
          await this.#append(batch);
          for (const { resolve } of taken.slice(sent, sent + batch.length)) resolve();
          sent += batch.length;
        }
      } catch (error) {
        for (const { reject } of taken.slice(sent)) reject(error);
      }
    }
    this.#isSending = false;
  }

  /** Appends steps. Those of other processes come before or after all of them. */
  async #append(steps: readonly NewStep[]): Promise<void> {
    for (;;) {
      const trajectoryId = writesId(this.#threadId, this.#generation);
      const numbered = steps.map((step, i) => ({ ...step, stepNumber: this.#next + BigInt(i) }));
      const create = creationOf(this.#threadId, trajectoryId);
      try {
        const { nextStepNumber } = await this.#client.append({ trajectoryId, create, steps: numbered });
        this.#next = nextStepNumber;
        return;
      } catch (error) {
        const reason = reasonOf(error) ?? '';
        if (OVERTAKEN.includes(reason)) this.#next = BigInt(errorMetadata(error).next_step_number ?? 0);
        else if (ENDED.includes(reason)) [this.#generation, this.#next] = [this.#generation + 1, 0n];
        else throw error;
      }
    }
  }
}
