import type { Digest } from '../ids.ts';
import type { Content, Step } from '../step.ts';
import { readStep } from './read.ts';
import type { WireWriter } from './wire_writer.ts';
import { writeStep } from './write.ts';

/**
 * Returns the bytes of a packed step with the sizes of states that were named by digest: clients do not send them.
 * `out` must be empty, and is empty afterwards.
 */
export function withStateSizes(out: WireWriter, bytes: Uint8Array, sizes: ReadonlyMap<Digest, number>): Uint8Array {
  writeStep(out, sized(readStep(bytes, 0, bytes.length), sizes));
  return out.take();
}

function sized(step: Step, sizes: ReadonlyMap<Digest, number>): Step {
  const sizeOf = (state: { readonly digest: Digest; readonly size: number }) =>
    state.size || (sizes.get(state.digest) ?? 0);
  const withSize = <Part extends { readonly content: Content | undefined }>(part: Part): Part => {
    const { content } = part;
    return content?.kind === 'state' ? { ...part, content: { ...content, size: sizeOf(content) } } : part;
  };
  return {
    ...step,
    actions: step.actions.map(withSize),
    observations: step.observations.map(withSize),
    states: step.states.map((state) => ({ ...state, size: sizeOf(state) })),
  };
}
