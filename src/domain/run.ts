import type { Instant } from './instant.ts';
import type { Status } from './lifecycle.ts';

/** Row keys of experiments, runs and stages are given by the store and never used again. Empty text means absent for fields that hold JSON. */

export interface Experiment {
  readonly key: bigint;
  readonly id: string;
  readonly name: string;
  readonly description: string;
  readonly environmentName: string;
  readonly environmentConfigJson: string;
  readonly agentType: string;
  readonly agentConfigJson: string;
  /** A JSON object, or empty. */
  readonly defaultConfigJson: string;
  readonly maxSteps: bigint | undefined;
  readonly seed: bigint | undefined;
  readonly tags: readonly string[];
  readonly metadataJson: string;
  readonly runCount: bigint;
  readonly createTime: Instant;
  readonly updateTime: Instant;
}

/** The experiment of runs that name none; made when it is first needed. */
export const DEFAULT_EXPERIMENT = 'default';

/** Without a timeout of its own a run is stale after so long. */
export const DEFAULT_HEARTBEAT_TIMEOUT_MS = 5 * 60_000;

export interface Run {
  readonly key: bigint;
  /** Row key and id of the root of its tree of runs. */
  readonly tree: { readonly key: bigint; readonly id: string };
  readonly id: string;
  readonly number: bigint;
  readonly experiment: { readonly key: bigint; readonly id: string; readonly name: string };
  readonly name: string;
  readonly description: string;
  /** The effective config (M4). Empty in the BASIC view, as all that holds JSON. */
  readonly configJson: string;
  readonly configOverridesJson: string;
  /** As the client gave them. Empty in the BASIC view. */
  readonly removedConfigPaths: readonly string[];
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
  readonly plan: Plan | undefined;
  readonly parent: { readonly key: bigint; readonly id: string; readonly branchPoint: bigint } | undefined;
  /** As it is now; undefined if there is none, or it was deleted. */
  readonly mainTrajectory:
    | { readonly id: string; readonly nextStepNumber: bigint; readonly rewardSum: number }
    | undefined;
  readonly status: Status;
  readonly statusMessage: string;
  readonly phase: string;
  readonly metrics: ReadonlyMap<string, number>;
  readonly resultJson: string;
  readonly heartbeatTimeoutMs: number;
  readonly failWhenStale: boolean;
  readonly heartbeatTime: Instant | undefined;
  /** By the database's clock when it was read. */
  readonly stale: boolean;
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly revision: bigint;
}

export const STAGE_KINDS = ['TRAIN_STEP', 'EVAL', 'BASELINE'] as const;
export type StageKind = (typeof STAGE_KINDS)[number];

export interface Plan {
  /** Each kind at most once. */
  readonly stagePlans: readonly StagePlan[];
  /** At least 1. */
  readonly concurrency: number;
}

export interface StagePlan {
  readonly kind: StageKind;
  readonly stages: number;
  readonly groupsPerStage: number;
  readonly groupSize: number;
  readonly maxTurns: number;
  readonly substeps: number;
}

export interface Stage {
  readonly key: bigint;
  readonly id: string;
  readonly run: { readonly key: bigint; readonly id: string };
  readonly kind: StageKind;
  readonly number: bigint;
  readonly batch: bigint | undefined;
  readonly status: Status;
  readonly statusMessage: string;
  readonly phase: string;
  readonly modelUri: string;
  readonly modelCheckpointUri: string;
  readonly metrics: ReadonlyMap<string, number>;
  readonly metadataJson: string;
  readonly completedSubsteps: bigint;
  /** Undefined: the plan's. */
  readonly totalSubsteps: bigint | undefined;
  readonly timings: ReadonlyMap<string, TimeSpan>;
  /** Undefined: the queue is open. */
  readonly queueCloseTime: Instant | undefined;
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly revision: bigint;
}

/** By the client's clock. */
export interface TimeSpan {
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
}
