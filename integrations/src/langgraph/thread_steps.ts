import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
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
  /** Most steps of a page after the first one. Default: 1,000. */
  readonly mostSteps?: number;
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

/** Bytes of the states of a page, as far as the page before tells. All are in memory at the same time. */
const PAGE_BYTES = 4 * 1024 * 1024;

/** Lists steps of a thread in pages, those that its trajectories share with other threads included, newest first. */
export async function* threadPages(
  client: PatientClient,
  threadId: string,
  { view = View.FULL, hasBytes = view === View.FULL, pageSize = 0, mostSteps = 1000, ...filter }: StepFilter,
): AsyncGenerator<ListedStep[]> {
  const order = { inherited: true, order: StepOrder.TIME, descending: true };
  let request = { ...filter, ...order, view, taskId: taskOf(threadId), pageSize, pageToken: '' };
  do {
    const { steps, nextPageToken, data } = await client.listSteps(request, hasBytes);
    yield steps.flatMap((owned) => listed(owned, data));
    const bytes = [...data.values()].reduce((sum, { byteLength }) => sum + byteLength, 1);
    const fitting = Math.max(1, Math.floor((steps.length * PAGE_BYTES) / bytes));
    request = { ...request, pageSize: Math.min(fitting, mostSteps), pageToken: nextPageToken };
  } while (request.pageToken !== '');
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
