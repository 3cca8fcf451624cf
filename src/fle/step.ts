import type { StepInit } from '../client/index.ts';
import { readMeta } from './meta.ts';
import type { Cell, Row } from './source.ts';
import { bytesOf, cellOf, exactText, textOf, timeOf } from './text.ts';

/** The metric with the id of a program. A later import uses it to find what is already stored. */
export const PROGRAM_ID = 'program_id';

const JSON_TYPE = 'application/json';
const TEXT_TYPE = 'text/plain; charset=utf-8';
/** Longer texts are sent as bytes, which the client uploads if they are too large for a step. */
const LONG_TEXT_BYTES = 64 * 1024;
const METRIC_KEY_BYTES = 128;

/** Columns that become states. The names of the states are the values. */
const STATES: Readonly<Record<string, string>> = { state_json: 'env', conversation_json: 'agent' };
const PLACED = new Set(['code', 'response', ...Object.keys(STATES)]);
/** Numbers whose sums and means have no meaning. */
const NO_METRICS = new Set(['id', 'parent_id', 'version', 'instance', 'value']);

/**
 * Converts a program to a step without loss: `metadata_json` has the type of each column, and the values of columns
 * without a field.
 */
export function toStep(row: Row): StepInit {
  const meta = cellOf(row, 'meta');
  const infoJson = infoOf(meta);
  const { errorOccurred } = readMeta(textOf(meta));
  const others = [...row].filter(([name]) => !PLACED.has(name) && (name !== 'meta' || infoJson === undefined));
  const large = others.filter(([, cell]) => isLong(cell));
  const small = others.filter(([, cell]) => !isLong(cell));
  const types = Object.fromEntries([...row].map(([name, { type }]) => [name, type]));
  const { value } = cellOf(row, 'value');
  return {
    actions: contentsOf(row, 'code').map((content) => ({ type: 'code', content })),
    observations: observationsOf(row, errorOccurred),
    reward: value === null || value instanceof Uint8Array ? undefined : Number(value),
    endTime: timeOf(cellOf(row, 'created_at')),
    metrics: metricsOf(row),
    infoJson,
    metadata: { programs: Object.fromEntries(small.map(([name, cell]) => [name, toJson(cell)])), types },
    states: { ...statesOf(row), ...Object.fromEntries(large.map(([name, cell]) => [name, { data: bytesOf(cell) }])) },
  };
}

/** Returns `meta` byte for byte, if it is JSON that the store accepts. */
function infoOf(meta: Cell): string | undefined {
  const bytes = isLong(meta) ? undefined : bytesOf(meta);
  const text = bytes === undefined ? undefined : exactText(bytes);
  if (text === undefined || text === '') return undefined;
  try {
    JSON.parse(text);
    return text;
  } catch {
    return undefined;
  }
}

function observationsOf(row: Row, isError: boolean) {
  const contents = contentsOf(row, 'response');
  if (contents.length === 0) return isError ? [{ type: 'response', isError }] : [];
  return contents.map((content) => ({ type: 'response', isError, content }));
}

function contentsOf(row: Row, column: string) {
  const bytes = bytesOf(cellOf(row, column));
  if (bytes === undefined) return [];
  const text = bytes.byteLength > LONG_TEXT_BYTES ? undefined : exactText(bytes);
  return [text === undefined ? { data: bytes, mediaType: TEXT_TYPE } : { text }];
}

function statesOf(row: Row): Record<string, { data: Uint8Array; mediaType: string }> {
  const states = Object.entries(STATES).flatMap(([column, name]) => {
    const data = bytesOf(cellOf(row, column));
    return data === undefined ? [] : [[name, { data, mediaType: JSON_TYPE }] as const];
  });
  return Object.fromEntries(states);
}

function metricsOf(row: Row): Record<string, number> {
  const metrics = [...row].flatMap(([name, { value }]) => {
    const isMetric = (typeof value === 'bigint' || typeof value === 'number') && !NO_METRICS.has(name);
    return isMetric && Buffer.byteLength(name) <= METRIC_KEY_BYTES ? [[name, Number(value)] as const] : [];
  });
  return { ...Object.fromEntries(metrics), [PROGRAM_ID]: Number(cellOf(row, 'id').value) };
}

function isLong({ value }: Cell): boolean {
  return value instanceof Uint8Array && value.byteLength > LONG_TEXT_BYTES;
}

/**
 * Returns a JSON value; the type is kept beside it. Values that JSON cannot represent exactly become strings, and bytes
 * become base64.
 */
function toJson({ value }: Cell): unknown {
  if (value === null) return null;
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
  if (Object.is(value, -0)) return '-0';
  if (typeof value === 'number') return Number.isFinite(value) ? value : String(value);
  return exactText(value) ?? { base64: Buffer.from(value).toString('base64') };
}
