import { type Logger, logFailure } from './settings.ts';

/** Returns true once work has to stop after its current batch. */
export type Stopped = () => boolean;

/** Work that runs at most once at a time, however often it is requested. */
export class Chore {
  readonly #name: string;
  readonly #logger: Logger;
  readonly #work: (stopped: Stopped) => Promise<object>;
  #running: Promise<void> | undefined;
  #timer: NodeJS.Timeout | undefined;
  #again = false;
  #stopped = false;

  constructor(name: string, logger: Logger, work: (stopped: Stopped) => Promise<object>) {
    this.#name = name;
    this.#logger = logger;
    this.#work = work;
  }

  /** Runs the work regularly until `stop`. 0 milliseconds: never. */
  every(ms: number): this {
    if (ms > 0) this.#timer = setInterval(() => this.run(), ms).unref();
    return this;
  }

  /** Starts the work unless it is running. `again`: if it is running, runs it once more afterwards. */
  run({ again = false } = {}): void {
    if (this.#stopped) return;
    this.#again ||= again && this.#running !== undefined;
    this.#running ??= this.#work(() => this.#stopped)
      .then(
        (done) => this.#logger.debug(done, `${this.#name} done`),
        // The next round retries.
        (error: unknown) => logFailure(this.#logger, error, `${this.#name} failed`),
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
