/** Reads parts of a run in full: its tree, and its series with few points. */
import type { MetricSeries, Run } from '../../gen/es/anabranch/v1/run_pb.js';
import type { AnabranchClient } from '../client/index.ts';
import { FIRST_ANSWER, readAll } from './server_access.ts';

export function readRunTree(client: AnabranchClient, runId: string): Promise<Run[]> {
  return readAll(
    (pageToken) => client.runs.getRunTree({ runId, pageSize: 1000, pageToken }, FIRST_ANSWER),
    ({ runs }) => runs,
  );
}

/** More points than a sparkline has columns, so that each column shows the mean of several points. */
const MOST_POINTS = 1000;

export interface SeriesWanted {
  readonly runId: string;
  /** Reads only these keys. Empty: all. */
  readonly keys: readonly string[];
  /** The stage whose series are also read. */
  readonly stageId: string | undefined;
}

/** Returns the run's own series, then those of the stage. */
export async function readSeries(
  client: AnabranchClient,
  { runId, keys, stageId }: SeriesWanted,
): Promise<MetricSeries[]> {
  const whole = { runIds: [runId], keys: [...keys], maxPoints: MOST_POINTS };
  const scopes = [{ runLevelOnly: true }, ...(stageId === undefined ? [] : [{ stageId }])];
  const found = new Map<string, MetricSeries>();
  for (const scope of scopes) {
    for await (const { series } of client.runs.readMetrics({ ...whole, ...scope }, FIRST_ANSWER)) {
      for (const part of series) {
        const name = `${part.stageId} ${part.key}`;
        const before = found.get(name);
        // A series that is too long for one message continues in the next one.
        before?.metricSteps.push(...part.metricSteps);
        before?.values.push(...part.values);
        if (before === undefined) found.set(name, part);
      }
    }
  }
  return [...found.values()];
}
