/** Full records of CUA's tables of rollouts: those that its training, `CUA` of records.ts, ran. */
import type { Row, Rows } from './rows.ts';

const ESTIMATES = { avg_turn_time: 28.5, estimated_total_time: 570, estimated_remaining_time: 0.5 };
const TIMES = { created_at: '2026-03-01T12:40:00.000000', updated_at: '2026-03-01T12:42:00.000001' };
const NO_SOURCE = { step_id: null, eval_id: null, baseline_id: null };
const COMPLETED = '0e3b1c52-8d7e-4b0e-9a57-0c5f2f8f3b81';

const GROUP: Row = {
  id: 40,
  ...NO_SOURCE,
  source_type: 'step',
  step_id: 9,
  group_num: 0,
  batch: 3,
  status: 'completed',
  progress_percent: 100,
  current_phase: 'rollout',
  status_message: 'All rollouts done',
  error_message: 'one environment was lost',
  start_time: '2026-03-01T12:40:00.100000',
  end_time: '2026-03-01T12:42:00.000000',
  num_rollouts: 2,
  completed_rollouts: 2,
  reward_mean: 0,
  reward_std: 0.125,
  success_count: 1,
  metrics_json: '{"advantage":[0.5,-0.5]}',
  ...ESTIMATES,
  ...TIMES,
};

/** It has a value in every column except those of other sources. */
export const ROLLOUT: Row = {
  id: 81,
  ...NO_SOURCE,
  source_type: 'step',
  step_id: 9,
  group_id: 40,
  env_id: 60,
  rollout_id: COMPLETED,
  batch: 3,
  group_num: 0,
  env_index: 0,
  task_id: 30,
  model_path: 'tinker://step-3/sampler',
  is_eval: false,
  status: 'completed',
  progress_percent: 100,
  current_phase: 'cleanup',
  current_turn: 1,
  status_message: 'Rollout completed',
  error_message: 'Screenshot 2 was late',
  start_time: '2026-03-01T12:40:30.000000',
  end_time: '2026-03-01T12:41:30.000000',
  env_creation_time: '2026-03-01T12:40:55.000002',
  agent_init_time: '2026-03-01T12:40:59.000003',
  task_start_time: '2026-03-01T12:41:00.000000',
  task_end_time: '2026-03-01T12:41:28.500001',
  validation_time: '2026-03-01T12:41:29.750000',
  rollout_time: 60,
  task_completed: true,
  task_success: true,
  agent_reported_success: true,
  validation_passed: true,
  num_turns: 1,
  max_turns: 20,
  reward: 0.5,
  temperature: 0.7,
  num_total_actions: 2,
  consecutive_repeated_actions: 0,
  parse_errors: 1,
  tool_name_errors: 0,
  tool_arg_errors: 0,
  runtime_errors: 0,
  ran_out_of_turns: false,
  attempted_completion: true,
  turn_first_success: 1,
  turn_task_completed: -1,
  errors: '["Turn 1: no tool call in the first answer"]',
  summary_json: '{"turns": 1, "größe": "klein"}',
  trajectory_path: 'rollouts/81.json',
  trajectory_data_json:
    '{"training_data": [{"turn": 1, "action_tokens": [151644, 8948, 198]}], "execution_details": {}}',
  ...TIMES,
};

/** A rollout that failed with an error, in the same group and the same environment. */
const FAILED: Row = {
  ...ROLLOUT,
  id: 82,
  rollout_id: '0e3b1c52-8d7e-4b0e-9a57-0c5f2f8f3b82',
  env_index: 1,
  status: 'failed',
  error_message: 'Turn 1: the box did not answer',
  task_completed: false,
  task_success: false,
  agent_reported_success: null,
  validation_passed: null,
  num_turns: 0,
  reward: 0,
  errors: null,
  summary_json: null,
  trajectory_data_json: null,
};

export const CUA_ROLLOUTS: Rows = {
  task: [
    {
      id: 30,
      task_id: 'airbnb_search_07',
      name: 'Search a stay',
      description: 'Find a stay in Zürich for two nights.',
      difficulty: 'medium',
      category: 'app',
      max_steps: 20,
      validation_type: 'state',
      validation_query: 'current_activity',
      expected_result: 'SearchResults',
      tags: '["search","travel"]',
      prerequisites: '["logged in"]',
      app_name: 'airbnb',
      source_type: 'demo_training',
      created_at: '2026-03-01T11:00:00.000000',
      updated_at: '2026-03-01T11:00:00.000001',
    },
  ],
  validator: [
    {
      id: 31,
      task_id: 30,
      validator_type: 'state',
      validation_query: 'current_activity',
      validation_method: 'adb',
      config_json: '{"timeout": 5, "retries": 2}',
      created_at: '2026-03-01T11:00:00.000002',
    },
  ],
  environment: [
    {
      id: 60,
      env_type: 'android',
      status: 'terminated',
      gbox_id: 'gbox-7f3a',
      box_type: 'android-14',
      creation_time: '2026-03-01T12:40:14.000000',
      termination_time: '2026-03-01T12:42:00.000000',
      status_message: 'Terminated by its owner',
      error_message: 'adb was restarted once',
      config_json: '{"screen":{"width":1080,"height":2400},"locale":"de"}',
      ...TIMES,
    },
    {
      id: 61,
      env_type: 'linux',
      status: 'error',
      gbox_id: null,
      box_type: null,
      creation_time: null,
      termination_time: null,
      status_message: null,
      error_message: 'no image of that name',
      config_json: null,
      ...TIMES,
    },
  ],
  group: [
    GROUP,
    { ...GROUP, ...NO_SOURCE, id: 41, source_type: 'eval', eval_id: 6, group_num: 2, batch: null },
    { ...GROUP, ...NO_SOURCE, id: 42, source_type: 'baseline', baseline_id: 5, group_num: 7, metrics_json: null },
  ],
  rollout: [
    ROLLOUT,
    FAILED,
    ofSource({ id: 83, source_type: 'eval', eval_id: 6, group_id: 41, group_num: 2, env_id: 61, status: 'cancelled' }),
    ofSource({ id: 84, source_type: 'baseline', baseline_id: 5, group_id: 42, group_num: 7, status: 'pending' }),
  ],
  validation: [
    {
      id: 90,
      rollout_id: 81,
      validator_id: 31,
      validation_time: '2026-03-01T12:41:29.750000',
      validation_query: 'current_activity of the app',
      expected_result: 'SearchResults, two nights',
      actual_result: 'SearchResults, two nights',
      success: true,
      execution_time: 1.2534567,
      error_message: 'first try timed out',
      details_json: '{"activity": "SearchResults", "tries": 2}',
      created_at: '2026-03-01T12:41:29.750001',
    },
  ],
};

/** A rollout of an eval or a baseline, with few values. */
function ofSource(fields: Row): Row {
  const nothing = Object.fromEntries(Object.keys(ROLLOUT).map((column) => [column, null]));
  const { task_id = null, model_path = null } = ROLLOUT;
  const rollout_id = `0e3b1c52-8d7e-4b0e-9a57-0c5f2f8f3b${fields.id}`;
  return { ...nothing, env_id: 60, env_index: 0, task_id, model_path, is_eval: true, rollout_id, ...fields };
}
