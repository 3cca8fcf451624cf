import { setTimeout as delay } from 'node:timers/promises';
import { ConnectError } from '@connectrpc/connect';
import { type AnabranchClient, reasonOf } from '../../../src/client/index.ts';
import { isTransient } from '../../../src/client/retry.ts';
import type { Random } from '../random.ts';
import type { Node } from './forest.ts';

/** Data that all writers and readers share. */
export interface Mix {
  readonly client: AnabranchClient;
  readonly random: Random;
  /** Every trajectory that was ever created. */
  readonly nodes: Node[];
  /** Violations. */
  readonly violations: string[];
  /** Number of answers by call and outcome. */
  readonly counts: Map<string, number>;
  /** Reads that were cut off by a kill, or that reached no server. */
  unansweredReads: number;
  stopped: boolean;
}

/** A call that is not answered in this time never will be. */
const PATIENCE_MS = 60_000;
const DEADLINE = { timeoutMs: 20_000 };

export function count({ counts }: Mix, what: string): void {
  counts.set(what, (counts.get(what) ?? 0) + 1);
}

/** The reason of a refusal: an error of the server that a repetition would get again. */
export class Refused extends Error {
  readonly reason: string;

  constructor(reason: string, cause: unknown) {
    super(`refused: ${reason}`, { cause });
    this.reason = reason;
  }
}

/**
 * Repeats a call until the server has answered it. Repetitions are safe: ids are chosen by the client. Errors: Refused,
 * with the reason and whether an earlier attempt may have succeeded.
 */
export async function untilAnswered<T>(mix: Mix, rpc: string, call: (options: object) => Promise<T>): Promise<T> {
  const begun = performance.now();
  for (;;) {
    try {
      const answer = await call(DEADLINE);
      count(mix, rpc);
      return answer;
    } catch (error) {
      const reason = reasonOf(error);
      if (reason === 'INTERNAL' || !(error instanceof ConnectError)) throw error;
      if (!isTransient(error)) throw new Refused(reason ?? error.message, error);
      if (performance.now() - begun > PATIENCE_MS) throw error;
      await delay(50);
    }
  }
}
