/** Values of steps that commands plot or print, as the page's address names them. */
import { isPlotted, type PlottedValue } from '../../page/src/tree/value.ts';
import { UsageError } from './context.ts';

export const VALUE_DOC =
  'the value: sum or reward, metric:KEY, or a number at a JSON Pointer: observation:/0, action:/x, info:/x, state:NAME:/x';

/** Throws UsageError if the text names no value. */
export function parsePlotted(text: string): PlottedValue {
  if (isPlotted(text)) return text;
  const expected = 'sum, reward, metric:KEY, observation:/…, action:/…, info:/… or state:NAME:/…';
  throw new UsageError(`--value is "${text}": expected ${expected}.`);
}
