/** Draws a config as lines of path and value. */
import type { Run } from '../../gen/es/anabranch/v1/run_pb.js';
import { cut, fill, printable, widthOf } from './columns.ts';

const PATH_MOST_COLUMNS = 32;
const MOST_LINES = 24;
const OWN = ' *';

/**
 * Returns the lines of the effective config, then the paths that the run removed. A star marks values from the run's
 * own config.
 */
export function configLines({ configJson, configOverridesJson, removedConfigPaths }: Run, columns: number): string[] {
  const own = new Set(leavesOf(configOverridesJson).map(({ path }) => path));
  const leaves = leavesOf(configJson);
  const shown = leaves.slice(0, MOST_LINES).map(({ path, value }) => ({
    path: printable(path),
    value: printable(value) + (own.has(path) ? OWN : ''),
  }));
  const widest = shown.reduce((width, { path }) => Math.max(width, widthOf(path)), 0);
  const pathColumns = Math.min(widest, PATH_MOST_COLUMNS);
  const lines = shown.map(({ path, value }) => `${fill(path, pathColumns)}  ${cut(value, columns - pathColumns - 2)}`);
  const more = leaves.length - shown.length;
  if (more > 0) lines.push(`… ${more} more; --json shows all`);
  if (removedConfigPaths.length > 0) lines.push(cut(`removed: ${printable(removedConfigPaths.join(', '))}`, columns));
  return lines;
}

interface Leaf {
  /** `optimizer.lr` */
  readonly path: string;
  /** JSON text. Numbers are shown as they were written, without rounding. */
  readonly value: string;
}

/** Functions of Node's JSON that TypeScript's library does not declare yet. */
const exact = JSON as unknown as {
  parse(text: string, reviver: (key: string, value: unknown, context: { source?: string }) => unknown): unknown;
  rawJSON(text: string): unknown;
  isRawJSON(value: unknown): boolean;
};

/** Returns the leaves of a JSON object. Arrays and empty objects are leaves. */
function leavesOf(json: string): Leaf[] {
  if (json === '') return [];
  const config = exact.parse(json, (_, value, { source }) =>
    typeof value === 'number' && source !== undefined ? exact.rawJSON(source) : value,
  );
  return isBranch(config) ? entriesOf(config, '') : [];
}

function entriesOf(branch: Readonly<Record<string, unknown>>, above: string): Leaf[] {
  return Object.entries(branch).flatMap(([key, value]) =>
    isBranch(value) ? entriesOf(value, `${above}${key}.`) : [{ path: above + key, value: JSON.stringify(value) }],
  );
}

function isBranch(value: unknown): value is Readonly<Record<string, unknown>> {
  const object = typeof value === 'object' && value !== null && !Array.isArray(value) && !exact.isRawJSON(value);
  return object && Object.keys(value).length > 0;
}
