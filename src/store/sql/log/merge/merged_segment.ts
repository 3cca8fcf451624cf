import type { SegmentCompressor } from '../../kit/compression.ts';
import { largerReward, smallerReward } from '../../kit/running_sums.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { bindOptionalReal, readOptionalReal } from '../../kit/values.ts';
import { addMetricSums, type MetricSum } from '../append/metric_sums.ts';
import { type CommitRun, commitColumns, commitRuns } from '../read/commits.ts';
import { readRuns, StepRuns } from '../read/step_runs.ts';
import { compressedBody, compressedStates, readBody, readStates } from '../read/stored_body.ts';

/**
 * Returns one segment with the steps of consecutive segments of a trajectory, compressed if that is worth it. Undefined
 * if a segment is damaged: then the segments stay as they are, and reads report the damage.
 */
export async function mergedSegment(
  compressor: SegmentCompressor,
  segments: readonly SegmentRow[],
): Promise<SegmentRow | undefined> {
  const [first, last] = [segments[0]!, segments.at(-1)!];
  const bodies: Uint8Array[] = [];
  const rewards: string[] = [];
  const commits: CommitRun[] = [];
  const ends: Record<number, number> = {};
  const metrics = new Map<string, MetricSum>();
  const [names, labels] = [new StepRuns(), new StepRuns()];
  const states: Uint8Array[] = [];
  let [minReward, maxReward]: (number | undefined)[] = [];
  for (const segment of segments) {
    const body = readBody(segment.first_step_number, segment);
    const columns = readColumns(segment);
    if (body === undefined || columns === undefined) return undefined;
    bodies.push(body);
    const offset = Number(segment.first_step_number - first.first_step_number);
    for (const [name, from, to] of columns.names) names.addRun(name, offset + from, offset + to);
    for (const [name, from, to] of columns.labels) labels.addRun(name, offset + from, offset + to);
    states.push(readStates(segment));
    rewards.push(segment.rewards.slice(1, -1));
    minReward = smallerReward(minReward, readOptionalReal(segment.min_reward));
    maxReward = largerReward(maxReward, readOptionalReal(segment.max_reward));
    for (const [index, end] of columns.ends) ends[offset + Number(index)] = end;
    for (const [name, sum] of columns.metrics) addMetricSums(metrics, name, sum);
    for (const [index, epoch, time] of columns.commits) commits.push([offset + index, epoch, time]);
  }
  const [packedStates, packedBody] = await Promise.all([
    compressedStates(compressor, Buffer.concat(states)),
    compressedBody(compressor, first.first_step_number, Buffer.concat(bodies)),
  ]);
  return {
    tree: first.tree,
    trajectory: first.trajectory,
    first_step_number: first.first_step_number,
    next_step_number: last.next_step_number,
    namespace: first.namespace,
    ...commitColumns(commits, Number(last.next_step_number - first.first_step_number)),
    reward_sum: first.reward_sum,
    byte_sum: first.byte_sum,
    rewards: `[${rewards.join(',')}]`,
    min_reward: bindOptionalReal(minReward),
    max_reward: bindOptionalReal(maxReward),
    ends: JSON.stringify(ends),
    metric_sums: JSON.stringify(Object.fromEntries(metrics)),
    state_names: names.toJson(),
    labels: labels.toJson(),
    ...packedStates,
    ...packedBody,
  };
}

/** Returns the columns that are lists, or undefined if one cannot be read. */
function readColumns(segment: SegmentRow) {
  try {
    return {
      names: [...readRuns(segment.state_names)],
      labels: [...readRuns(segment.labels)],
      ends: entriesOf<number>(segment.ends),
      metrics: entriesOf<MetricSum>(segment.metric_sums),
      commits: commitRuns(segment),
    };
  } catch {
    return undefined;
  }
}

function entriesOf<Value>(json: string): [string, Value][] {
  return json === '{}' ? [] : Object.entries(JSON.parse(json) as Record<string, Value>);
}
