import type { EntryInit } from '../../../src/client/append_batch.ts';
import { fitting, INTEGRATION, nameOf, taskOf } from './names.ts';

/** What an entry creates. */
export type Creation = NonNullable<EntryInit['create']>;

/** Returns the creation of a trajectory for the checkpoints of a namespace; without one, for pending writes. */
export function creationOf(threadId: string, trajectoryId: string, ns?: string): Creation {
  return { trajectory: { trajectoryId, requestId: trajectoryId, ...described(threadId, ns) } };
}

/** Returns the creation of a branch that belongs to the thread. */
export function branchOf(
  threadId: string,
  branchId: string,
  source: { readonly trajectoryId: string; readonly stepNumber: bigint },
  ns?: string,
): Creation {
  return { branch: { ...source, branchId, requestId: branchId, ...described(threadId, ns) } };
}

function described(threadId: string, ns: string | undefined) {
  const kind = ns === undefined ? 'writes' : 'checkpoints';
  const labels = { integration: INTEGRATION, kind, thread: fitting(threadId) };
  return {
    taskId: taskOf(threadId),
    name: nameOf(threadId, ns ?? kind),
    labels: ns === undefined ? labels : { ...labels, ns: fitting(ns) },
    metadataJson: JSON.stringify({ thread_id: threadId, ...(ns === undefined ? {} : { checkpoint_ns: ns }) }),
  };
}
