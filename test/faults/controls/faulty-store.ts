import { setTimeout as delay } from 'node:timers/promises';
import type { PackedStep } from '../../../src/domain/step_codec/packed_step.ts';
import type { AppendBatch, AppendOutcome } from '../../../src/store/contract/append.ts';
import type { Store } from '../../../src/store/contract/store.ts';
import { packed, unpacked } from '../../support/packed_steps.ts';
import { wrappedStore } from '../../support/wrapped_store.ts';

/** Deliberate mistakes in a store: the proofs must fail over each of them. */
export const FAULTS = ['none', 'ack-before-commit', 'epoch-checked-outside', 'duplicates-not-recognised'] as const;
export type Fault = (typeof FAULTS)[number];

/** Delay between an early ack and its commit, and duration for which a check is unprotected. */
const GAP_MS = 25;

type Mistake = Partial<Pick<Store, 'append' | 'branchTrajectory'>>;
type AppendCall = Store['append'];

/** A real store with one mistake. */
export function faultyStore(real: Store, fault: Fault): Store {
  const mistakes: Record<Fault, (real: Store) => Mistake> = {
    none: () => ({}),
    'ack-before-commit': ackFirst,
    'epoch-checked-outside': (store) => ({ append: checkFirst(store) }),
    'duplicates-not-recognised': (store) => ({ append: appendAll(store) }),
  };
  return wrappedStore(real, mistakes[fault](real));
}

/**
 * Answers as if all were stored, and stores it a little later, in order. A branch waits for that, so that only steps
 * are acked too early.
 */
function ackFirst(real: Store): Mistake {
  let behind: Promise<unknown> = Promise.resolve();
  return {
    append: async (batches) => {
      behind = behind
        .then(() => delay(GAP_MS))
        .then(() => real.append(batches, 'bounded'))
        .catch(() => undefined); // the read shows a step that was acked and is not stored
      return batches.map(({ steps }) => assumed(steps.at(-1)?.stepNumber ?? 0n));
    },
    branchTrajectory: async (...args) => {
      await behind;
      return real.branchTrajectory(...args);
    },
  };
}

function assumed(last: bigint): AppendOutcome {
  const commitTime = BigInt(Date.now()) * 1_000_000n;
  return {
    kind: 'committed',
    nextStepNumber: last + 1n,
    uid: '',
    epoch: undefined,
    commitTime,
    duplicates: 0,
    status: 'RUNNING',
    statusMessage: '',
    sealTime: undefined,
  };
}

/** Compares the epoch before the transaction that writes, not in it. */
function checkFirst(real: Store): AppendCall {
  return async (batches, wait) => {
    const epochs = await Promise.all(batches.map((batch) => currentEpoch(real, batch)));
    const checked = batches.map((batch, i) => ({ batch, passed: batch.writerEpoch === epochs[i] }));
    await delay(GAP_MS);
    const written = checked.map(async ({ batch, passed }) =>
      passed ? { ...batch, writerEpoch: await currentEpoch(real, batch) } : batch,
    );
    return real.append(await Promise.all(written), wait);
  };
}

async function currentEpoch(real: Store, { caller, trajectoryId }: AppendBatch): Promise<bigint | undefined> {
  return (await real.getTrajectory(caller.namespace, trajectoryId))?.writerEpoch;
}

function numbered(step: PackedStep, stepNumber: bigint): Pick<PackedStep, 'stepNumber' | 'bytes'> {
  return { stepNumber, bytes: packed({ ...unpacked(step), stepNumber }).bytes };
}

/** Treats every step as new: a step that was stored already is stored again at the end. */
function appendAll(real: Store): AppendCall {
  return async (batches, wait) => {
    const ends = new Map<bigint, bigint>();
    const renumbered: AppendBatch[] = [];
    for (const batch of batches) {
      const { key } = batch.ref;
      let end =
        ends.get(key) ?? (await real.getTrajectory(batch.caller.namespace, batch.trajectoryId))?.nextStepNumber ?? 0n;
      const steps = batch.steps.map((step) => {
        const moved = { ...step, ...numbered(step, end) };
        end += 1n;
        return moved;
      });
      ends.set(key, end);
      renumbered.push({ ...batch, steps });
    }
    return real.append(renumbered, wait);
  };
}
