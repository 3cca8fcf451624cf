import { randomUUID } from 'node:crypto';
import { create } from '@bufbuild/protobuf';
import { StepSchema } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AppendStepsRequest,
  AppendStepsRequestSchema,
  type AppendStepsResponse,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { type AnabranchClient, reasonOf } from '../../../src/client/index.ts';
import type { Random } from '../random.ts';
import type { Append, History } from './history.ts';
import { makeStep } from './steps.ts';

export interface LifePlan {
  readonly history: History;
  readonly client: AnabranchClient;
  readonly trajectoryId: string;
  readonly random: Random;
  /** It ends by itself after this many steps. */
  readonly steps: number;
  /** At most this many steps are unacked at the same time. */
  readonly window: number;
  /** The connection counts as dead after this time without an answer. */
  readonly silenceMs: number;
  /** Aborted: ends in order. */
  readonly stop: AbortSignal;
}

/** The server has decided: steps of this stream that it had not acked are not stored. */
const REFUSALS = new Set([
  'WRITER_FENCED',
  'STEP_CONFLICT',
  'STEP_GAP',
  'TRAJECTORY_SEALED',
  'TRAJECTORY_NOT_FOUND',
  'UNEXPECTED_POSITION',
  'INVALID_REQUEST',
]);

/**
 * One AppendSteps stream without a helper: takes the trajectory over, continues at its end, and sends each step once.
 * So the meaning of an answer is exact: acked, refused, or unknown. Rejects with the error that ended the stream,
 * unless it ended by itself.
 */
export async function rawLife(plan: LifePlan): Promise<void> {
  const { trajectory } = await plan.client.trajectories.getTrajectory(
    { trajectoryId: plan.trajectoryId },
    { timeoutMs: plan.silenceMs },
  );
  await new RawStream(plan, trajectory?.writerEpoch ?? 0n).run();
}

class RawStream {
  readonly #plan: LifePlan;
  readonly #writer = randomUUID();
  readonly #takeOverEpoch: bigint;
  readonly #abort = new AbortController();
  readonly #unacked: Append[] = [];
  /** Undefined until the stream is granted. */
  #next: bigint | undefined;
  #left: number;
  #over = false;
  #wake: () => void = () => undefined;
  #silence: NodeJS.Timeout | undefined;

  constructor(plan: LifePlan, takeOverEpoch: bigint) {
    this.#plan = plan;
    this.#takeOverEpoch = takeOverEpoch;
    this.#left = plan.steps;
  }

  async run(): Promise<void> {
    const { client, stop } = this.#plan;
    const wake = () => this.#wake();
    stop.addEventListener('abort', wake);
    this.#heard();
    try {
      for await (const answer of client.trajectories.appendSteps(this.#frames(), { signal: this.#abort.signal }))
        this.#take(answer);
      if (this.#unacked.length > 0)
        throw new Error(`the server ended with OK, but acked only below ${this.#unacked[0]!.number}`);
    } catch (error) {
      const reason = reasonOf(error);
      const outcome = reason !== undefined && REFUSALS.has(reason) ? 'refused' : 'unknown';
      if (this.#next !== undefined) this.#plan.history.streamEnded(reason);
      for (const append of this.#unacked) this.#plan.history.settle(append, outcome, reason);
      throw error;
    } finally {
      this.#over = true;
      clearTimeout(this.#silence);
      stop.removeEventListener('abort', wake);
      this.#wake();
    }
  }

  async *#frames(): AsyncGenerator<AppendStepsRequest> {
    const { trajectoryId, stop, window, random } = this.#plan;
    const open = { trajectoryId, writerId: this.#writer, takeOverEpoch: this.#takeOverEpoch };
    yield create(AppendStepsRequestSchema, { open });
    while (!this.#over && !stop.aborted && this.#left > 0) {
      const room = window - this.#unacked.length;
      if (this.#next === undefined || room <= 0) await new Promise<void>((resolve) => (this.#wake = resolve));
      else yield this.#frame(Math.min(room, this.#left, random.between(1, 4)));
    }
  }

  #frame(count: number): AppendStepsRequest {
    const { history, trajectoryId } = this.#plan;
    const frame = create(AppendStepsRequestSchema);
    for (let i = 0; i < count; i += 1) {
      const stepNumber = this.#next!;
      const { infoJson, states, content } = makeStep(this.#writer, stepNumber);
      this.#unacked.push(history.sending(trajectoryId, this.#writer, stepNumber, content));
      frame.steps.push(create(StepSchema, { stepNumber, infoJson, states }));
      this.#next = stepNumber + 1n;
    }
    this.#left -= count;
    return frame;
  }

  #take({ opened, ack }: AppendStepsResponse): void {
    this.#heard();
    const { history, trajectoryId } = this.#plan;
    if (opened !== undefined) {
      this.#next = opened.nextStepNumber;
      history.granted({ trajectory: trajectoryId, writer: this.#writer, epoch: opened.epoch, next: this.#next });
    }
    while (ack !== undefined && (this.#unacked[0]?.number ?? ack.nextStepNumber) < ack.nextStepNumber)
      history.settle(this.#unacked.shift()!, 'acked');
    if (ack !== undefined && this.#next !== undefined && ack.nextStepNumber > this.#next)
      history.surprises.push(`W4: ${trajectoryId} was acked to ${ack.nextStepNumber}, but sent to ${this.#next} only`);
    this.#wake();
  }

  #heard(): void {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#abort.abort(), this.#plan.silenceMs);
  }
}
