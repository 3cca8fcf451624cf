import { type Instant, parseInstant } from '../../../../domain/instant.ts';
import type { Status } from '../../../../domain/lifecycle.ts';
import type { Plan, Run } from '../../../../domain/run.ts';
import { isSet, readLabels, readMetrics, readReal } from '../../kit/values.ts';

type Int = number | bigint;

/** Columns of `selectRuns` in their order, with integers as the driver returns them. Empty values are null. */
export type RunValues = readonly [
  key: Int,
  id: string,
  experiment: Int,
  tree: Int,
  number: Int,
  name: string | null,
  description: string | null,
  labels: string | null,
  plan: string | null,
  parent: Int | null,
  branchPoint: Int | null,
  status: Status,
  statusMessage: string | null,
  phase: string | null,
  metrics: string | null,
  heartbeatTimeoutMs: Int | null,
  failWhenStale: boolean | Int,
  heartbeatTime: string | null,
  startTime: string | null,
  endTime: string | null,
  createTime: string,
  /** Null if the run has not changed since its creation. */
  changedTime: string | null,
  revision: Int,
  mainId: string | null,
  mainNextStepNumber: Int | null,
  mainRewardSum: number | string | bigint | null,
  stale: boolean | Int,
  // Missing in bare rows.
  parentId?: string | null,
  treeId?: string,
  experimentId?: string,
  experimentName?: string,
  // Only in the FULL view.
  configJson?: string,
  configOverridesJson?: string,
  metadataJson?: string,
  resultJson?: string,
  removedConfigPaths?: string,
];

/** Names of other resources that a run returns. */
export interface RunNames {
  readonly experimentId: string;
  readonly experimentName: string;
  readonly treeId: string;
  /** Null for a root. */
  readonly parentId: string | null;
}

const NO_LABELS: ReadonlyMap<string, string> = new Map();
const NO_PATHS = '[]';
const NO_METRICS: ReadonlyMap<string, number> = new Map();

/** Reads runs one after another. Values that consecutive runs share are parsed once. */
export class RunReader {
  #experiment: Run['experiment'] = { key: -1n, id: '', name: '' };
  #tree: Run['tree'] = { key: -1n, id: '' };
  #planText = '';
  #plan: Plan | undefined;
  #timeText = '';
  #time: Instant = 0n;

  /** `names` defaults to the columns of the row and is required for a bare row. */
  read(values: RunValues, names: RunNames = namesIn(values)): Run {
    const [
      key,
      id,
      experiment,
      tree,
      number,
      name,
      description,
      labels,
      plan,
      parent,
      branchPoint,
      status,
      statusMessage,
      phase,
      metrics,
      timeoutMs,
      failWhenStale,
      heartbeat,
      start,
      end,
      create,
      changed,
      revision,
      mainId,
      mainEnd,
      mainReward,
      stale,
      _parentId,
      _treeId,
      _experimentId,
      _experimentName,
      configJson = '',
      configOverridesJson = '',
      metadataJson = '',
      resultJson = '',
      removedConfigPaths = NO_PATHS,
    ] = values;
    return {
      key: BigInt(key),
      tree: this.#treeOf(BigInt(tree), names.treeId),
      id,
      number: BigInt(number),
      experiment: this.#experimentOf(BigInt(experiment), names),
      name: name ?? '',
      description: description ?? '',
      configJson,
      configOverridesJson,
      removedConfigPaths: removedConfigPaths === NO_PATHS ? [] : (JSON.parse(removedConfigPaths) as string[]),
      labels: labels === null ? NO_LABELS : readLabels(labels),
      metadataJson,
      plan: plan === null ? undefined : this.#planOf(plan),
      parent:
        parent === null || branchPoint === null
          ? undefined
          : { key: BigInt(parent), id: names.parentId ?? '', branchPoint: BigInt(branchPoint) },
      mainTrajectory:
        mainId === null || mainEnd === null || mainReward === null
          ? undefined
          : { id: mainId, nextStepNumber: BigInt(mainEnd), rewardSum: readReal(mainReward) },
      status,
      statusMessage: statusMessage ?? '',
      phase: phase ?? '',
      metrics: metrics === null ? NO_METRICS : readMetrics(metrics),
      resultJson,
      heartbeatTimeoutMs: Number(timeoutMs ?? 0),
      failWhenStale: isSet(failWhenStale),
      heartbeatTime: this.#optionalTimeOf(heartbeat),
      stale: isSet(stale),
      startTime: this.#optionalTimeOf(start),
      endTime: this.#optionalTimeOf(end),
      createTime: this.#timeOf(create),
      updateTime: this.#timeOf(changed ?? create),
      revision: BigInt(revision),
    };
  }

  #experimentOf(key: bigint, { experimentId, experimentName }: RunNames): Run['experiment'] {
    if (key !== this.#experiment.key) this.#experiment = { key, id: experimentId, name: experimentName };
    return this.#experiment;
  }

  #treeOf(key: bigint, id: string): Run['tree'] {
    if (key !== this.#tree.key) this.#tree = { key, id };
    return this.#tree;
  }

  #planOf(text: string): Plan | undefined {
    if (text !== this.#planText) {
      this.#plan = readPlan(text);
      this.#planText = text;
    }
    return this.#plan;
  }

  #timeOf(text: string): Instant {
    if (text !== this.#timeText) {
      this.#time = parseInstant(text);
      this.#timeText = text;
    }
    return this.#time;
  }

  #optionalTimeOf(text: string | null): Instant | undefined {
    return text === null ? undefined : this.#timeOf(text);
  }
}

/** Indexes in `RunValues`. */
export const [KEY, ID, PARENT] = [0, 1, 9] as const;
const [PARENT_ID, TREE_ID, EXPERIMENT_ID, EXPERIMENT_NAME] = [27, 28, 29, 30] as const;

function namesIn(values: RunValues): RunNames {
  return {
    parentId: values[PARENT_ID] ?? null,
    treeId: values[TREE_ID] ?? '',
    experimentId: values[EXPERIMENT_ID] ?? '',
    experimentName: values[EXPERIMENT_NAME] ?? '',
  };
}

/** Encodes a plan as JSON text; no plan is an empty text. */
export function bindPlan(plan: Plan | undefined): string {
  return plan === undefined ? '' : JSON.stringify(plan);
}

export function readPlan(text: string): Plan | undefined {
  return text === '' ? undefined : (JSON.parse(text) as Plan);
}
