/** Parts of the contract that earlier servers lack, sorted. A test compares the list with `docs/clients.md`. */
export const FEATURES = Object.freeze([
  'assigned_rollout_numbers',
  'claim_by_id',
  'claim_created_rollouts',
  'close_queue',
  'diff_states',
  'list_steps_by_metric',
  'states_by_get',
] as const);
