import { AnabranchError } from '../../domain/errors.ts';
import type { StoredStep } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep, StepView } from '../../store/contract/step.ts';
import type { Store } from '../../store/contract/store.ts';
import type { LineageCache } from '../lineage_cache.ts';
import { stepBytes } from './step_bytes.ts';

/** Approximate size of a page. Small enough for the memory of many readers, large enough to be fast. */
const PAGE_BYTES = 64 * 1024;
const PAGE_STEPS = 256;
/** Larger than a page, because the store does not count attached states, and `stepBytes` is an upper bound. */
const PART_BYTES = 384 * 1024;

/**
 * Returns the next steps of [start, end), at least one. A trajectory has all steps below its end, so a missing step
 * means that it was deleted meanwhile (RD1). Errors: TRAJECTORY_DELETED.
 */
export async function readPage(
  from: { readonly store: Pick<Store, 'readSteps' | 'getLineage'>; readonly lineages: LineageCache },
  namespace: string,
  trajectory: Trajectory,
  start: bigint,
  end: bigint,
  view: StepView,
): Promise<OwnedStep[]> {
  const range = { from: start, to: end, maxSteps: PAGE_STEPS, maxBytes: PAGE_BYTES };
  const segments = await from.lineages.segments(from.store, namespace, trajectory, start, start + BigInt(PAGE_STEPS));
  const page = await from.store.readSteps(namespace, trajectory.ref.tree, segments, range, view);
  if (page.length === 0) throw trajectoryDeleted(trajectory.id);
  let expected = start;
  for (const { step } of page) {
    if (step.stepNumber !== expected) throw trajectoryDeleted(trajectory.id);
    expected += 1n;
  }
  return page;
}

/** Splits a page into parts of one owner each, in order (FM7), each well below what one message may hold (RD3). */
export function byOwner(page: readonly OwnedStep[]): OwnedSteps[] {
  const parts: OwnedSteps[] = [];
  let key: bigint | undefined;
  let room = 0;
  for (const { owner, step } of page) {
    const bytes = stepBytes(step);
    if (key !== owner.key || bytes > room) {
      parts.push({ trajectoryId: owner.id, steps: [] });
      key = owner.key;
      room = PART_BYTES;
    }
    room -= bytes;
    parts.at(-1)!.steps.push(step);
  }
  return parts;
}

export interface OwnedSteps {
  readonly trajectoryId: string;
  readonly steps: StoredStep[];
}

export function trajectoryDeleted(trajectoryId: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_DELETED',
    `Trajectory ${trajectoryId} was deleted while it was being read. The response is incomplete.`,
    { metadata: { trajectory_id: trajectoryId } },
  );
}
