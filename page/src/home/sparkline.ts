import type { Run } from '../../../gen/es/anabranch/v1/run_pb.js';
import type { AnabranchClient } from '../../../src/client/web/index.ts';
import { readValues } from '../tree/read_values.ts';
import { boundsOf, type Series } from '../tree/series.ts';

/** Size of a line in pixels. */
export const [WIDTH, HEIGHT] = [96, 20];
/** Points of a line: one for each three pixels. */
const POINTS = 32;

/** Sums of rewards of a run's main trajectory, and the reward of the run when they were read. */
export interface RewardLine {
  readonly rewardSum: number;
  readonly series: Series;
}

type Rewarded = Pick<Run, 'mainTrajectoryId' | 'rewardSum'>;

/**
 * Returns the lines of runs by their main trajectories. Reads those of runs whose rewards have changed, with one call.
 */
export async function readRewardLines(
  api: Pick<AnabranchClient, 'trajectories'>,
  runs: readonly Rewarded[],
  known: ReadonlyMap<string, RewardLine>,
  signal: AbortSignal,
): Promise<ReadonlyMap<string, RewardLine>> {
  const rewards = new Map(runs.map(({ mainTrajectoryId, rewardSum }) => [mainTrajectoryId, rewardSum]));
  rewards.delete('');
  const trajectoryIds = [...rewards.keys()].filter((id) => !Object.is(known.get(id)?.rewardSum, rewards.get(id)));
  if (trajectoryIds.length === 0) return known;
  const lines = new Map(known);
  const read = await readValues(api, { trajectoryIds, points: POINTS }, 'sum', signal);
  for (const [id, series] of read) lines.set(id, { series, rewardSum: rewards.get(id) ?? 0 });
  return lines;
}

/** Returns the path of a line that fills a box of 96 × 20 pixels. Undefined if there is no line to draw. */
export function sparkPath(series: Series): string | undefined {
  const bounds = boundsOf([series]);
  const [first = 0, last = 0] = [series.steps[0], series.steps.at(-1)];
  if (bounds === undefined || first === last) return undefined;
  const [low, high] = bounds;
  const points: string[] = [];
  for (const [at, step] of series.steps.entries()) {
    const value = series.values[at] ?? Number.NaN;
    if (!Number.isFinite(value)) continue;
    const x = 1 + ((step - first) / (last - first)) * (WIDTH - 2);
    const y = HEIGHT - 1 - ((value - low) / (high - low || 1)) * (HEIGHT - 2);
    points.push(`${x.toFixed(1)} ${y.toFixed(1)}`);
  }
  return points.length < 2 ? undefined : `M${points.join('L')}`;
}
