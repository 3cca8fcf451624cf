import { AnabranchError } from '../../domain/errors.ts';
import type { OwnedRange } from '../../domain/lineage.ts';
import type { Content, Step } from '../../domain/step.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { EncodedSteps, OwnedStep, StepRange, StepView } from '../../store/contract/step.ts';
import type { Store } from '../../store/contract/store.ts';
import type { LineageCache } from '../lineage_cache.ts';

/** Approximate size of a page. Small enough for the memory of many readers, large enough to be fast. */
const PAGE_BYTES = 128 * 1024;
const PAGE_STEPS = 512;

/** What is returned of steps. */
export interface Shown {
  readonly view: StepView;
  /** States with at most this many bytes are returned with the steps. 0: none. */
  readonly inlineBytes: number;
}

interface Source {
  readonly store: Pick<Store, 'readSteps' | 'readEncodedSteps' | 'getLineage'>;
  readonly lineages: LineageCache;
}

/**
 * Returns the next steps of [start, end), at least one. A trajectory has all steps below its end, so a missing step
 * means that it was deleted meanwhile (RD1). Errors: TRAJECTORY_DELETED.
 */
export async function readPage(
  source: Source,
  namespace: string,
  trajectory: Trajectory,
  [start, end]: readonly [bigint, bigint],
  view: StepView,
): Promise<OwnedStep[]> {
  const { lineage, range } = await pageFrom(source, namespace, trajectory, start, end);
  const page = await source.store.readSteps(namespace, trajectory.ref.tree, lineage, range, view);
  if (page.length === 0) throw trajectoryDeleted(trajectory.id);
  return page;
}

/** Like `readPage`, but returns encoded steps, in parts of one owner each. */
export async function readEncodedPage(
  source: Source,
  namespace: string,
  trajectory: Trajectory,
  [start, end]: readonly [bigint, bigint],
  { view, inlineBytes }: Shown,
): Promise<EncodedSteps[]> {
  const { lineage, range } = await pageFrom(source, namespace, trajectory, start, end);
  const { tree } = trajectory.ref;
  const parts = await source.store.readEncodedSteps(namespace, tree, lineage, { ...range, inlineBytes }, view);
  if (parts.length === 0) throw trajectoryDeleted(trajectory.id);
  return parts;
}

async function pageFrom(
  { store, lineages }: Source,
  namespace: string,
  trajectory: Trajectory,
  from: bigint,
  to: bigint,
): Promise<{ readonly lineage: readonly OwnedRange[]; readonly range: StepRange }> {
  const lineage = await lineages.within(store, namespace, trajectory, from, from + BigInt(PAGE_STEPS));
  return { lineage, range: { from, to, maxSteps: PAGE_STEPS, maxBytes: PAGE_BYTES } };
}

export function trajectoryDeleted(trajectoryId: string): AnabranchError {
  return new AnabranchError(
    'TRAJECTORY_DELETED',
    `Trajectory ${trajectoryId} was deleted while it was being read. The response is incomplete.`,
    { metadata: { trajectory_id: trajectoryId } },
  );
}

/** Returns an upper bound of the encoded size of a step, without the data of its states (RD3). */
export function stepBytes(step: Step): number {
  let bytes = 256 + utf8(step.infoJson) + utf8(step.metadataJson);
  for (const action of step.actions) {
    const { type, name, callId, content, tokenIds, logprobs, promptTokenIds } = action;
    bytes += 64 + utf8(type) + utf8(name) + utf8(callId) + contentBytes(content);
    bytes += (tokenIds.length + promptTokenIds.length) * 10 + logprobs.length * 4; // a negative int32 takes ten bytes
    for (const digest of [action.tokenIdsState, action.promptTokenIdsState]) if (digest !== undefined) bytes += 66;
  }
  for (const { type, callId, content } of step.observations) {
    bytes += 64 + utf8(type) + utf8(callId) + contentBytes(content);
  }
  for (const key of step.metrics.keys()) bytes += 24 + utf8(key);
  for (const [key, value] of step.labels) bytes += 24 + utf8(key) + utf8(value);
  for (const { name, mediaType } of step.states) bytes += 144 + utf8(name) + utf8(mediaType);
  return bytes;
}

function contentBytes(content: Content | undefined): number {
  switch (content?.kind) {
    case undefined:
      return 0;
    case 'text':
      return 16 + utf8(content.text);
    case 'json':
      return 32 + utf8(content.json) + utf8(content.mediaType);
    case 'data':
      return 32 + content.data.length + utf8(content.mediaType);
    case 'state':
      return 144 + utf8(content.mediaType);
    case 'uri':
      return 32 + utf8(content.uri) + utf8(content.mediaType);
    case 'tensor':
      return 128 + content.shape.length * 5 + (content.data?.length ?? 0);
  }
}

function utf8(text: string): number {
  return Buffer.byteLength(text);
}
