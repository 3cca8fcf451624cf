import type { Caller } from '../../domain/caller.ts';
import type { Instant } from '../../domain/instant.ts';
import type { App } from '../app.ts';
import type { IncomingStep } from './incoming.ts';

/** What every unary write is given (W8). */
export interface UnaryWriteArgs {
  readonly trajectoryId: string;
  /** Undefined: not known. */
  readonly uid: string | undefined;
  /** Undefined: accepted only while no writer was ever granted. */
  readonly writerEpoch: bigint | undefined;
}

export interface AppendStepArgs extends UnaryWriteArgs {
  readonly step: IncomingStep;
}

export interface Appended {
  readonly nextStepNumber: bigint;
  readonly commitTime: Instant;
  readonly duplicate: boolean;
}

/** W8: one step, durable when this resolves. Errors: as an append stream. */
export async function appendStep(_app: App, _caller: Caller, _args: AppendStepArgs): Promise<Appended> {
  throw new Error('being written');
}
