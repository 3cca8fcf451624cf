import { StepScope, StepValue } from '../../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { AnabranchClient } from '../../../src/client/web/index.ts';
import { FINE_POINTS } from './growing_values.ts';
import type { Series } from './series.ts';
import { type PlottedValue, partsOf } from './value.ts';

/** What to plot: all trajectories of a tree or some, and all their own steps or those of a range. */
export type Plotted = ({ readonly treeId: string } | { readonly trajectoryIds: string[] }) & {
  readonly from?: number | undefined;
  readonly to?: number | undefined;
  /** Points of each trajectory at most. */
  readonly points?: number;
};

/** Reads a value of the own steps of each trajectory. */
export async function readValues(
  { trajectories }: Pick<AnabranchClient, 'trajectories'>,
  { from, to, points = FINE_POINTS, ...source }: Plotted,
  value: PlottedValue,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, Series>> {
  const found = new Map<string, Series>();
  const request = {
    ...source,
    ...seriesRequest(value),
    steps: StepScope.OWN,
    startStepNumber: BigInt(from ?? 0),
    ...(to === undefined ? {} : { endStepNumber: BigInt(to) + 1n }),
    maxPoints: points,
  };
  for await (const { series } of trajectories.readStepSeries(request, { signal })) {
    for (const { trajectoryId, stepNumbers, values } of series) {
      found.set(trajectoryId, { steps: Float64Array.from(stepNumbers, Number), values: Float64Array.from(values) });
    }
  }
  return found;
}

const VALUES: Readonly<Record<string, StepValue>> = {
  sum: StepValue.REWARD_SUM,
  reward: StepValue.REWARD_MEAN,
  metric: StepValue.METRIC,
  action: StepValue.ACTION,
  observation: StepValue.OBSERVATION,
  info: StepValue.INFO,
  state: StepValue.STATE,
};

/** Returns the fields of ReadStepSeriesRequest that name a value. */
export function seriesRequest(value: PlottedValue) {
  const { kind, name, pointer } = partsOf(value);
  return {
    value: VALUES[kind] ?? StepValue.UNSPECIFIED,
    [kind === 'metric' ? 'metricKey' : 'stateName']: name,
    pointer,
  };
}
