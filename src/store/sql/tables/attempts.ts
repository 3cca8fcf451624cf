import { flag, int, nullable, real, text, time, withDefault } from './column.ts';
import { table } from './table.ts';

export const ATTEMPTS = table('attempts', {
  rollout: int,
  number: int,
  namespace: text,
  tree: int,
  trajectory: int,
  status: text,
  message: text,
  worker_id: text,
  claim_time: time,
  end_time: nullable(time),
  /** Result that the worker reported at the end, as in `ROLLOUTS`. */
  result: withDefault(text),
  summary_json: withDefault(text),
  result_success: nullable(flag),
  /** Null if no deciding validation was recorded. */
  validation_passed: nullable(flag),
  /** The current override. */
  override: nullable(flag),
  /** The verdict (M3); null if unjudged. */
  success: nullable(flag),
  /** Set at the end: the reward of the result, else the sum over own steps. Null if there is neither. */
  reward: nullable(real),
  /** Set at the end: number of own steps that are not the root. */
  turns: withDefault(int),
  metrics: withDefault(text),
  timings: withDefault(text),
  /** When the rollout last became claimable before the claim. */
  claimable_time: time,
  /** When the attempt became RUNNING. */
  start_time: nullable(time),
  /** Digest of the request that ended the attempt (L5). Empty if no worker ended it. */
  end_digest: withDefault(text),
});

export const VALIDATIONS = table('validations', {
  rollout: int,
  /** The validated attempt. */
  attempt: int,
  /** Unique in the attempt: the type of a validator of the task, or a free name. */
  name: text,
  /** The validator of the rollout's task whose type is the name. Null for a free name. */
  validator: nullable(int),
  namespace: text,
  /**
   * Copied from the validator when the validation was recorded. Later changes of the validator do not change recorded
   * validations.
   */
  advisory: flag,
  success: flag,
  query: text,
  expected_result: text,
  actual_result: text,
  execution_ms: nullable(int),
  error_message: text,
  details_json: text,
  record_time: time,
});

export const VALIDATION_OVERRIDES = table('validation_overrides', {
  rollout: int,
  ordinal: int,
  /** The attempt whose verdict is overridden. */
  attempt: int,
  namespace: text,
  success: nullable(flag),
  reason: text,
  actor: text,
  override_time: time,
});
