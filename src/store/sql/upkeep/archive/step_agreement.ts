import { type ArchiveRecord, archiveInvalid } from '../../../../domain/archive.ts';
import type { Digest } from '../../../../domain/ids.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { withAttached } from '../../../../domain/pruning.ts';
import { hasRow } from '../../../../domain/step.ts';
import { refBytes, STEP_WITH_STATES_BYTES } from '../../log/states/attach.ts';
import type { EncodedState } from '../../log/states/bytes.ts';
import type { HeldSteps } from './held_steps.ts';
import type { ImportedStep, StateSize } from './imported_steps.ts';
import type { AttachedToStep } from './step_chunks.ts';
import { countOf, listOf, textOf } from './values.ts';

/**
 * Requires that no step has an epoch above that of its trajectory, and that all states have the sizes that steps say.
 * `stored` has the sizes of the states that are stored already. Errors: ARCHIVE_INVALID.
 */
export function requireAgreement(
  trajectory: string,
  epoch: bigint,
  { steps, attached }: HeldSteps,
  stored: ReadonlyMap<Digest, number>,
  inline: readonly EncodedState[],
): void {
  const sizes = new Map([...stored, ...inline.map(({ digest, size }) => [digest, size] as const)]);
  const isOther = ({ digest, size }: StateSize) => (sizes.get(digest) ?? size) !== size;
  const byStep = Map.groupBy(attached, ({ stepNumber }) => stepNumber);
  for (const step of steps) {
    const { packed, writerEpoch, sizes: named } = step;
    const place = `step ${packed.stepNumber} of ${trajectory}`;
    if (writerEpoch > epoch) throw archiveInvalid(place, 'its epoch is greater than that of the trajectory');
    const isWrong =
      named.some(isOther) ||
      packed.states.some(({ data, size }) => data !== undefined && data.length !== size) ||
      packed.tensorStates.some(({ digest, bytes: size }) => isOther({ digest, size }));
    if (isWrong) throw archiveInvalid(place, 'a state has another size');
    const fault = attachedFault(step, byStep.get(packed.stepNumber) ?? []);
    if (fault !== undefined) throw archiveInvalid(place, fault);
  }
  const wrong = attached.find(({ state }) => hasRow(state) && isOther(state));
  if (wrong !== undefined) throw archiveInvalid(trajectory, 'an attached state has another size');
}

/** Returns why a step cannot have these attached states (W3, W9). */
function attachedFault({ packed, sentBytes }: ImportedStep, attached: readonly AttachedToStep[]): string | undefined {
  if (attached.length === 0) return undefined;
  const states = withAttached(
    packed.states,
    attached.map(({ state }) => state),
  );
  if (states.length > LIMITS.statesPerStep) return `it has ${states.length} states with the attached ones`;
  if (new Set(states.map(({ name }) => name)).size < states.length) return 'two of its states have the same name';
  const bytes = states.reduce((sum, state) => sum + refBytes(state), sentBytes ?? packed.bytes.length);
  return bytes > STEP_WITH_STATES_BYTES ? 'it is too large with the attached states' : undefined;
}

/** Requires that the tags of a record point to steps before `end`. Errors: ARCHIVE_INVALID. */
export function requireSteps(trajectory: string, record: ArchiveRecord, end: bigint): void {
  const other = listOf(record, 'tags').find((tag) => countOf(tag, 'step_number') >= end);
  if (other === undefined) return;
  throw archiveInvalid(trajectory, `the tag "${textOf(other, 'name')}" points to a step that it does not have`);
}
