import { type ContextValues, createContextKey, createContextValues } from '@connectrpc/connect';
import type { Principal } from '../domain/caller.ts';
import type { Credential } from '../stream/credentials.ts';
import type { PrincipalLoad } from '../stream/principals.ts';
import type { CallReport } from './call_report.ts';

/** A call that the gate has admitted (N1, N2). */
export interface Admission {
  readonly caller: Principal;
  /** Undefined without authentication. */
  readonly credential: Credential | undefined;
  /** Undefined without authentication, and before the call is counted. */
  readonly load?: PrincipalLoad;
}

const ADMISSION = createContextKey<Admission | undefined>(undefined, { description: 'who calls' });

/** Ends a stream whose reader does not read, so that no response can reach it. */
const CUT = createContextKey<() => void>(() => undefined, { description: 'cuts the stream' });

/** Called when a message has reached its handler or cannot be decoded: its slot in the decode queue ends. */
const HAND_OVER = createContextKey<() => void>(() => undefined, { description: 'ends the slot of a message' });

const REPORT = createContextKey<CallReport | undefined>(undefined, { description: 'what is told about the call' });

/** Every call passes here before its handler runs, after the gate. `report`: not of downloads. */
export function contextValues(
  admission: Admission,
  cut: () => void,
  handOver: () => void,
  report?: CallReport,
): ContextValues {
  return createContextValues().set(ADMISSION, admission).set(CUT, cut).set(HAND_OVER, handOver).set(REPORT, report);
}

export function reportOf(values: ContextValues): CallReport | undefined {
  return values.get(REPORT);
}

/** Throws for a call that did not pass the gate. */
export function admissionOf(values: ContextValues): Admission {
  const admission = values.get(ADMISSION);
  if (admission === undefined) throw new Error('a call reached its handler without passing the gate');
  return admission;
}

export function cutOf(values: ContextValues): () => void {
  return values.get(CUT);
}

export function handOverOf(values: ContextValues): () => void {
  return values.get(HAND_OVER);
}
