import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ListStepsRequestSchema,
  type OwnedStep,
  StepOrder,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { StateReference } from '../../../src/client/states.ts';
import type { PatientClient } from '../patient_client.ts';
import type { StoredStep } from './checkpoint_step.ts';
import { taskOf } from './names.ts';

/** Which steps of a thread to list. */
export interface StepFilter
  extends Pick<
    MessageInitShape<typeof ListStepsRequestSchema>,
    'anyOfStates' | 'labels' | 'commitTimeTo' | 'pageSize' | 'view'
  > {
  /** Whether the steps have the bytes of their states. Default: in the FULL view, which is the default view. */
  readonly hasBytes?: boolean;
}

/** Where a checkpoint is stored. */
export interface Place {
  readonly trajectoryId: string;
  readonly stepNumber: bigint;
  /** A trajectory of the thread that has the step in its lineage. Not the owner if the thread is a copy. */
  readonly heirId: string;
  /** When it was committed. Undefined if this process stored it and has not read it. */
  readonly time: Timestamp | undefined;
}

/** A listed step: with the bytes of its states, and its place. */
export interface ListedStep extends StoredStep {
  readonly place: Place;
}

/** States with fewer bytes come with their steps. */
const INLINE_BYTES = 262_144;

/** Lists steps of a thread in pages, those that its trajectories share with other threads included, newest first. */
export async function* threadPages(
  client: PatientClient,
  threadId: string,
  { view = View.FULL, hasBytes = view === View.FULL, ...filter }: StepFilter,
): AsyncGenerator<ListedStep[]> {
  const request = {
    ...filter,
    view,
    taskId: taskOf(threadId),
    inherited: true,
    order: StepOrder.TIME,
    descending: true,
    inlineBytes: hasBytes ? INLINE_BYTES : 0,
  };
  let pageToken = '';
  do {
    const page = await client.call(({ trajectories }) => trajectories.listSteps({ ...request, pageToken }));
    const data = new Map(page.blobs.map(({ digest, data: bytes }) => [digest, bytes]));
    const missing = hasBytes ? referencesOf(page.steps, data) : [];
    for (const [digest, bytes] of await client.states(missing)) data.set(digest, bytes);
    yield page.steps.flatMap((owned) => listed(owned, data));
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
}

/** Returns all steps of a thread that match. */
export async function threadSteps(client: PatientClient, threadId: string, filter: StepFilter): Promise<ListedStep[]> {
  const steps: ListedStep[] = [];
  for await (const page of threadPages(client, threadId, { pageSize: 1000, ...filter })) steps.push(...page);
  return steps;
}

/** Orders steps by commit, the earliest first. */
export function byCommit({ step: one }: StoredStep, { step: other }: StoredStep): number {
  return byTime(one.commitTime, other.commitTime) || Number(one.stepNumber - other.stepNumber);
}

/** Returns whether each step, of those that are listed newest first, comes behind the one at a place. */
export function committedBefore({ trajectoryId, stepNumber, time }: Place): (listed: ListedStep) => boolean {
  let isPassed = false;
  return ({ place }) => {
    const isOwn = place.trajectoryId === trajectoryId;
    isPassed ||= isOwn && place.stepNumber === stepNumber;
    // Steps of several trajectories can have the same time.
    return (byTime(place.time, time) || (isOwn ? Number(place.stepNumber - stepNumber) : isPassed ? -1 : 1)) < 0;
  };
}

/** Orders times, the earliest first. */
function byTime(one: Timestamp | undefined, other: Timestamp | undefined): number {
  return Number((one?.seconds ?? 0n) - (other?.seconds ?? 0n)) || (one?.nanos ?? 0) - (other?.nanos ?? 0);
}

function listed({ trajectoryId, heirId, step }: OwnedStep, data: ReadonlyMap<string, Uint8Array>): ListedStep[] {
  if (step === undefined) return [];
  const { stepNumber, commitTime: time } = step;
  return [{ step, data, place: { trajectoryId, stepNumber, heirId, time } }];
}

/** Returns the states that did not come with their steps, each once. Named by the heir: the owner may be deleted. */
function referencesOf(steps: readonly OwnedStep[], data: ReadonlyMap<string, Uint8Array>): StateReference[] {
  const missing = new Map<string, StateReference>();
  for (const { heirId: trajectoryId, step } of steps) {
    for (const { name, digest, prunedTime } of step?.states ?? []) {
      if (step === undefined || prunedTime !== undefined || data.has(digest) || missing.has(digest)) continue;
      missing.set(digest, { trajectoryId, stepNumber: step.stepNumber, name });
    }
  }
  return [...missing.values()];
}
