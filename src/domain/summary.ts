/**
 * Counts of the rollouts of one combination. `summaryOf` computes statistics from them (M3). Unset and NaN rewards are
 * excluded.
 */
export interface SummaryCounts {
  readonly pending: bigint;
  readonly live: bigint;
  readonly completed: bigint;
  readonly failed: bigint;
  readonly cancelled: bigint;
  /** Rollouts that are COMPLETED with a verdict or FAILED; and those of them that are COMPLETED and succeeded. */
  readonly judged: bigint;
  readonly successes: bigint;
  /** All 0 without rewards. */
  readonly rewards: {
    readonly count: bigint;
    readonly sum: number;
    readonly min: number;
    readonly max: number;
    /** Sum of squared deviations from the mean. */
    readonly squares: number;
    readonly median: number;
  };
  /** Turns of terminal rollouts. */
  readonly turns: bigint;
  /** Terminal rollouts that had an attempt: time from the claim of the latest attempt to its end. */
  readonly durations: { readonly count: bigint; readonly seconds: number };
  /** The same rollouts: time from when the rollout last became claimable to that claim. */
  readonly queueTimes: { readonly count: bigint; readonly seconds: number };
  /** Sum of the metric `tokens` over terminal rollouts that have it. */
  readonly tokens: { readonly count: bigint; readonly sum: number };
  /** M3: groups of each task, for pass@k. Rollouts without a task are not counted. */
  readonly tasks: readonly TaskGroups[];
}

/** Counts of the groups of one task. Each group is judged as a whole, before filters and dimensions. */
export interface TaskGroups {
  /** CONTINUE groups that count: their number, and the counted rollouts of the task in them. */
  readonly groups: bigint;
  readonly trials: bigint;
  readonly successes: bigint;
  /** Number of CONTINUE groups that do not count. */
  readonly unfinished: bigint;
  readonly stopping: readonly StoppingGroups[];
}

/** CANCEL_PENDING groups with the same counts. Positions of siblings are in queue order (Q5), from 1. */
interface StoppingGroups {
  readonly groups: bigint;
  readonly siblings: bigint;
  /** Undefined: no sibling succeeded. */
  readonly firstSuccess: bigint | undefined;
  /** The first sibling that is neither COMPLETED with a verdict nor FAILED. Undefined: none. */
  readonly firstUnknown: bigint | undefined;
}

export interface Summary {
  readonly rollouts: bigint;
  /** Whether all siblings are terminal. */
  readonly finished: boolean;
  readonly unjudged: bigint;
  readonly successRate: Estimate | undefined;
  readonly passAt: readonly PassAt[];
  readonly rewardMean: number | undefined;
  /** Standard deviation of the sample. Undefined below two rewards. */
  readonly rewardStd: number | undefined;
  readonly rewardMin: number | undefined;
  readonly rewardMedian: number | undefined;
  readonly rewardMax: number | undefined;
  readonly meanTurns: number | undefined;
  readonly meanSeconds: number | undefined;
  readonly meanQueueSeconds: number | undefined;
  readonly tokens: number | undefined;
  readonly tokensPerSuccess: number | undefined;
}

export interface Estimate {
  readonly value: number;
  /** 95 % interval. Undefined if the error of the value cannot be estimated. */
  readonly interval: { readonly low: number; readonly high: number } | undefined;
}

interface PassAt {
  readonly k: number;
  /** Undefined if no task counts. */
  readonly estimate: Estimate | undefined;
  /** Number of tasks that count. */
  readonly tasks: bigint;
  /** Number of groups that are in no task's value for this k. */
  readonly groupsExcluded: bigint;
}

/** M3: computes the summary of rollouts. `passAt` lists the requested values of k. */
export function summaryOf(counts: SummaryCounts, passAt: readonly number[]): Summary {
  const { pending, live, completed, failed, cancelled, judged, successes, rewards, turns, durations, tokens } = counts;
  const terminal = completed + failed + cancelled;
  const some = rewards.count > 0n;
  return {
    rollouts: pending + live + terminal,
    finished: pending + live === 0n,
    unjudged: completed + failed - judged,
    successRate: rateOf(successes, judged),
    passAt: passAt.map((k) => passAtOf(k, counts.tasks)),
    rewardMean: some ? meanOf(rewards) : undefined,
    rewardStd: rewards.count > 1n ? Math.sqrt(rewards.squares / Number(rewards.count - 1n)) : undefined,
    rewardMin: some ? rewards.min : undefined,
    rewardMedian: some ? rewards.median : undefined,
    rewardMax: some ? rewards.max : undefined,
    meanTurns: terminal > 0n ? Number(turns) / Number(terminal) : undefined,
    meanSeconds: meanSecondsOf(durations),
    meanQueueSeconds: meanSecondsOf(counts.queueTimes),
    tokens: tokens.count > 0n ? tokens.sum : undefined,
    tokensPerSuccess: tokens.count > 0n && successes > 0n ? tokens.sum / Number(successes) : undefined,
  };
}

/** Not negative, although a clock may have been set back. */
function meanSecondsOf({ count, seconds }: SummaryCounts['durations']): number | undefined {
  return count > 0n ? Math.max(0, seconds / Number(count)) : undefined;
}

/** Statistics of the final rewards of trajectories. Undefined without rewards; the deviation is undefined below two. */
export interface FinalRewards {
  readonly mean: number | undefined;
  /** Standard deviation of the sample. */
  readonly std: number | undefined;
  readonly min: number | undefined;
  readonly median: number | undefined;
  readonly max: number | undefined;
}

export function finalRewardsOf(rewards: SummaryCounts['rewards']): FinalRewards {
  if (rewards.count === 0n) {
    return { mean: undefined, std: undefined, min: undefined, median: undefined, max: undefined };
  }
  const { count, squares, min, median, max } = rewards;
  const std = count > 1n ? Math.sqrt(squares / Number(count - 1n)) : undefined;
  return { mean: meanOf(rewards), std, min, median, max };
}

/** Clamped to the range of the values, because the sum is rounded. */
function meanOf({ count, sum, min, max }: SummaryCounts['rewards']): number {
  return Math.min(max, Math.max(min, sum / Number(count)));
}

/** Two-sided 95 % quantile of the normal distribution. */
const Z = 1.959963984540054;

/** Returns a rate with Wilson's interval, which stays within 0 and 1 and is never empty. Undefined without trials. */
function rateOf(successes: bigint, trials: bigint): Estimate | undefined {
  if (trials === 0n) return undefined;
  const [c, n] = [Number(successes), Number(trials)];
  const centre = (c + Z ** 2 / 2) / (n + Z ** 2);
  const half = (Z / (n + Z ** 2)) * Math.sqrt((c * (n - c)) / n + Z ** 2 / 4);
  const low = c === 0 ? 0 : Math.max(0, centre - half);
  const high = c === n ? 1 : Math.min(1, centre + half);
  return { value: c / n, interval: { low, high } };
}

/** Returns pass@k over the tasks that have a value for this k. */
function passAtOf(k: number, tasks: readonly TaskGroups[]): PassAt {
  const values = tasks.map((task) => taskValue(k, task));
  const chances = values.map(({ chance }) => chance).filter((chance) => chance !== undefined);
  const groupsExcluded = values.reduce((sum, { excluded }) => sum + excluded, 0n);
  return { k, estimate: averageOf(chances), tasks: BigInt(chances.length), groupsExcluded };
}

/**
 * Returns the probability that one of k tries at a task succeeds. It is the unbiased estimator over the task's CONTINUE
 * groups, and the mean over its CANCEL_PENDING groups, weighted by the numbers of groups. Each of the two is unbiased
 * if every tried rollout has a verdict. A sibling without a verdict before a success excludes its group only if no
 * success follows.
 */
function taskValue(k: number, task: TaskGroups): { readonly chance: number | undefined; readonly excluded: bigint } {
  const estimated = task.trials >= BigInt(k) && task.groups > 0n;
  let [counted, sum] = estimated
    ? [task.groups, Number(task.groups) * drawOne(Number(task.trials), Number(task.successes), k)]
    : [0n, 0];
  let excluded = task.unfinished + (estimated ? 0n : task.groups);
  for (const stopping of task.stopping) {
    const success = firstSucceeded(BigInt(k), stopping);
    if (success === undefined) excluded += stopping.groups;
    else counted += stopping.groups;
    if (success === true) sum += Number(stopping.groups);
  }
  return { chance: counted === 0n ? undefined : sum / Number(counted), excluded };
}

/**
 * Returns whether one of the first k siblings succeeded. Undefined if unknown, or if there are fewer siblings, because
 * then a success would be counted more often than a failure.
 */
function firstSucceeded(k: bigint, { siblings, firstSuccess, firstUnknown }: StoppingGroups): boolean | undefined {
  if (siblings < k) return undefined;
  if (firstSuccess !== undefined && firstSuccess <= k) return true;
  return firstUnknown === undefined || firstUnknown > k ? false : undefined;
}

/** Returns the mean over tasks with the normal interval. A single task has no interval. */
function averageOf(chances: readonly number[]): Estimate | undefined {
  const count = chances.length;
  if (count === 0) return undefined;
  const value = chances.reduce((sum, chance) => sum + chance, 0) / count;
  if (count === 1) return { value, interval: undefined };
  const squares = chances.reduce((sum, chance) => sum + (chance - value) ** 2, 0);
  const half = Z * Math.sqrt(squares / (count - 1) / count);
  return { value, interval: { low: Math.max(0, value - half), high: Math.min(1, value + half) } };
}

/**
 * Returns the probability that k of n, drawn without replacement, contain at least one of c: 1 − C(n−c,k)/C(n,k). It
 * sums logarithms, because the binomials overflow and small probabilities would be lost against 1. c and k can be
 * exchanged, so the smaller number of factors is used.
 */
function drawOne(n: number, c: number, k: number): number {
  if (n - c < k) return 1;
  const [factors, drawn] = c < k ? [c, k] : [k, c];
  let log = 0;
  for (let left = n - factors + 1; left <= n; left += 1) log += Math.log1p(-drawn / left);
  return -Math.expm1(log);
}

/** A dimension. NUMBER is the number of a rollout in its group. A label is that of the rollout, else of its run. */
export type SummaryKey =
  | 'TASK'
  | 'RUN'
  | 'EXPERIMENT'
  | 'STAGE_KIND'
  | 'MODEL_URI'
  | 'NUMBER'
  | { readonly label: string };

/** Counts of one combination of values. */
export interface SummaryRow extends SummaryCounts {
  /** In the order of the dimensions. Empty for a missing value. */
  readonly values: readonly string[];
}

/** Counts of root trajectories for one combination of values. */
export interface TrajectorySummaryRow {
  readonly values: readonly string[];
  /** Always greater than 0. */
  readonly trajectories: bigint;
  /** Statistics of reward sums that are not NaN. All 0 if there are none. */
  readonly rewards: SummaryRow['rewards'];
  readonly steps: bigint;
  /** Sums of metrics over all steps, by name. NaN is ignored, and the order is undefined. */
  readonly metricSums: ReadonlyMap<string, number>;
}
