import type { Caller } from '../../src/domain/caller.ts';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { App } from '../../src/stream/app.ts';
import { readSteps } from '../../src/stream/steps/read.ts';
import { decodedSteps } from '../support/encoded_steps.ts';
import { wordOf } from './scene.ts';

/** Reads a trajectory from its first step on, and live while the trajectory changes (RD2). */
export class LiveFollower {
  /** The words of the steps that were read so far. */
  readonly words: string[] = [];
  /** How the stream has ended: `sealed`, `stopped`, or the reason of its error. */
  readonly end: Promise<string>;
  readonly #abort = new AbortController();
  #ended: string | undefined;
  #wake = () => {};

  constructor(app: App, caller: Caller, trajectoryId: string) {
    this.end = this.#read(app, caller, trajectoryId).then((end) => {
      this.#ended = end;
      this.#wake();
      return end;
    });
  }

  /** Resolves when at least this many steps were read. Throws if the stream ends before. */
  async until(steps: number): Promise<void> {
    while (this.words.length < steps) {
      if (this.#ended !== undefined) throw new Error(`a follower ended (${this.#ended}) after ${this.words.length}`);
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
      });
    }
  }

  stop(): Promise<string> {
    this.#abort.abort();
    return this.end;
  }

  async #read(app: App, caller: Caller, trajectoryId: string): Promise<string> {
    const { signal } = this.#abort;
    const range = { trajectoryId, startStepNumber: 0n, endStepNumber: undefined } as const;
    try {
      for await (const { part } of readSteps(app, caller, {
        ...range,
        view: 'FULL',
        inlineBytes: 0,
        follow: true,
        signal,
      })) {
        this.words.push(...decodedSteps(part).map(wordOf));
        this.#wake();
      }
      return signal.aborted ? 'stopped' : 'sealed';
    } catch (error) {
      if (error instanceof AnabranchError) return error.reason;
      throw error;
    }
  }
}
