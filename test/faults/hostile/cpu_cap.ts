import process from 'node:process';
import { setTimeout as wait } from 'node:timers/promises';

/** The CPU time that was not used within this time is lost, in milliseconds: nothing is saved for a burst. */
const PERIOD_MS = 500;

/** Holds the CPU time of this process, all threads together, at a share of one processor. */
export class CpuCap {
  readonly #share: number;
  #begunAt = performance.now();
  #cpu = process.cpuUsage();

  constructor(share: number) {
    this.#share = share;
  }

  /** Waits while the process has used more than its share. Must be awaited between any two pieces of work. */
  async turn(): Promise<void> {
    const { user, system } = process.cpuUsage(this.#cpu);
    const aheadMs = (user + system) / 1000 / this.#share - (performance.now() - this.#begunAt);
    await wait(Math.max(0, aheadMs));
    if (performance.now() - this.#begunAt < PERIOD_MS) return;
    this.#begunAt = performance.now();
    this.#cpu = process.cpuUsage();
  }
}
