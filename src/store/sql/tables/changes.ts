import { int, nullable, real, text, time, uuid } from './column.ts';
import { table } from './table.ts';

export const STATUS_CHANGES = table('status_changes', {
  tree: int,
  entity_kind: text,
  entity: int,
  ordinal: int,
  namespace: text,
  old_status: nullable(text),
  new_status: text,
  phase: text,
  message: text,
  metadata_json: text,
  actor: text,
  progress_percent: nullable(real),
  change_time: time,
});

export const REQUESTS = table('requests', {
  namespace: text,
  rpc: text,
  request_id: text,
  request_digest: text,
  tree: int,
  resource: int,
  resource_id: uuid,
  create_time: time,
  /**
   * For ClaimRollouts and CreateRollouts: JSON text with a list for each rollout: its row key, the claimed attempt (0
   * if none), and for CreateRollouts whether it existed.
   */
  claims: nullable(text),
});
