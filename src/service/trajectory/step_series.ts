import { create } from '@bufbuild/protobuf';
import {
  type ReadStepSeriesRequest,
  type ReadStepSeriesResponse,
  ReadStepSeriesResponseSchema,
  StepScope,
  StepSeriesSchema,
  StepValue,
  type TrajectoryService,
} from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { invalidField } from '../../domain/errors.ts';
import { ANSWER_BYTES } from '../../domain/limits.ts';
import { DEFAULT_STATE_NAME } from '../../domain/step.ts';
import { parsePointer } from '../../domain/step_series.ts';
import { requireRange } from '../../stream/steps/read.ts';
import { sizerOf } from '../answer/size.ts';
import type { ServerStream } from '../method.ts';
import { readSeries, type SeriesArgs, type SeriesRead } from './series.ts';

const seriesBytes = sizerOf(StepSeriesSchema);

/** Reads downsampled series of steps (RD9). */
export const readStepSeries: ServerStream<typeof TrajectoryService.method.readStepSeries> = {
  isLarge: true,
  async *messages(request, { app, caller }) {
    requireRange(request.startStepNumber, request.endStepNumber);
    const args = toArgs(request);
    for await (const read of readSeries(app, caller, args)) yield* messagesOf(read);
  },
};

/** Points of a request that names no number. */
const DEFAULT_POINTS = 1000;

function toArgs(request: ReadStepSeriesRequest): SeriesArgs {
  return {
    of: request.treeId === '' ? { ids: request.trajectoryIds } : { treeOf: request.treeId },
    isOwn: request.steps === StepScope.OWN,
    from: request.startStepNumber,
    to: request.endStepNumber,
    value: toValue(request),
    maxPoints: request.maxPoints || DEFAULT_POINTS,
    stretchSteps: request.stretchSteps,
  };
}

/** Errors: INVALID_REQUEST. */
function toValue({ value, metricKey, pointer, stateName }: ReadStepSeriesRequest): SeriesArgs['value'] {
  const isMetric = value === StepValue.METRIC;
  if (isMetric && metricKey === '') throw invalidField('metric_key', 'is required with value METRIC');
  if (!isMetric && metricKey !== '') throw invalidField('metric_key', 'is allowed only with value METRIC');
  if (value !== StepValue.STATE && stateName !== '') {
    throw invalidField('state_name', 'is allowed only with value STATE');
  }
  const json = JSON_VALUES[value];
  if (json === undefined) {
    if (pointer !== '')
      throw invalidField('pointer', 'is allowed only with values ACTION, OBSERVATION, INFO and STATE');
    return isMetric ? { of: 'METRIC', key: metricKey } : { of: REWARDS[value] ?? 'REWARD_SUM' };
  }
  const path = parsePointer(pointer);
  if (path === undefined) {
    throw invalidField('pointer', 'must be empty or a JSON Pointer (RFC 6901), such as /pole/angle');
  }
  return json === 'STATE' ? { of: json, name: stateName || DEFAULT_STATE_NAME, path } : { of: json, path };
}

const JSON_VALUES: { readonly [Value in StepValue]?: 'ACTION' | 'OBSERVATION' | 'INFO' | 'STATE' } = {
  [StepValue.ACTION]: 'ACTION',
  [StepValue.OBSERVATION]: 'OBSERVATION',
  [StepValue.INFO]: 'INFO',
  [StepValue.STATE]: 'STATE',
};

const REWARDS: { readonly [Value in StepValue]?: 'REWARD' | 'REWARD_MEAN' } = {
  [StepValue.REWARD]: 'REWARD',
  [StepValue.REWARD_MEAN]: 'REWARD_MEAN',
};

/** Divides series into messages. */
function* messagesOf(read: readonly SeriesRead[]): Generator<ReadStepSeriesResponse> {
  let response = create(ReadStepSeriesResponseSchema);
  let bytes = 0;
  for (const { trajectory, series } of read) {
    const { stepNumbers, values, stretchSteps } = series;
    const shown = create(StepSeriesSchema, {
      trajectoryId: trajectory.id,
      stepNumbers: [...stepNumbers],
      values: [...values],
      stretchSteps,
      nextStepNumber: trajectory.nextStepNumber,
    });
    const size = seriesBytes(shown);
    if (response.series.length > 0 && bytes + size > ANSWER_BYTES) {
      yield response;
      response = create(ReadStepSeriesResponseSchema);
      bytes = 0;
    }
    response.series.push(shown);
    bytes += size;
  }
  if (response.series.length > 0) yield response;
}
