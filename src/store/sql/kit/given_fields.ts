import type { Selectable } from 'kysely';
import { invalidField } from '../../../domain/errors.ts';
import { LIMITS } from '../../../domain/limits.ts';
import type { NewRollout } from '../../contract/rollout.ts';
import { GIVEN_TO_ROLLOUTS, type ROLLOUTS } from './tables/rollouts.ts';
import type { RowOf } from './tables/table.ts';
import type { RolloutsTable } from './tables.ts';
import { bindLabels, readMetrics } from './values.ts';

type GivenColumn = keyof typeof GIVEN_TO_ROLLOUTS;

/** Columns of an existing rollout that CreateRollouts compares (Q6). */
export const GIVEN_COLUMNS = Object.keys(GIVEN_TO_ROLLOUTS) as readonly GivenColumn[];

/** Fields of the proto whose columns have another name. Every other column has the name of its field. */
const FIELDS: { readonly [Column in GivenColumn]?: string } = {
  attempt_timeout_ms: 'attempt_timeout',
  retry_delay_ms: 'retry_delay',
  start_trajectory: 'start_from',
  start_step: 'start_from',
};

/** Fields of a rollout that a repeated CreateRollouts compares (Q6), by their names in the proto. */
export const COMPARED_FIELDS: readonly string[] = ['task_id', ...fieldsOf(GIVEN_COLUMNS)];

export type GivenRow = Pick<Selectable<RolloutsTable>, GivenColumn | 'first_given'>;

/** Returns the columns that CreateRollouts sets. */
export function givenColumns(rollout: NewRollout): Pick<RowOf<typeof ROLLOUTS>, GivenColumn> {
  const { attemptTimeoutMs, startFrom } = rollout;
  return {
    input_json: rollout.inputJson,
    labels: bindLabels(rollout.labels),
    priority: BigInt(rollout.priority),
    max_turns: rollout.maxTurns ?? null,
    max_attempts: BigInt(rollout.maxAttempts),
    attempt_timeout_ms: attemptTimeoutMs === undefined ? null : BigInt(attemptTimeoutMs),
    retry_delay_ms: BigInt(rollout.retryDelayMs),
    start_trajectory: startFrom?.trajectoryId ?? null,
    start_step: startFrom?.stepNumber ?? null,
    model_uri: rollout.modelUri,
    metadata_json: rollout.metadataJson,
  };
}

/** Returns the names of the fields in which a request differs from the creation of the rollout. */
export function differingFields(rollout: NewRollout, taskId: string, row: GivenRow): string[] {
  const asked = givenColumns(rollout);
  const stored: Readonly<Record<GivenColumn, unknown>> = { ...row, ...readFirst(row) };
  const columns = GIVEN_COLUMNS.filter((column) => textOf(asked[column]) !== textOf(stored[column]));
  return [...(rollout.taskId === taskId ? [] : ['task_id']), ...fieldsOf(columns)];
}

/**
 * Returns the new `first_given` when these columns of a rollout change: it keeps their values from before the first
 * change.
 */
export function firstGivenAfter(
  row: GivenRow,
  changed: Readonly<Record<string, unknown>>,
): { readonly first_given?: string } {
  const columns = GIVEN_COLUMNS.filter((column) => column in changed);
  if (columns.length === 0) return {};
  const before = Object.fromEntries(columns.map((column) => [column, textOf(row[column])]));
  return { first_given: JSON.stringify({ ...before, ...readFirst(row) }) };
}

function readFirst({ first_given }: GivenRow): { readonly [Column in GivenColumn]?: string | null } {
  return first_given === '' ? {} : (JSON.parse(first_given) as { readonly [Column in GivenColumn]?: string | null });
}

/** Values are compared as text, because `first_given` has them as text. Null stays null. */
function textOf(value: unknown): string | null {
  return value === null ? null : String(value);
}

function fieldsOf(columns: readonly GivenColumn[]): string[] {
  return [...new Set(columns.map((column) => FIELDS[column] ?? column))];
}

/** FM7: merges metrics by key into a stored map. Errors: INVALID_REQUEST (more than 256 metrics). */
export function mergeMetrics(stored: string, changes: ReadonlyMap<string, number>): Map<string, number> {
  const merged = readMetrics(stored);
  for (const [key, value] of changes) merged.set(key, value);
  if (merged.size > LIMITS.metrics) {
    throw invalidField('metrics', `would result in ${merged.size} metrics, and the maximum is ${LIMITS.metrics}`);
  }
  return merged;
}
