import { flag, int, nullable, text, time, uuid } from './column.ts';
import { table } from './table.ts';

export const TASKS = table('tasks', {
  key: int,
  namespace: text,
  id: text,
  name: text,
  description: text,
  difficulty: text,
  category: text,
  app_name: text,
  source_type: text,
  max_turns: nullable(int),
  /** JSON text: lists of strings. */
  tags: text,
  prerequisites: text,
  input_json: text,
  metadata_json: text,
  create_time: time,
  update_time: time,
});

export const VALIDATORS = table('validators', {
  key: int,
  namespace: text,
  id: uuid,
  task: int,
  type: text,
  query: text,
  method: text,
  expected_result: text,
  config_json: text,
  advisory: flag,
  create_time: time,
  update_time: time,
});
