import type { Selectable } from 'kysely';
import type { Reason } from '../../../../domain/errors.ts';
import { parseInstant } from '../../../../domain/instant.ts';
import type {
  RemovedSize,
  RetentionPolicy,
  RetentionScope,
  StatePolicy,
  TrajectoryPolicy,
} from '../../../../domain/retention.ts';
import type { PastExecution, StoredPolicy } from '../../../../domain/retention_policies.ts';
import type { Tables } from '../../kit/tables.ts';
import type { ReadScope } from '../../kit/transaction.ts';
import { readOptionalTime } from '../../kit/values.ts';

/** Selects the policies (`p`) of a namespace, with the ids of their scopes. */
export function selectPolicies({ db, namespace }: ReadScope) {
  return db
    .selectFrom('retention_policies as p')
    .leftJoin('runs as r', 'r.key', 'p.run')
    .leftJoin('experiments as x', 'x.key', 'p.experiment')
    .selectAll('p')
    .select(['r.id as run_id', 'x.id as experiment_id'])
    .where('p.namespace', '=', namespace);
}

type PolicyRow = Selectable<Tables['retention_policies']> & ScopeIds;

interface ScopeIds {
  readonly run_id: string | null;
  readonly experiment_id: string | null;
}

export function readStored(row: PolicyRow): StoredPolicy {
  return {
    name: row.name,
    policy: readPolicy(row),
    intervalMs: Number(row.interval_ms),
    createTime: parseInstant(row.create_time),
    updateTime: parseInstant(row.update_time),
    dueTime: parseInstant(row.due_time),
    last: readLast(row),
  };
}

function readLast(row: PolicyRow): PastExecution | undefined {
  const [startTime, endTime] = [readOptionalTime(row.last_start_time), readOptionalTime(row.last_end_time)];
  if (startTime === undefined || endTime === undefined) return undefined;
  const error = { reason: row.last_error_reason as Reason, message: row.last_error_message };
  return { startTime, endTime, removed: readRemoved(row.last_removed), error: error.reason ? error : undefined };
}

/** Equal policies are equal texts. The scope is in columns of its own. */
export function bindPolicy(policy: RetentionPolicy): string {
  if ('states' in policy) return JSON.stringify({ states: policy.states }, bigintsAsText);
  const labels = Object.fromEntries([...policy.trajectories.labels].sort(([a], [b]) => (a < b ? -1 : 1)));
  return JSON.stringify({ trajectories: { ...policy.trajectories, labels } }, bigintsAsText);
}

export function readPolicy({ policy, run_id: run, experiment_id: experiment }: PolicyRow): RetentionPolicy {
  const { states, trajectories } = JSON.parse(policy) as {
    readonly states?: StatePolicy;
    readonly trajectories?: Omit<TrajectoryPolicy, 'labels'> & { readonly labels: Readonly<Record<string, string>> };
  };
  const scope: RetentionScope = { runId: run ?? undefined, experimentId: experiment ?? undefined };
  if (states !== undefined) {
    const { keepEvery, olderThan } = states;
    return { ...scope, states: { ...states, keepEvery: BigInt(keepEvery), olderThan: BigInt(olderThan) } };
  }
  const { labels, olderThan, ...rest } = trajectories!;
  const read = { labels: new Map(Object.entries(labels)), olderThan: BigInt(olderThan) };
  return { ...scope, trajectories: { ...rest, ...read } };
}

export function bindRemoved(removed: RemovedSize): string {
  return JSON.stringify(removed, bigintsAsText);
}

function readRemoved(text: string): RemovedSize {
  const numbers = Object.entries(JSON.parse(text) as Record<string, string>).map(([key, n]) => [key, BigInt(n)]);
  return Object.fromEntries(numbers) as RemovedSize;
}

function bigintsAsText(_key: string, value: unknown): unknown {
  return typeof value === 'bigint' ? `${value}` : value;
}
