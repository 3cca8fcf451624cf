import { create } from '@bufbuild/protobuf';
import {
  type ListStepsRequest,
  type ListStepsResponse,
  ListStepsResponseSchema,
  OwnedStepSchema,
  StepOrder,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Caller } from '../../domain/caller.ts';
import { invalidField } from '../../domain/errors.ts';
import { LIMITS } from '../../domain/limits.ts';
import type { Trajectory } from '../../domain/trajectory.ts';
import type { OwnedStep, StepCursor, StepFilter, StepSort } from '../../store/contract/step.ts';
import type { App } from '../../stream/app.ts';
import { findExperiment, findRun, findTrajectory, requireStillThere } from '../../stream/find.ts';
import { type Blob, blobBytes, InlineStates } from '../../stream/steps/inline_states.ts';
import { stepBytes } from '../../stream/steps/step_page.ts';
import { countFitting, totalBytes } from '../answer/message.ts';
import { setFilters, toBound, toInstant, toMap, toView } from '../convert/values.ts';
import type { Call } from '../method.ts';
import { pageArgsOf, pageLimit } from '../request/page_token.ts';
import type { Cursor } from '../request/query_tokens.ts';
import { fromStoredStep } from './step_out.ts';

const rpc = TrajectoryService.method.listSteps;

/** Maximum size of the stored steps in a page. States that were attached later are not counted. */
const PAGE_BYTES = 512 * 1024;
/** Maximum size of encoded steps in a page. Leaves room for the page token. */
const MESSAGE_BYTES = LIMITS.messageBytes - 1024;
/** Pages with at least this many steps wait for a slot, because they take long to encode. */
const MANY_STEPS = 32;

/** Lists steps (RD4). Pages of large steps are shorter, but have at least one step. Errors: as ListSteps. */
export async function listSteps(request: ListStepsRequest, call: Call): Promise<ListStepsResponse> {
  const { found, answer } = await findListed(request, call, request.inlineBytes);
  const { count, blobs } = await withBlobs(
    found,
    new InlineStates(call.app.store, call.caller.namespace, request.inlineBytes),
  );
  return create(ListStepsResponseSchema, { ...(await answer(count)), blobs });
}

interface Listed {
  /** The steps that fit into a response. */
  readonly found: readonly OwnedStep[];
  /** Returns the fields of a response with this many of them. */
  readonly answer: (count: number) => Promise<Pick<ListStepsResponse, 'steps' | 'nextPageToken'>>;
}

/**
 * Finds a page of steps, with the states of at most `inlineBytes` that they name. `path` leads to the request, for
 * errors. Errors: as ListSteps.
 */
export async function findListed(
  request: ListStepsRequest,
  { app, caller }: Call,
  inlineBytes: number,
  path = '',
): Promise<Listed> {
  const { namespace } = caller;
  const { trajectoryId } = request;
  const trajectory = trajectoryId === '' ? undefined : await findTrajectory(app, caller, trajectoryId);
  const filter = { ...toFilter(request, path), of: await toStepsOf(app, caller, request, trajectory) };
  const order = toOrder(request, path);
  const view = toView(request.view, 'BASIC');
  const { pageSize, pageToken, tokens } = pageArgsOf({ app, caller }, rpc, request, trajectory?.ref.key);
  const list = (limit: number, after: StepCursor | undefined) =>
    app.store.listSteps(namespace, filter, order, { limit, after, maxBytes: PAGE_BYTES, inlineBytes }, view);

  const limit = pageLimit(pageSize);
  const { steps: found, isCut } = await list(limit + 1, await tokens.open(pageToken, cursorOf));
  const fitting = countFitting(found, ({ step }) => stepBytes(step), MESSAGE_BYTES);
  return {
    found: found.slice(0, Math.min(limit, Math.max(1, fitting))),
    answer: async (count) => {
      const page = found.slice(0, count);
      const last = page.at(-1);
      const more = last !== undefined && (isCut || found.length > page.length);
      await requireThere(app, caller, request, trajectory);
      if (page.length >= MANY_STEPS) await app.store.slots.take(namespace);
      return {
        steps: page.map(({ owner, step, heir = '' }) =>
          create(OwnedStepSchema, { trajectoryId: owner.id, step: fromStoredStep(step), heirId: heir }),
        ),
        nextPageToken: more ? await tokens.seal(cursorText(afterStep(last, request))) : '',
      };
    },
  };
}

/** Returns how many steps of a page fit into the response with the states that they name, at least one. */
async function withBlobs(
  page: readonly OwnedStep[],
  inline: InlineStates,
): Promise<{ readonly count: number; readonly blobs: Blob[] }> {
  const blobs: Blob[] = [];
  let left = MESSAGE_BYTES;
  inline.expect(page);
  for (const [i, owned] of page.entries()) {
    left -= stepBytes(owned.step);
    if (left < 0 && i > 0) return { count: i, blobs };
    const before = blobs.length;
    for await (const some of inline.of(owned)) {
      const fitting = countFitting(some, blobBytes, left);
      blobs.push(...some.slice(0, fitting));
      left -= totalBytes(some.slice(0, fitting), blobBytes);
      if (fitting === some.length) continue;
      if (i === 0) return { count: 1, blobs };
      return { count: i, blobs: blobs.slice(0, before) };
    }
  }
  return { count: page.length, blobs };
}

function toFilter(request: ListStepsRequest, path: string): Omit<StepFilter, 'of'> {
  const { terminalOnly, hasState, hasAnyState, labels, minReward, maxReward, inherited } = request;
  if (inherited && request.trajectoryId !== '')
    throw invalidField(`${path}inherited`, 'must be unset with trajectory_id: the list has all steps of the lineage');
  return setFilters({
    terminalOnly,
    inherited,
    anyOfStates: request.anyOfStates,
    hasState: hasState !== '' ? hasState : hasAnyState || undefined,
    labels: toMap(labels),
    minReward: toBound(minReward, `${path}min_reward`),
    maxReward: toBound(maxReward, `${path}max_reward`),
    commitTimeFrom: toInstant(request.commitTimeFrom),
    commitTimeTo: toInstant(request.commitTimeTo),
  });
}

const ORDERS: Readonly<Record<StepOrder, StepSort['by']>> = {
  [StepOrder.UNSPECIFIED]: 'NUMBER',
  [StepOrder.NUMBER]: 'NUMBER',
  [StepOrder.REWARD]: 'REWARD',
  [StepOrder.TIME]: 'TIME',
  [StepOrder.METRIC]: 'METRIC',
};

/** Errors: INVALID_REQUEST. */
function toOrder({ order, descending, metricKey }: ListStepsRequest, path: string): StepSort {
  const by = ORDERS[order];
  const field = `${path}metric_key`;
  if (by === 'METRIC' && metricKey === '') throw invalidField(field, 'is required with order METRIC');
  if (by !== 'METRIC' && metricKey !== '') throw invalidField(field, 'is allowed only with order METRIC');
  return by === 'METRIC' ? { by, metric: metricKey, descending } : { by, descending };
}

/** Returns the steps that the request selects. Exactly one of the four ids is set. */
async function toStepsOf(
  app: App,
  caller: Caller,
  { taskId, runId, experimentId }: ListStepsRequest,
  trajectory: Trajectory | undefined,
): Promise<StepFilter['of']> {
  if (trajectory !== undefined) {
    return { tree: trajectory.ref.tree, lineage: await app.lineages.whole(app.store, caller.namespace, trajectory) };
  }
  if (runId !== '') return { runId };
  return experimentId === '' ? { taskId } : { experimentId };
}

/**
 * Requires that the resource still exists, because a concurrent deletion may have removed steps of the page. Errors:
 * TRAJECTORY_NOT_FOUND, RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND.
 */
async function requireThere(
  app: App,
  caller: Caller,
  { runId, experimentId }: ListStepsRequest,
  trajectory: Trajectory | undefined,
): Promise<void> {
  if (trajectory !== undefined) await requireStillThere(app, caller, trajectory);
  else if (runId !== '') await findRun(app, caller, runId);
  else if (experimentId !== '') await findExperiment(app, caller, { id: experimentId });
}

function afterStep({ owner, step }: OwnedStep, { metricKey }: ListStepsRequest): StepCursor {
  const { stepNumber, reward, commitTime } = step;
  return { key: owner.key, stepNumber, reward, commitTime, metric: step.metrics.get(metricKey) };
}

function cursorText({ key, stepNumber, reward, commitTime, metric }: StepCursor): Cursor {
  return [`${key}`, `${stepNumber}`, `${commitTime}`, `${reward ?? ''}`, `${metric ?? ''}`];
}

function cursorOf([key, stepNumber, commitTime, reward, metric]: Cursor): StepCursor {
  return {
    key: BigInt(key!),
    stepNumber: BigInt(stepNumber!),
    commitTime: BigInt(commitTime!),
    reward: reward === '' ? undefined : Number(reward),
    metric: metric === '' ? undefined : Number(metric),
  };
}
