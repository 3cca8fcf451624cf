/**
 * Writers that never pause: each has a trajectory of its own, keeps a window of unacked steps, and records what was
 * acked.
 */
import { type AnabranchClient, connectClient, openWriter, type TrajectoryWriter } from '../../../src/client/index.ts';
import type { SeenStep } from '../history/history.ts';
import { makeStep } from '../history/steps.ts';

export interface LoadOptions {
  readonly address: string;
  readonly writers: number;
  /** Maximal number of unacked steps of a writer. */
  readonly window?: number;
}

/** One trajectory as its only writer knows it. */
export interface Ledger {
  readonly trajectoryId: string;
  /** Every step below it was acked. */
  readonly ackedEnd: bigint;
  /** All steps ever sent, by number. */
  readonly sent: readonly SeenStep[];
}

export interface Load {
  readonly acked: number;
  /** Unacked steps, now. */
  readonly inFlight: number;
  /** Steps that a cut left unacked and that were stored all the same. */
  readonly storedUnacked: number;
  /** Times that a writer's stream was cut and continued. */
  readonly cuts: number;
  /** Why writers ended: the errors that their users would get. */
  readonly failures: readonly Error[];
  /** Resolves when this many more steps were acked in total; at once when every writer has failed. */
  progress(steps: number): Promise<void>;
  /** Resolves when each writer had an ack, or has failed. */
  everyone(): Promise<void>;
  /** Sends no more steps; resolves when all sent steps are durable, or their writer has failed. */
  stop(): Promise<readonly Ledger[]>;
}

export async function startLoad({ address, writers, window = 64 }: LoadOptions): Promise<Load> {
  const client = connectClient({ address });
  const lines = await Promise.all(Array.from({ length: writers }, (_, i) => openLine(client, `writer ${i}`, window)));
  return new RunningLoad(client, lines);
}

/** The clients are more patient than any outage here lasts; a writer that fails got a permanent error. */
async function openLine(client: AnabranchClient, name: string, window: number): Promise<Line> {
  const { trajectory } = await client.trajectories.createTrajectory({ name });
  const line = new Line(name, trajectory!.id);
  line.writer = await openWriter(client, {
    trajectoryId: trajectory!.id,
    maxUnackedSteps: window,
    giveUpAfterMs: 60_000,
    onEvent: (event) => {
      if (event.type === 'cut') line.cuts += 1;
      if (event.type === 'opened') line.reopened(event.nextStepNumber);
    },
  });
  return line;
}

class Line implements Ledger {
  readonly trajectoryId: string;
  readonly sent: SeenStep[] = [];
  ackedEnd = 0n;
  storedUnacked = 0;
  cuts = 0;
  failure: Error | undefined;
  writer: TrajectoryWriter | undefined;
  readonly #name: string;

  constructor(name: string, trajectoryId: string) {
    this.#name = name;
    this.trajectoryId = trajectoryId;
  }

  reopened(end: bigint): void {
    if (end > this.ackedEnd) this.storedUnacked += Number(end - this.ackedEnd);
  }

  /** Sends until told to stop; `acked` is called for every ack. */
  async write(stopping: () => boolean, onAck: () => void): Promise<void> {
    const writer = this.writer!;
    try {
      while (!stopping() && this.failure === undefined) {
        const number = writer.nextStepNumber;
        const { infoJson, states, content } = makeStep(this.#name, number);
        this.sent.push({ number, content });
        writer.append({ infoJson, states }).then(
          ({ nextStepNumber }) => {
            if (nextStepNumber > this.ackedEnd) this.ackedEnd = nextStepNumber;
            onAck();
          },
          (error: Error) => this.#fail(error, onAck),
        );
        await writer.ready();
      }
      await writer.close();
    } catch (error) {
      this.#fail(error as Error, onAck);
    }
  }

  #fail(error: Error, tell: () => void): void {
    this.failure ??= error;
    tell();
  }
}

class RunningLoad implements Load {
  readonly #client: AnabranchClient;
  readonly #lines: readonly Line[];
  readonly #running: Promise<void>;
  #stopping = false;
  #watchers: (() => void)[] = [];

  constructor(client: AnabranchClient, lines: readonly Line[]) {
    this.#client = client;
    this.#lines = lines;
    const onAck = () => {
      for (const watcher of this.#watchers) watcher();
    };
    this.#running = Promise.all(lines.map((line) => line.write(() => this.#stopping, onAck))).then(() => undefined);
  }

  get acked(): number {
    return sum(this.#lines, ({ ackedEnd }) => Number(ackedEnd));
  }

  get inFlight(): number {
    return sum(this.#lines, ({ sent, ackedEnd }) => sent.length - Number(ackedEnd));
  }

  get storedUnacked(): number {
    return sum(this.#lines, ({ storedUnacked }) => storedUnacked);
  }

  get cuts(): number {
    return sum(this.#lines, ({ cuts }) => cuts);
  }

  get failures(): Error[] {
    return this.#lines.map(({ failure }) => failure).filter((failure) => failure !== undefined);
  }

  progress(steps: number): Promise<void> {
    const wanted = this.acked + steps;
    return this.#until(() => this.acked >= wanted || this.failures.length === this.#lines.length);
  }

  everyone(): Promise<void> {
    const before = this.#lines.map(({ ackedEnd }) => ackedEnd);
    return this.#until(() => this.#lines.every((line, i) => line.failure !== undefined || line.ackedEnd > before[i]!));
  }

  #until(holds: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      const look = () => {
        if (!holds()) return;
        this.#watchers = this.#watchers.filter((watcher) => watcher !== look);
        resolve();
      };
      this.#watchers.push(look);
      look();
    });
  }

  async stop(): Promise<readonly Ledger[]> {
    this.#stopping = true;
    await this.#running;
    this.#client.close();
    return this.#lines;
  }
}

function sum<T>(list: readonly T[], of: (item: T) => number): number {
  return list.reduce((total, item) => total + of(item), 0);
}
