import type { Step } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import type { AnabranchClient } from '../../../src/client/index.ts';
import type { Follow, History, SeenStep } from './history.ts';
import { contentOf } from './steps.ts';

/** Reads from `from` to the end and records the result; a failed call is not recorded. */
export async function readOnce(
  history: History,
  client: AnabranchClient,
  { reader, trajectory, from }: { reader: string; trajectory: string; from: bigint },
): Promise<void> {
  const begin = history.tick();
  const got: SeenStep[] = [];
  const call = client.trajectories.readSteps({ trajectoryId: trajectory, startStepNumber: from }, { timeoutMs: 5_000 });
  for await (const { steps } of call) got.push(...steps.map(seen));
  history.reads.push({ reader, trajectory, from, begin, end: history.tick(), got });
}

/** A follower without a helper: after a cut it continues at the last number + 1, on another server if there is one. */
export class Follower {
  readonly #history: History;
  readonly #follow: Follow;
  readonly #left = new AbortController();
  #reached: { readonly end: bigint; readonly done: () => void } | undefined;

  constructor(history: History, follower: string, trajectory: string, from: bigint) {
    this.#history = history;
    this.#follow = { follower, trajectory, from, got: [], marks: [], stayed: false };
    history.follows.push(this.#follow);
  }

  /** Follows until it is told to stop. `client` returns the client for each call. */
  async run(client: () => AnabranchClient, pause: () => Promise<unknown>): Promise<void> {
    while (!this.#left.signal.aborted) {
      try {
        await this.#call(client());
      } catch {
        // Cut, drained, or its server was killed: the next call continues at the next number.
        await pause();
      }
    }
  }

  /** Resolves when everything below `end` has arrived; rejects after `ms`. Then it has stayed to the end. */
  async reach(end: bigint, ms: number): Promise<void> {
    this.#follow.stayed = true;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const late = () =>
      reject(new Error(`${this.#follow.follower} got to ${this.#next}, not to ${end}, within ${ms} ms`));
    const timer = setTimeout(late, ms);
    this.#reached = { end, done: resolve };
    this.#tellReached();
    await promise.finally(() => clearTimeout(timer));
  }

  leave(): void {
    this.#left.abort();
  }

  get #next(): bigint {
    return this.#follow.from + BigInt(this.#follow.got.length);
  }

  async #call(client: AnabranchClient): Promise<void> {
    const { trajectory, got, marks } = this.#follow;
    const request = { trajectoryId: trajectory, startStepNumber: this.#next, follow: true };
    for await (const message of client.trajectories.readSteps(request, { signal: this.#left.signal })) {
      const tick = this.#history.tick();
      got.push(...message.steps.map((step) => ({ ...seen(step), tick })));
      marks.push({ next: message.nextStepNumber, delivered: got.length });
      this.#tellReached();
    }
  }

  #tellReached(): void {
    if (this.#reached !== undefined && this.#next >= this.#reached.end) this.#reached.done();
  }
}

function seen(step: Step): SeenStep {
  return { number: step.stepNumber, content: contentOf(step.infoJson, step.states[0]?.digest) };
}
