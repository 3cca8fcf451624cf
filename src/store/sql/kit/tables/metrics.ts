import { LIMITS } from '../../../../domain/limits.ts';
import { int, of, real, text } from './column.ts';
import { ANY_INTEGER, ANY_REAL, upTo } from './forms.ts';
import { table } from './table.ts';

export const METRIC_SERIES = table('metric_series', {
  key: int,
  namespace: text,
  run: int,
  /** 0 for a series of the run itself. */
  stage: int,
  name: of(text, upTo(LIMITS.seriesNameBytes, 1)),
});

export const METRIC_POINTS = table('metric_points', {
  series: int,
  metric_step: of(int, ANY_INTEGER),
  namespace: text,
  value: of(real, ANY_REAL),
});
