import { type Job, type Logger, logFailure, type Meter, NO_METER } from './settings.ts';

/** Whom a chore reports to. */
export interface Reporting {
  readonly logger: Logger;
  /** Default: `NO_METER`. */
  readonly meter?: Meter | undefined;
}

/** Returns true once work has to stop after its current batch. */
export type Stopped = () => boolean;

/** Work that runs at most once at a time, however often it is requested. */
export class Chore {
  readonly #name: Job;
  readonly #logger: Logger;
  readonly #meter: Meter;
  readonly #work: (stopped: Stopped) => Promise<object>;
  #running: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #again = false;
  #stopped = false;

  /** `work` returns what it has done, for the log. Metrics have the sum of its numbers. */
  constructor(name: Job, { logger, meter = NO_METER }: Reporting, work: (stopped: Stopped) => Promise<object>) {
    this.#name = name;
    this.#logger = logger;
    this.#meter = meter;
    this.#work = work;
  }

  /** Runs the work regularly until `stop`, if `isDue` returns true. 0 milliseconds: never. */
  every(ms: number, isDue: () => boolean = () => true): this {
    if (ms > 0) this.#timer = setInterval(() => isDue() && this.run(), ms).unref();
    return this;
  }

  /** Starts the work unless it is running. `again`: if it is running, runs it once more afterwards. */
  run({ again = false } = {}): void {
    if (this.#stopped) return;
    this.#again ||= again && this.#running !== undefined;
    const begun = performance.now();
    const worked = (items: number, failed: boolean) =>
      this.#meter.worked(this.#name, items, (performance.now() - begun) / 1000, failed);
    this.#running ??= this.#work(() => this.#stopped)
      .then(
        (done) => {
          worked(itemsOf(done), false);
          this.#logger.debug(done, `${this.#name} done`);
        },
        // The next round retries.
        (error: unknown) => {
          worked(0, true);
          logFailure(this.#logger, error, `${this.#name} failed`);
        },
      )
      .finally(() => {
        this.#running = undefined;
        if (!this.#again) return;
        this.#again = false;
        this.run();
      });
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearInterval(this.#timer);
    await this.#running;
  }
}

function itemsOf(done: object): number {
  return Object.values(done).reduce(
    (sum: number, count: unknown) => (typeof count === 'number' ? sum + count : sum),
    0,
  );
}
