import {
  ReadStepsResponseSchema,
  type ReadTrajectoriesRequest,
  ReadTrajectoriesRequestSchema,
  ReadTrajectoriesResponseSchema,
  StepScope,
  TrajectoryOrder,
  TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import type { EncodedSteps } from '../../store/contract/step.ts';
import { readSteps as readStepsOf, type StepsRead } from '../../stream/steps/read.ts';
import { type Position, type ReadTrajectoriesArgs, readTrajectories as read } from '../../stream/trajectories/read.ts';
import { type EncodedResponse, withSteps } from '../answer/encoded.ts';
import { toView } from '../convert/values.ts';
import type { Call, ServerStream } from '../method.ts';
import { type Cursor, tokensOf } from '../request/query_tokens.ts';
import { fromTrajectory } from './messages.ts';
import { toReadFilter } from './requests.ts';

const rpc = TrajectoryService.method.readTrajectories;

/** Reads trajectories with their steps (RD6). */
export const readTrajectories: ServerStream<typeof rpc, EncodedResponse> = { messages };

async function* messages(
  request: ReadTrajectoriesRequest,
  { app, caller, errorOf }: Call,
): AsyncGenerator<EncodedResponse, void, undefined> {
  const filter = toReadFilter(request);
  const view = toView(request.view, 'FULL');
  const tokens = tokensOf({ app, caller }, rpc, request);
  const args = {
    filter,
    order: toOrder(request),
    steps: SCOPES[request.steps],
    view,
    inlineBytes: request.inlineBytes,
    after: await tokens.open(request.resumeToken, positionOf),
  };
  for await (const { trajectory, steps, blobs = [], isDone, isDeleted, damage, position } of read(app, caller, args)) {
    const fields = {
      trajectory: trajectory && fromTrajectory(trajectory, view),
      ownerId: steps?.owner.id ?? '',
      trajectoryDone: isDone,
      deleted: isDeleted,
      resumeToken: position === undefined ? '' : await tokens.seal(positionText(position)),
      blobs: [...blobs],
      ...(damage && { error: errorOf(damage, ReadTrajectoriesRequestSchema, request) }),
    };
    yield withSteps(ReadTrajectoriesResponseSchema, fields, steps);
  }
}

/** Errors: INVALID_REQUEST. */
function toOrder({ order, descending, trajectoryIds }: ReadTrajectoriesRequest): ReadTrajectoriesArgs['order'] {
  const by = ORDERS[order];
  if (by === 'REQUESTED' && trajectoryIds.length === 0) {
    throw invalidField('trajectory_ids', 'is required with order REQUESTED, which is the order of these ids');
  }
  return { by, descending };
}

const ORDERS: Readonly<Record<TrajectoryOrder, ReadTrajectoriesArgs['order']['by']>> = {
  [TrajectoryOrder.UNSPECIFIED]: 'CREATION',
  [TrajectoryOrder.CREATION]: 'CREATION',
  [TrajectoryOrder.REWARD_SUM]: 'REWARD_SUM',
  [TrajectoryOrder.REQUESTED]: 'REQUESTED',
};

const SCOPES: Readonly<Record<StepScope, ReadTrajectoriesArgs['steps']>> = {
  [StepScope.UNSPECIFIED]: 'LINEAGE',
  [StepScope.NONE]: 'NONE',
  [StepScope.OWN]: 'OWN',
  [StepScope.LINEAGE]: 'LINEAGE',
};

function positionText({ newest, place, rest }: Position): Cursor {
  const steps = rest === undefined ? [] : [`${rest.from}`, `${rest.to}`];
  return [`${newest}`, `${place.key}`, `${place.rank}`, ...steps];
}

function positionOf([newest, key, rank, from, to]: Cursor): Position {
  const rest = from === undefined ? undefined : { from: BigInt(from), to: BigInt(to!) };
  return { newest: BigInt(newest!), place: { key: BigInt(key!), rank: Number(rank) }, rest };
}

/** Reads steps (RD1), and follows them (RD2). */
export const readSteps: ServerStream<typeof TrajectoryService.method.readSteps, EncodedResponse> = {
  async *messages({ view, ...request }, { app, caller, signal }) {
    const args = { ...request, view: toView(view, 'FULL'), signal };
    for await (const read of readStepsOf(app, caller, args)) yield fromStepsRead(read);
  },
};

/** Caches the last response with a part: live followers share parts. */
const shared = new WeakMap<EncodedSteps, { readonly read: StepsRead; readonly response: EncodedResponse }>();

function fromStepsRead(read: StepsRead): EncodedResponse {
  const { part, firstStepNumber, nextStepNumber, caughtUp, sealed, blobs = [] } = read;
  const known = part && shared.get(part);
  if (known !== undefined && known.read.caughtUp === caughtUp && known.read.sealed === sealed) return known.response;
  const fields = { trajectoryId: part?.owner.id ?? '', nextStepNumber, caughtUp, sealed, blobs: [...blobs] };
  const response = withSteps(ReadStepsResponseSchema, fields, part, firstStepNumber);
  if (part !== undefined) shared.set(part, { read, response });
  return response;
}
