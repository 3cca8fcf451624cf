import type { SealRequest } from '../../domain/append.ts';
import type { Caller } from '../../domain/caller.ts';
import { trajectoryNotFound } from '../../domain/errors.ts';
import type { NewSteps } from '../../domain/step_codec/packed_step.ts';
import type { AppendBatch } from '../../store/contract/append.ts';
import type { App } from '../app.ts';
import { findTrajectory } from '../find.ts';
import type { BatchSource, Committed } from './committer.ts';

/** Fields that all unary writes share (W8). */
export interface UnaryWriteArgs {
  readonly trajectoryId: string;
  /** Optional. If it is set, the trajectory must have this uid. */
  readonly uid: string | undefined;
  /** If unset, the write is accepted only if no writer has ever opened the trajectory. */
  readonly writerEpoch: bigint | undefined;
}

/** Estimated size of the steps or the seal of a call, for the bounds of a group. States are counted exactly. */
const STEPS_BYTES = 1024;

/** W8: commits steps or a seal in the next group commit, and resolves when they are durable. Errors: as AppendSteps. */
export async function commitUnary(
  app: App,
  caller: Caller,
  args: UnaryWriteArgs,
  { steps, states }: NewSteps,
  seal: SealRequest | undefined,
): Promise<Committed> {
  const { uid } = args;
  const trajectory = await findTrajectory(app, caller, args.trajectoryId);
  if (uid !== undefined && uid !== trajectory.uid) throw trajectoryNotFound(trajectory.id);
  const { ref, id: trajectoryId } = trajectory;
  const { writerEpoch } = args;
  const batch: AppendBatch = { caller, ref, trajectoryId, uid, writerEpoch, steps, states, tags: [], seal };
  const bytes = states.reduce((sum, { data }) => sum + data.length, STEPS_BYTES);
  app.call.signal.throwIfAborted();
  return new Promise((resolve, reject) => {
    const source = new UnaryCall(app.call.signal, resolve, reject);
    app.committer.submit(source, batch, bytes);
  });
}

/** The batch of a unary call. It is dropped if the caller disconnects before its group begins, but not later. */
class UnaryCall implements BatchSource {
  over = false;
  readonly #signal: AbortSignal;
  readonly #resolve: (outcome: Committed) => void;
  readonly #reject: (error: unknown) => void;

  constructor(signal: AbortSignal, resolve: (outcome: Committed) => void, reject: (error: unknown) => void) {
    this.#signal = signal;
    this.#resolve = resolve;
    this.#reject = reject;
    signal.addEventListener('abort', this.#leave);
  }

  committed(_batch: AppendBatch, _bytes: number, outcome: Committed): void {
    this.#signal.removeEventListener('abort', this.#leave);
    this.#resolve(outcome);
  }

  failed(_batch: AppendBatch, _bytes: number, error: unknown): void {
    this.over = true;
    this.#signal.removeEventListener('abort', this.#leave);
    this.#reject(error);
  }

  readonly #leave = (): void => {
    this.over = true;
    this.#reject(this.#signal.reason);
  };
}
