import { type RawBuilder, sql } from 'kysely';
import { tupleKey } from '../../../../domain/tuple_key.ts';
import type { Engine } from '../../kit/engine.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';

/**
 * Steps of a segment whose index is in [from, to) and that have a state of the name, or a label (`labelName`). The
 * columns `state_names` and `labels` are JSON lists of runs.
 */
export type StepRun = readonly [name: string, from: number, to: number];

/** Collects the names of the states of consecutive steps, or their labels. */
export class StepRuns {
  readonly #runs: [name: string, from: number, to: number][] = [];
  /** The last run of each name. */
  readonly #last = new Map<string, [name: string, from: number, to: number]>();

  add(index: number, name: string): void {
    this.addRun(name, index, index + 1);
  }

  addRun(name: string, from: number, to: number): void {
    const last = this.#last.get(name);
    if (last !== undefined && last[2] === from) {
      last[2] = to;
      return;
    }
    const run: [string, number, number] = [name, from, to];
    this.#runs.push(run);
    this.#last.set(name, run);
  }

  toJson(): string {
    return JSON.stringify(this.#runs);
  }
}

/**
 * Names in the table `segment_names` are JSON: a text for the name of a state, a list of key and value for a label. So
 * the two are kept apart whatever characters they have. A name has less than 2000 bytes, of the 2700 that Postgres
 * allows in an index.
 */
export function stateEntry(name: string): string {
  return JSON.stringify(name);
}

/** Returns the name that a label has in the column `labels` and in `segment_names`. */
export function labelName(key: string, value: string): string {
  return JSON.stringify([key, value]);
}

/** The runs of a column as a table, for a `from` clause. */
export function runsIn(engine: Engine, column: RawBuilder<string>, alias: string): RawBuilder<unknown> {
  return sql`${engine.sql.jsonElements(column)} as ${sql.raw(alias)}`;
}

export function runName(alias: string): RawBuilder<string> {
  return sql`(${sql.ref(`${alias}.value`)} ->> 0)`;
}

export function runBegin(alias: string): RawBuilder<number> {
  return sql`cast(${sql.ref(`${alias}.value`)} ->> 1 as bigint)`;
}

export function runEnd(alias: string): RawBuilder<number> {
  return sql`cast(${sql.ref(`${alias}.value`)} ->> 2 as bigint)`;
}

/** The column of a segment without states, or without labels. */
export const NO_RUNS = '[]';

export function readRuns(json: string): readonly StepRun[] {
  return JSON.parse(json) as StepRun[];
}

/** Returns the names that `segment_names` has of a segment, if it has the segment. */
export function indexNames({ state_names, labels }: Pick<SegmentRow, 'state_names' | 'labels'>): ReadonlySet<string> {
  return new Set([
    ...readRuns(state_names).map(([name]) => stateEntry(name)),
    ...readRuns(labels).map(([name]) => name),
  ]);
}

/** Returns the column of a segment whose step `index` has one more state. */
export function withRun(json: string, name: string, index: number): string {
  return JSON.stringify([...readRuns(json), [name, index, index + 1]]);
}

/** Returns the column without these names at these indexes. */
export function withoutRuns(
  json: string,
  removed: Iterable<readonly [index: number, names: readonly string[]]>,
): string {
  const removedKeys = new Set(
    [...removed].flatMap(([index, names]) => names.map((name) => tupleKey(name, BigInt(index)))),
  );
  const kept = new StepRuns();
  for (const [name, from, to] of readRuns(json)) {
    for (let index = from; index < to; index += 1)
      if (!removedKeys.has(tupleKey(name, BigInt(index)))) kept.add(index, name);
  }
  return kept.toJson();
}

/** Returns the column of the first `count` steps. */
export function runsUntil(json: string, count: number): string {
  const runs = readRuns(json).filter(([, from]) => from < count);
  return JSON.stringify(runs.map(([name, from, to]) => [name, from, Math.min(to, count)]));
}

/**
 * Returns the last index in [from, to) at which a step has all names, or any name if there are none. Undefined if there
 * is no such step.
 */
export function lastWithStates(
  runs: readonly StepRun[],
  names: readonly string[],
  from: number,
  to: number,
): number | undefined {
  let latest: number | undefined;
  for (const run of runs) {
    // The last step that has all names is the last one of a run.
    const index = Math.min(run[2], to) - 1;
    if (index < Math.max(run[1], from) || (latest !== undefined && index <= latest)) continue;
    const has = (name: string) => runs.some((other) => other[0] === name && other[1] <= index && index < other[2]);
    if (names.every(has)) latest = index;
  }
  return latest;
}
