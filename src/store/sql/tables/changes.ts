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
  /** For ClaimRollouts: JSON text with pairs of a rollout's row key and the claimed attempt. */
  claims: nullable(text),
});
