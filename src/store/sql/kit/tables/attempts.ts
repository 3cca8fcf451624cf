import { STATUSES } from '../../../../domain/lifecycle.ts';
import {
  ACTOR,
  ANY_REAL,
  ATTEMPT,
  COUNT,
  integers,
  json,
  LONGEST_MS,
  METRICS,
  MOMENT,
  oneOf,
  RESULT,
  TIMINGS,
  upTo,
} from './forms.ts';
import { flag, int, nullable, of, real, table, text, time, withDefault } from './table.ts';

export const ATTEMPTS = table('attempts', {
  rollout: int,
  number: of(int, ATTEMPT),
  namespace: text,
  tree: int,
  trajectory: int,
  status: of(text, oneOf(STATUSES)),
  message: of(text, upTo(4096)),
  worker_id: of(text, upTo(128)),
  claim_time: of(time, MOMENT),
  end_time: nullable(of(time, MOMENT)),
  /** Result that the worker reported at the end, as in `ROLLOUTS`. */
  result: withDefault(of(text, RESULT)),
  summary_json: withDefault(of(text, json(131_072))),
  result_success: nullable(flag),
  /** Null if no deciding validation was recorded. */
  validation_passed: nullable(flag),
  /** The current override. */
  override: nullable(flag),
  /** The verdict (M3); null if unjudged. */
  success: nullable(flag),
  /** Set at the end: the reward of the result, else the sum over own steps. Null if there is neither. */
  reward: nullable(of(real, ANY_REAL)),
  /** Set at the end: number of own steps that are not the root. */
  turns: withDefault(of(int, COUNT)),
  metrics: withDefault(of(text, METRICS)),
  timings: withDefault(of(text, TIMINGS)),
  /** When the rollout last became claimable before the claim. */
  claimable_time: of(time, MOMENT),
  /** When the attempt became RUNNING. */
  start_time: nullable(of(time, MOMENT)),
  /** Digest of the request that ended the attempt (L5). Empty if no worker ended it. */
  end_digest: withDefault(of(text, upTo(256))),
});

export const VALIDATIONS = table('validations', {
  rollout: int,
  /** The validated attempt. */
  attempt: of(int, ATTEMPT),
  /** Unique in the attempt: the type of a validator of the task, or a free name. */
  name: of(text, upTo(128, 1)),
  /** The validator of the rollout's task whose type is the name. Null for a free name. */
  validator: nullable(int),
  namespace: text,
  /**
   * Copied from the validator when the validation was recorded. Later changes of the validator do not change recorded
   * validations.
   */
  advisory: flag,
  success: flag,
  query: of(text, upTo(16_384)),
  expected_result: of(text, upTo(16_384)),
  actual_result: of(text, upTo(65_536)),
  execution_ms: nullable(of(int, integers(0, LONGEST_MS))),
  error_message: of(text, upTo(4096)),
  details_json: of(text, json(65_536)),
  record_time: of(time, MOMENT),
});

export const VALIDATION_OVERRIDES = table('validation_overrides', {
  rollout: int,
  ordinal: of(int, COUNT),
  /** The attempt whose verdict is overridden. */
  attempt: of(int, ATTEMPT),
  namespace: text,
  success: nullable(flag),
  reason: of(text, upTo(4096)),
  actor: of(text, ACTOR),
  override_time: of(time, MOMENT),
});
