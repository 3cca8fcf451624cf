import { create, type MessageInitShape } from '@bufbuild/protobuf';
import type { Client } from '@connectrpc/connect';
import type { Step } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AppendAck,
  type AppendOpened,
  type AppendOpenSchema,
  type AppendStepsRequest,
  AppendStepsRequestSchema,
  type AppendStepsResponse,
  type SealSchema,
  type TrajectoryService,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';

/** One raw AppendSteps call, frame by frame, as a client without a helper makes it. */
export class AppendCall {
  readonly #frames: AppendStepsRequest[] = [];
  readonly #abort = new AbortController();
  readonly #answers: AsyncIterator<AppendStepsResponse>;
  #ended = false;
  #wake: () => void = () => undefined;

  constructor(client: Client<typeof TrajectoryService>, timeoutMs = 20_000) {
    this.#answers = client
      .appendSteps(this.#requests(), { signal: this.#abort.signal, timeoutMs })
      [Symbol.asyncIterator]();
  }

  /** Opens, and waits until the server grants the epoch. */
  static async open(
    client: Client<typeof TrajectoryService>,
    open: MessageInitShape<typeof AppendOpenSchema>,
    timeoutMs?: number,
  ): Promise<{ call: AppendCall; opened: AppendOpened }> {
    const call = new AppendCall(client, timeoutMs);
    call.send({ open });
    const opened = (await call.next())?.opened;
    if (opened === undefined) throw new Error('the first answer is not `opened`');
    return { call, opened };
  }

  send(frame: MessageInitShape<typeof AppendStepsRequestSchema>): void {
    this.#frames.push(create(AppendStepsRequestSchema, frame));
    this.#wake();
  }

  /** Returns the next answer; undefined if the server ended the call with OK. */
  async next(): Promise<AppendStepsResponse | undefined> {
    const result = await this.#answers.next();
    return result.done === true ? undefined : result.value;
  }

  /** Sends steps in one frame and waits until all of them are acked. */
  async append(steps: Step[]): Promise<AppendAck> {
    this.send({ steps });
    return this.acked(steps.at(-1)!.stepNumber + 1n);
  }

  async acked(nextStepNumber: bigint): Promise<AppendAck> {
    for (;;) {
      const answer = await this.next();
      if (answer?.ack === undefined)
        throw new Error(`no ack of ${nextStepNumber}, but ${JSON.stringify(answer?.$typeName)}`);
      if (answer.ack.nextStepNumber >= nextStepNumber) return answer.ack;
    }
  }

  /** Sends the last frame, sealing, and waits for the end of the call. */
  async seal(seal: MessageInitShape<typeof SealSchema>): Promise<AppendStepsResponse['sealed']> {
    this.send({ seal });
    this.#end();
    let sealed: AppendStepsResponse['sealed'];
    for (let answer = await this.next(); answer !== undefined; answer = await this.next()) sealed ??= answer.sealed;
    return sealed;
  }

  /** Half-closes and waits for the server's OK. */
  async close(): Promise<void> {
    this.#end();
    while ((await this.next()) !== undefined);
  }

  /** Drops the call, as a lost connection would; steps that the server has received may still be stored. */
  async cut(): Promise<void> {
    this.#abort.abort();
    this.#end();
    await this.#answers.next().catch(() => undefined);
  }

  #end(): void {
    this.#ended = true;
    this.#wake();
  }

  async *#requests(): AsyncGenerator<AppendStepsRequest> {
    for (;;) {
      const frame = this.#frames.shift();
      if (frame !== undefined) yield frame;
      else if (this.#ended) return;
      else await new Promise<void>((resolve) => (this.#wake = resolve));
    }
  }
}
