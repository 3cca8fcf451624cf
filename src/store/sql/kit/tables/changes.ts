import { STATUSES } from '../../../../domain/lifecycle.ts';
import { ACTOR, COUNT, json, MOMENT, oneOf, reals, upTo } from './forms.ts';
import { int, nullable, of, real, table, text, time, uuid } from './table.ts';

export const STATUS_CHANGES = table('status_changes', {
  tree: int,
  entity_kind: text,
  entity: int,
  ordinal: of(int, COUNT),
  namespace: text,
  old_status: nullable(of(text, oneOf(STATUSES))),
  new_status: of(text, oneOf(STATUSES)),
  phase: of(text, upTo(256)),
  message: of(text, upTo(4096)),
  metadata_json: of(text, json(16_384)),
  actor: of(text, ACTOR),
  progress_percent: nullable(of(real, reals(0, 100))),
  change_time: of(time, MOMENT),
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
   * if none), and whether it existed.
   */
  claims: nullable(text),
});
