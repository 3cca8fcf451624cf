import type { Instant } from '../../domain/instant.ts';
import type { Retention, RetentionPolicy } from '../../domain/retention.ts';
import type { DuePolicy, ExecutionEnd, NewPolicy, PolicyLease, StoredPolicy } from '../../domain/retention_policies.ts';
import type { TrajectoryRef } from '../../domain/trajectory.ts';
import type { StorageUsage, UsageProgress } from '../../domain/usage.ts';
import type { Page } from './request.ts';

export interface RetentionStore {
  /**
   * S14: selects what a policy removes as of a time (default: now), and with `apply` also removes it, part by part. Its
   * parts fail with RUN_NOT_FOUND or EXPERIMENT_NOT_FOUND.
   */
  retain(
    namespace: string,
    policy: RetentionPolicy,
    how: { readonly asOf?: Instant | undefined; readonly apply: boolean },
  ): Promise<Retention>;

  /**
   * S15: stores a policy, or replaces the one of its name, which is due then and loses its lease. The same policy again
   * changes nothing. Errors: RUN_NOT_FOUND, EXPERIMENT_NOT_FOUND.
   */
  setRetentionPolicy(namespace: string, policy: NewPolicy): Promise<StoredPolicy>;
  /** Lists policies by name in order of bytes. The cursor is the last name. */
  listRetentionPolicies(namespace: string, page: Page<string>): Promise<StoredPolicy[]>;
  /** Errors: RETENTION_POLICY_NOT_FOUND. */
  deleteRetentionPolicy(namespace: string, name: string): Promise<void>;

  /** S15: begins the execution of the policy that is due longest and that no lease has. `lease` must be new. */
  claimDuePolicy(lease: string, leaseMs: number): Promise<DuePolicy | undefined>;
  /** Returns false if another execution has begun, or the policy was changed or deleted: then this one must end. */
  renewPolicyLease(lease: PolicyLease, leaseMs: number): Promise<boolean>;
  /** Ends an execution and records it. Without `end`, the policy stays due. Changes nothing if the lease is lost. */
  endPolicyExecution(policy: DuePolicy, end: ExecutionEnd | undefined): Promise<void>;
}

export interface UsageStore {
  /**
   * S12: measures the rows that a trajectory refers to, inherited ones included, those of all trajectories of a run
   * (by its key), or all rows of the namespace. Bounded statements; changes meanwhile are counted or not.
   */
  measureUsage(
    namespace: string,
    of: { readonly trajectory: TrajectoryRef } | { readonly run: bigint } | 'namespace',
  ): AsyncGenerator<UsageProgress, StorageUsage, undefined>;
}
