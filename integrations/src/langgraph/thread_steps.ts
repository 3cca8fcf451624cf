import type { MessageInitShape } from '@bufbuild/protobuf';
import { type Timestamp, timestampMs } from '@bufbuild/protobuf/wkt';
import { View } from '../../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type ListStepsRequestSchema,
  type OwnedStep,
  StepOrder,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
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
    const inline = new Map(page.blobs.map(({ digest, data }) => [digest, data]));
    const steps: ListedStep[] = [];
    for (const owned of page.steps) {
      const listed = await withStates(client, owned, inline, hasBytes);
      if (listed !== undefined) steps.push(listed);
    }
    yield steps;
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
export function byCommit(one: StoredStep, other: StoredStep): number {
  const [first, second] = [one, other].map(({ step: { commitTime } }) => commitTime && timestampMs(commitTime));
  return (first ?? 0) - (second ?? 0) || Number(one.step.stepNumber - other.step.stepNumber);
}

async function withStates(
  client: PatientClient,
  { trajectoryId, heirId, step }: OwnedStep,
  inline: ReadonlyMap<string, Uint8Array>,
  hasBytes: boolean,
): Promise<ListedStep | undefined> {
  if (step === undefined) return undefined;
  const { stepNumber, commitTime: time } = step;
  const place = { trajectoryId, stepNumber, heirId, time };
  const data = new Map<string, Uint8Array>();
  for (const { name, digest, prunedTime } of hasBytes ? step.states : []) {
    if (prunedTime !== undefined) continue;
    const bytes = inline.get(digest) ?? (await client.download({ trajectoryId: heirId, stepNumber, name }));
    data.set(digest, bytes);
  }
  return { step, data, place };
}
