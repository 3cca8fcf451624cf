import type { NewRollout } from '../contract/rollout.ts';
import { bindLabels } from './values.ts';

/** Fields of a rollout that a repeated CreateRollouts compares (Q6), as text, by their names in the proto. */
interface GivenFields {
  readonly task_id: string;
  readonly input_json: string;
  readonly labels: string;
  readonly priority: string;
  readonly max_turns: string | null;
  readonly max_attempts: string;
  readonly attempt_timeout: string | null;
  readonly retry_delay: string;
  readonly start_from: string | null;
  readonly model_uri: string;
  readonly metadata_json: string;
}

type ChangeableField = 'labels' | 'priority' | 'max_turns' | 'max_attempts' | 'model_uri' | 'metadata_json';

/** Columns that store these fields. */
export interface GivenRow {
  readonly input_json: string;
  readonly labels: string;
  readonly priority: bigint;
  readonly max_turns: bigint | null;
  readonly max_attempts: bigint;
  readonly attempt_timeout_ms: bigint | null;
  readonly retry_delay_ms: bigint;
  readonly start_trajectory: string | null;
  readonly start_step: bigint | null;
  readonly model_uri: string;
  readonly metadata_json: string;
  readonly first_given: string;
}

/** Returns the names of the fields in which a request differs from the creation of the rollout. */
export function differingFields(rollout: NewRollout, taskId: string, row: GivenRow): string[] {
  const asked = givenIn(rollout);
  const stored = { ...storedIn(row), task_id: taskId, ...readFirst(row) };
  return Object.entries(asked).flatMap(([field, value]) =>
    stored[field as keyof GivenFields] === value ? [] : [field],
  );
}

/**
 * Returns the new `first_given` when these columns of a rollout change: it keeps their values from before the first
 * change.
 */
export function keepGiven(
  row: GivenRow,
  changed: Readonly<Record<string, unknown>>,
): { readonly first_given?: string } {
  const before: Partial<Record<ChangeableField, string | null>> = {};
  for (const [field, value] of Object.entries(storedIn(row))) {
    if (field in changed) before[field as ChangeableField] = value;
  }
  return Object.keys(before).length === 0 ? {} : { first_given: JSON.stringify({ ...before, ...readFirst(row) }) };
}

function readFirst({ first_given }: GivenRow): Partial<Record<ChangeableField, string | null>> {
  return first_given === '' ? {} : (JSON.parse(first_given) as Partial<Record<ChangeableField, string | null>>);
}

function givenIn(rollout: NewRollout): GivenFields {
  const { taskId, inputJson, labels, priority, maxTurns, maxAttempts, startFrom, modelUri, metadataJson } = rollout;
  return {
    task_id: taskId,
    input_json: inputJson,
    labels: bindLabels(labels),
    priority: `${priority}`,
    max_turns: maxTurns === undefined ? null : `${maxTurns}`,
    max_attempts: `${maxAttempts}`,
    attempt_timeout: rollout.attemptTimeoutMs === undefined ? null : `${rollout.attemptTimeoutMs}`,
    retry_delay: `${rollout.retryDelayMs}`,
    start_from: startFrom === undefined ? null : `${startFrom.trajectoryId} ${startFrom.stepNumber}`,
    model_uri: modelUri,
    metadata_json: metadataJson,
  };
}

function storedIn(row: GivenRow): Omit<GivenFields, 'task_id'> {
  return {
    input_json: row.input_json,
    labels: row.labels,
    priority: `${row.priority}`,
    max_turns: row.max_turns === null ? null : `${row.max_turns}`,
    max_attempts: `${row.max_attempts}`,
    attempt_timeout: row.attempt_timeout_ms === null ? null : `${row.attempt_timeout_ms}`,
    retry_delay: `${row.retry_delay_ms}`,
    start_from: row.start_trajectory === null ? null : `${row.start_trajectory} ${row.start_step}`,
    model_uri: row.model_uri,
    metadata_json: row.metadata_json,
  };
}
