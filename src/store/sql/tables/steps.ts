import { bytes, flag, int, nullable, real, text, time } from './column.ts';
import { table } from './table.ts';

export const STEPS = table('steps', {
  tree: int,
  trajectory: int,
  step_number: int,
  namespace: text,
  reward: nullable(real),
  terminated: flag,
  truncated: flag,
  writer_epoch: int,
  reward_sum: real,
  byte_sum: int,
  commit_time: time,
  start_time: nullable(text),
  end_time: nullable(text),
  content_digest: bytes,
  metrics: text,
  actions: text,
  observations: text,
  info_json: text,
  metadata_json: text,
});

export const STEP_STATES = table('step_states', {
  tree: int,
  trajectory: int,
  step_number: int,
  name: text,
  namespace: text,
  digest: bytes,
  media_type: text,
  size: int,
});

export const CONTENT_STATES = table('content_states', {
  tree: int,
  trajectory: int,
  step_number: int,
  digest: bytes,
  namespace: text,
});
