import { flag, int, nullable, of, text, time, uuid } from './column.ts';
import { json, list, MOMENT, NATURAL, upTo } from './forms.ts';
import { table } from './table.ts';

export const TASKS = table('tasks', {
  key: int,
  namespace: text,
  id: of(text, upTo(256, 1)),
  name: of(text, upTo(256)),
  description: of(text, upTo(16_384)),
  difficulty: of(text, upTo(64)),
  category: of(text, upTo(64)),
  app_name: of(text, upTo(256)),
  source_type: of(text, upTo(64)),
  max_turns: nullable(of(int, NATURAL)),
  /** JSON text: lists of strings. */
  tags: of(text, list(64, 256)),
  prerequisites: of(text, list(64, 256)),
  input_json: of(text, json(131_072)),
  metadata_json: of(text, json(131_072)),
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
});

export const VALIDATORS = table('validators', {
  key: int,
  namespace: text,
  id: uuid,
  task: int,
  type: of(text, upTo(128, 1)),
  query: of(text, upTo(16_384)),
  method: of(text, upTo(256)),
  expected_result: of(text, upTo(16_384)),
  config_json: of(text, json(65_536)),
  advisory: flag,
  create_time: of(time, MOMENT),
  update_time: of(time, MOMENT),
});
