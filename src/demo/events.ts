import type { AnabranchClient } from '../client/index.ts';

/** What happened, for a script. `name` is that of a trajectory, a run, a worker or a stage. */
export interface DemoEvent {
  readonly event: string;
  readonly name: string;
  readonly [field: string]: unknown;
}

/** What people see of an event. */
export interface Shown {
  /** The first line follows the name of the event. */
  readonly lines?: readonly string[];
  /** The last line, of which the second part is green. */
  readonly success?: readonly [string, string];
  /** Shown instead of the lines while bars are on a terminal. */
  readonly bars?: readonly DemoBar[];
}

/** The bar of a trajectory, a run or a stage. Unset fields stay as they are. */
export interface DemoBar {
  readonly name: string;
  readonly total: number;
  readonly value?: number;
  readonly note?: string;
}

/** What a client needs to play. */
export interface PlayOptions {
  readonly client: AnabranchClient;
  readonly onEvent: (event: DemoEvent, shown?: Shown) => void;
  readonly signal: AbortSignal;
}

export interface DemoOptions extends PlayOptions {
  /** 0 to 2^32 - 1. The same seed gives the same steps. */
  readonly seed: number;
  /** Program and arguments that start a client in a process of its own. Its task is appended as the last argument. */
  readonly clientCommand: readonly string[];
}

/** Does all work concurrently. The first failure stops the rest, and is thrown when everything has ended. */
export async function together<T>(
  options: DemoOptions,
  works: readonly ((options: DemoOptions) => Promise<T>)[],
): Promise<T[]> {
  const failure = new AbortController();
  const around = { ...options, signal: AbortSignal.any([options.signal, failure.signal]) };
  const working = works.map(async (work) => {
    try {
      return await work(around);
    } catch (error) {
      failure.abort(error);
      throw error;
    }
  });
  await Promise.allSettled(working);
  failure.signal.throwIfAborted();
  return Promise.all(working);
}

/** Returns a resource that a response of the server always has. */
export function present<T>(value: T | undefined): T {
  if (value === undefined) throw new Error('the response of the server lacks what was asked for');
  return value;
}
