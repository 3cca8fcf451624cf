import type { Instant } from './instant.ts';
import type { Status } from './lifecycle.ts';

/**
 * The store assigns row keys of experiments, runs and stages, and never uses a key again. In JSON fields, empty text
 * means absent.
 */

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

/** Default experiment of runs. Created when it is first needed. */
export const DEFAULT_EXPERIMENT = 'default';

/** Default time after the last heartbeat at which a run is stale. */
export const DEFAULT_HEARTBEAT_TIMEOUT_MS = 5 * 60_000;

/** Fields of a run that its creation sets and updates change. */
export interface RunSettings {
  readonly name: string;
  readonly description: string;
  readonly labels: ReadonlyMap<string, string>;
  readonly metadataJson: string;
  readonly plan: Plan | undefined;
  readonly failWhenStale: boolean;
}

export interface Run extends RunSettings {
  readonly key: bigint;
  /** Row key and id of the root of the run's tree. */
  readonly tree: { readonly key: bigint; readonly id: string };
  readonly id: string;
  readonly number: bigint;
  readonly experiment: { readonly key: bigint; readonly id: string; readonly name: string };
  /** The effective config (M4). Empty in the BASIC view, like all JSON fields. */
  readonly configJson: string;
  readonly configOverridesJson: string;
  /** The values of the client. Empty in the BASIC view. */
  readonly removedConfigPaths: readonly string[];
  readonly parent: { readonly key: bigint; readonly id: string; readonly branchPoint: bigint } | undefined;
  /** Current state of the main trajectory. Undefined if there is none, or if it was deleted. */
  readonly mainTrajectory:
    | { readonly id: string; readonly nextStepNumber: bigint; readonly rewardSum: number }
    | undefined;
  readonly status: Status;
  readonly statusMessage: string;
  readonly phase: string;
  readonly metrics: ReadonlyMap<string, number>;
  readonly resultJson: string;
  readonly heartbeatTimeoutMs: number;
  readonly heartbeatTime: Instant | undefined;
  /** By the database's clock at the time of the read. */
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
  /** At most one plan per kind. */
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

/** Fields of a stage that its creation sets and updates change. */
export interface StageSettings {
  readonly batch: bigint | undefined;
  readonly phase: string;
  readonly modelUri: string;
  /** Undefined: the value of the plan. */
  readonly totalSubsteps: bigint | undefined;
  readonly metadataJson: string;
}

export interface Stage extends StageSettings {
  readonly key: bigint;
  readonly id: string;
  readonly run: { readonly key: bigint; readonly id: string };
  readonly kind: StageKind;
  readonly number: bigint;
  readonly status: Status;
  readonly statusMessage: string;
  readonly modelCheckpointUri: string;
  readonly metrics: ReadonlyMap<string, number>;
  readonly completedSubsteps: bigint;
  readonly timings: ReadonlyMap<string, TimeSpan>;
  /** Undefined: the queue is open. */
  readonly queueCloseTime: Instant | undefined;
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
  readonly createTime: Instant;
  readonly updateTime: Instant;
  readonly revision: bigint;
}

/** A time span by the client's clock. */
export interface TimeSpan {
  readonly startTime: Instant | undefined;
  readonly endTime: Instant | undefined;
}
