import { type ContextValues, createContextKey, createContextValues } from '@connectrpc/connect';
import { ANONYMOUS, type Caller } from '../domain/caller.ts';

/** Who calls (N1): set before any handler runs, from the credential once there is one. */
const CALLER = createContextKey<Caller>(ANONYMOUS, { description: 'who calls' });

/** How to end a stream whose reader does not read, so that no answer can reach it. */
const CUT = createContextKey<() => void>(() => undefined, { description: 'cuts the stream' });

export function contextValues(caller: Caller, cut: () => void): ContextValues {
  return createContextValues().set(CALLER, caller).set(CUT, cut);
}

export function callerOf(values: ContextValues): Caller {
  return values.get(CALLER);
}

export function cutOf(values: ContextValues): () => void {
  return values.get(CUT);
}
