import { bytes, int, nullable, type RowOf, real, stateKey, table, text, time, withDefault } from './table.ts';

/**
 * Segments: consecutive own steps of a trajectory in one row. The segments of a trajectory tile its own steps
 * without gap and without overlap. Texts are JSON, for SQL; the view `steps` shows a row for each step.
 */
export const SEGMENTS = table('segments', {
  tree: int,
  trajectory: int,
  first_step_number: int,
  /** The number after the last step. */
  next_step_number: int,
  namespace: text,
  /** Epoch and commit time of all steps. If `commits` is set: the epoch of the first step, and the earliest time. */
  writer_epoch: int,
  commit_time: time,
  /** Set in merged segments with several commits: `[epoch, commit time]` of each, and for each step its index. */
  commits: nullable(text),
  /** The latest commit time of a step. Null if it is `commit_time`. */
  last_commit_time: nullable(time),
  /** Running sums along the lineage before the first step. */
  reward_sum: real,
  byte_sum: int,
  /** A reward for each step: a number, null, or `"NaN"`, `"Infinity"`, `"-Infinity"`. */
  rewards: text,
  /** Smallest and largest reward, NaN aside; null if there is none. */
  min_reward: nullable(real),
  max_reward: nullable(real),
  /** By index, the steps that are terminated (1), truncated (2) or both (3). */
  ends: text,
  /** By metric, the sum, the smallest and the largest value. Metrics that are NaN are left out. */
  metric_sums: text,
  /** Names of states of steps, also of attached ones: JSON runs of steps, in any order (`log/read/step_runs.ts`). */
  state_names: text,
  /** Labels of steps: JSON runs of steps, as in `state_names`. */
  labels: text,
  /** Of `body` before compression, and of `first_step_number`. */
  checksum: int,
  /** Version and compression of `body`: see `log/read/stored_body.ts`. */
  encoding: withDefault(int),
  /** Length of `body` before compression. Null in a segment that was appended raw and not merged yet. */
  body_bytes: nullable(int),
  /** Length of `states` before compression. Null if they are not compressed. */
  states_bytes: nullable(int),
  /**
   * The steps as the client sent them: messages `Step`, each after its length. States are digests and sizes. Merges add
   * attached states; retention marks pruned ones.
   */
  body: bytes,
  /** The bytes of small states (`domain/step_codec/small_states.ts`). The last column: steps are read without it. */
  states: bytes,
});

export type SegmentRow = RowOf<typeof SEGMENTS>;

/**
 * An index of the names of the states, and of the labels, of segments. It lacks those without `body_bytes`
 * (`log/segments.ts`).
 */
export const SEGMENT_NAMES = table('segment_names', {
  tree: int,
  trajectory: int,
  /** JSON (`log/read/step_runs.ts`). */
  name: text,
  first_step_number: int,
});

/** References of steps to states with rows of their own. They can be found by step and by state. */
export const STATE_REFS = table('state_refs', {
  tree: int,
  trajectory: int,
  step_number: int,
  /** Name of the state. Empty for a state that a content of the step names. */
  name: text,
  namespace: text,
  state: stateKey,
});

/** States that were attached to stored steps (W10). Those that are not small also have rows in `state_refs`. */
export const ATTACHED_STATES = table('attached_states', {
  tree: int,
  trajectory: int,
  step_number: int,
  name: text,
  namespace: text,
  digest: bytes,
  media_type: text,
  size: int,
  /** When retention removed the state (S13). */
  pruned_time: nullable(time),
  attach_time: time,
  /** The bytes of a small state; null if it has a row of its own, or was pruned. */
  data: nullable(bytes),
});

/** Values of the metrics in `scored_metrics` of the trajectory, for lists by a metric. NaN is left out. */
export const STEP_SCORES = table('step_scores', {
  tree: int,
  trajectory: int,
  step_number: int,
  metric: text,
  namespace: text,
  value: real,
});
