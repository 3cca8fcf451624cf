import type { Compressor } from '../../kit/compression.ts';
import { largerReward, smallerReward } from '../../kit/running_sums.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { bindOptionalReal, readOptionalReal } from '../../kit/values.ts';
import { addMetricSums, type MetricSum } from '../append/metric_sums.ts';
import { readRuns, StepRuns } from '../read/step_runs.ts';
import { compressedBody, compressedStates, readBody, readStates } from '../read/stored_body.ts';
import { type CommitRun, commitColumns, commitRuns } from './commits.ts';

/**
 * Returns one row with the steps of consecutive rows of a trajectory, compressed if that is worth it. Undefined if a
 * row is damaged: then the rows stay as they are, and reads report the damage.
 */
export async function mergedRow(compressor: Compressor, rows: readonly SegmentRow[]): Promise<SegmentRow | undefined> {
  const [first, last] = [rows[0]!, rows.at(-1)!];
  const bodies: Uint8Array[] = [];
  const rewards: string[] = [];
  const commits: CommitRun[] = [];
  const ends: Record<number, number> = {};
  const metrics = new Map<string, MetricSum>();
  const [names, labels] = [new StepRuns(), new StepRuns()];
  const states: Uint8Array[] = [];
  let [minReward, maxReward]: (number | undefined)[] = [];
  for (const row of rows) {
    const body = readBody(row.first_step_number, row);
    if (body === undefined) return undefined;
    bodies.push(body);
    const offset = Number(row.first_step_number - first.first_step_number);
    for (const [name, from, to] of readRuns(row.state_names)) names.addRun(name, offset + from, offset + to);
    for (const [name, from, to] of readRuns(row.labels)) labels.addRun(name, offset + from, offset + to);
    states.push(readStates(row));
    rewards.push(row.rewards.slice(1, -1));
    minReward = smallerReward(minReward, readOptionalReal(row.min_reward));
    maxReward = largerReward(maxReward, readOptionalReal(row.max_reward));
    for (const [index, end] of entriesOf<number>(row.ends)) ends[offset + Number(index)] = end;
    for (const [name, sum] of entriesOf<MetricSum>(row.metric_sums)) addMetricSums(metrics, name, sum);
    for (const [index, epoch, time] of commitRuns(row)) commits.push([offset + index, epoch, time]);
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
    ...commitColumns(commits),
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

function entriesOf<Value>(json: string): [string, Value][] {
  return json === '{}' ? [] : Object.entries(JSON.parse(json) as Record<string, Value>);
}
