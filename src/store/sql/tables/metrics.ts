import { int, real, text } from './column.ts';
import { table } from './table.ts';

export const METRIC_SERIES = table('metric_series', {
  key: int,
  namespace: text,
  run: int,
  /** 0 for a series of the run itself. */
  stage: int,
  name: text,
});

export const METRIC_POINTS = table('metric_points', {
  series: int,
  metric_step: int,
  namespace: text,
  value: real,
});
