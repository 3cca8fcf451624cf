import { create } from '@bufbuild/protobuf';
import type { ServiceImpl } from '@connectrpc/connect';
import { type MetricPoint, type MetricSeries, MetricSeriesSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import {
  LogMetricsResponseSchema,
  type ReadMetricsRequest,
  type ReadMetricsResponse,
  ReadMetricsResponseSchema,
  RunService,
} from '../../gen/es/anabranch/v1/run_service_pb.js';
import { type LogMetricsArgs, logMetrics } from '../app/run/log_metrics.ts';
import { readMetrics, type SeriesRead } from '../app/run/read_metrics.ts';
import { parseUuid } from '../domain/ids.ts';
import type { Call } from '../service/method.ts';
import { serverStream, unary, type Wire } from './call.ts';

const rpc = RunService.method;

export function metricMethods(wire: Wire): Pick<ServiceImpl<typeof RunService>, 'logMetrics' | 'readMetrics'> {
  return {
    logMetrics: unary(wire, rpc.logMetrics, 'write', async ({ runId, points }, { app, caller }) => {
      await logMetrics(app, caller, { runId, points: points.map(toPoint) });
      return create(LogMetricsResponseSchema);
    }),

    readMetrics: serverStream(wire, rpc.readMetrics, answerMetrics, { isLarge: () => true }),
  };
}

async function* answerMetrics(
  request: ReadMetricsRequest,
  { app, caller, signal }: Call,
): AsyncGenerator<ReadMetricsResponse> {
  const { runIds, keys, stageId, runLevelOnly, maxPoints } = request;
  const range = { from: request.startMetricStep, to: request.endMetricStep };
  const args = { runIds, keys, stageId, runLevelOnly, range, maxPoints, signal };
  for await (const some of readMetrics(app, caller, args)) {
    const answer = create(ReadMetricsResponseSchema);
    answer.series = some.map(fromSeriesRead);
    yield answer;
  }
}

function toPoint({ key, metricStep, value, stageId }: MetricPoint, index: number): LogMetricsArgs['points'][number] {
  const stage = stageId === '' ? undefined : parseUuid(stageId, `points[${index}].stage_id`);
  return { name: key, metricStep, value, stageId: stage };
}

function fromSeriesRead({ series, extent, points }: SeriesRead): MetricSeries {
  const wire = create(MetricSeriesSchema);
  wire.runId = series.runId;
  wire.stageId = series.stageId;
  wire.key = series.name;
  // The lists are of this answer alone: nobody else changes them.
  wire.metricSteps = points.metricSteps as bigint[];
  wire.values = points.values as number[];
  wire.pointCount = extent.points;
  wire.nanCount = extent.nans;
  return wire;
}
