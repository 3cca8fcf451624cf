import { type ArchiveRecord, archiveInvalid } from '../../../../domain/archive.ts';
import { formatInstant, parseInstant } from '../../../../domain/instant.ts';
import type { TableWithId } from '../../kit/by_id.ts';
import { ATTEMPTS, VALIDATION_OVERRIDES, VALIDATIONS } from '../../kit/tables/attempts.ts';
import { STATUS_CHANGES } from '../../kit/tables/changes.ts';
import { isTimeText } from '../../kit/tables/forms.ts';
import {
  GROUPS,
  ROLLOUT_CANCELLATIONS,
  ROLLOUT_ENVIRONMENTS,
  ROLLOUTS,
  TASKS,
  VALIDATORS,
} from '../../kit/tables/rollouts.ts';
import { ENVIRONMENTS, EXPERIMENTS, RUNS, STAGES } from '../../kit/tables/runs.ts';
import type { NamedColumn, RowOf, Table } from '../../kit/tables/table.ts';
import { TAGS, TRAJECTORIES } from '../../kit/tables/trajectories.ts';
import { isSet, numberJson, readReal } from '../../kit/values.ts';

/** Tables to whose rows records refer by id. */
export type Target = Exclude<TableWithId, 'trajectories'>;

/** How the rows of a table are written to archives: row keys become ids, all other columns stay what they are. */
export interface Noun {
  readonly table: Table;
  /** Columns with row keys, and what they refer to. 0 and null refer to nothing. */
  readonly keys: Readonly<Record<string, Target>>;
  /** Columns with the key of a tree and of a trajectory in it. The record has the id under the second name. */
  readonly trajectory?: readonly [tree: string, key: string];
  /** Columns that are not part of the record: the importer sets them. */
  readonly set: readonly string[];
}

function noun(table: Table, set: readonly string[], keys: Noun['keys'] = {}, trajectory?: Noun['trajectory']): Noun {
  return { table, keys, set, ...(trajectory === undefined ? {} : { trajectory }) };
}

/** Columns of a row with an own key. */
const OWN = ['key', 'namespace'] as const;
const OF_ENTITY = ['tree', 'entity_kind', 'entity', 'namespace'] as const;
const OF_ROLLOUT = ['rollout', 'namespace'] as const;
const PLACE = ['tree', 'trajectory'] as const;

/**
 * The tables whose rows are records. docs/archive.md lists what happens to every other table. A test compares both
 * with the schema.
 */
export const NOUNS = {
  task: noun(TASKS, OWN),
  validator: noun(VALIDATORS, OWN, { task: 'tasks' }),
  experiment: noun(EXPERIMENTS, [...OWN, 'hidden']),
  run: noun(RUNS, [...OWN, 'hidden', 'mark', 'main_tree', 'main_trajectory'], {
    experiment: 'experiments',
    tree: 'runs',
    parent: 'runs',
  }),
  stage: noun(STAGES, [...OWN, 'mark'], { run: 'runs' }),
  environment: noun(ENVIRONMENTS, OWN, { run: 'runs' }),
  cancellation: noun(ROLLOUT_CANCELLATIONS, ['namespace'], { run: 'runs', stage: 'stages' }),
  group: noun(GROUPS, [...OWN, 'mark'], { run: 'runs', stage: 'stages' }),
  rollout: noun(
    ROLLOUTS,
    [...OWN, 'mark'],
    { run: 'runs', stage: 'stages', group_key: 'groups', task: 'tasks' },
    PLACE,
  ),
  attempt: noun(ATTEMPTS, OF_ROLLOUT, {}, PLACE),
  validation: noun(VALIDATIONS, OF_ROLLOUT, { validator: 'validators' }),
  override: noun(VALIDATION_OVERRIDES, OF_ROLLOUT),
  rollout_environment: noun(ROLLOUT_ENVIRONMENTS, OF_ROLLOUT, { environment: 'environments' }),
  status_change: noun(STATUS_CHANGES, OF_ENTITY),
  tag: noun(TAGS, ['tree', 'trajectory', 'namespace']),
  trajectory: noun(
    TRAJECTORIES,
    [
      ...OWN,
      ...['tree', 'uid', 'parent', 'hidden', 'purging', 'trimming', 'depth', 'merged_to', 'indexed_to'],
      // Computed from the steps.
      ...['reward_sum', 'byte_sum', 'branch_reward_sum', 'timed_turns', 'turn_seconds', 'min_reward', 'max_reward'],
    ],
    { run: 'runs', experiment: 'experiments' },
  ),
} satisfies Readonly<Record<string, Noun>>;

export type NounName = keyof typeof NOUNS;

/** Records whose rows have ids, with the table and the entity of their history. */
export const WITH_ID = {
  task: { target: 'tasks', history: undefined },
  validator: { target: 'validators', history: undefined },
  experiment: { target: 'experiments', history: undefined },
  run: { target: 'runs', history: 'RUN' },
  stage: { target: 'stages', history: 'STAGE' },
  environment: { target: 'environments', history: 'ENVIRONMENT' },
  group: { target: 'groups', history: undefined },
  rollout: { target: 'rollouts', history: 'ROLLOUT' },
} as const satisfies Partial<Record<NounName, { target: Target; history: string | undefined }>>;

export type WithId = keyof typeof WITH_ID;

/** Kinds of records that are stored many at once. */
export const ROW_KINDS: ReadonlySet<string> = new Set([
  ...Object.keys(WITH_ID),
  ...['cancellation', 'metric_points', 'main_trajectory', 'deleted_trajectory', 'more'],
]);

/** A column whose values records have as they are. */
export interface PlainColumn extends NamedColumn {
  readonly nullable: boolean;
}

/** Returns the columns whose values a record has as they are. */
export function plainColumns({ table, keys, trajectory = ['', ''], set }: Noun): PlainColumn[] {
  const others = new Set([...Object.keys(keys), ...trajectory, ...set]);
  const columns = table.order.filter(({ name }) => !others.has(name));
  return columns.map((column) => ({ ...column, nullable: table.columns[column.name]!.nullable }));
}

/** A value of a record: integers and bytes are texts, times have six digits, and numbers that JSON lacks are texts. */
export type RecordValue = string | number | boolean | null;

/** Returns a value of a row as both engines read it, in the form that both write to archives. */
export function toRecord({ type }: NamedColumn, value: unknown): RecordValue {
  if (value === null || value === undefined) return null;
  if (type === 'int8') return `${value as bigint}`;
  if (type === 'bool') return isSet(value as boolean | bigint);
  if (type === 'float8') return numberJson(readReal(value as number | string));
  if (type === 'bytea') return Buffer.from(value as Uint8Array).toString('base64');
  if (type === 'timestamptz') return formatInstant(parseInstant(value as string), 6);
  return value as string;
}

export const INTEGER = /^(0|-?[1-9][0-9]{0,18})$/;
const REAL = new Set<unknown>(['-0', 'NaN', 'Infinity', '-Infinity']);
export const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/** Returns the value for `BulkRows.insert`. `place` names the record. Errors: ARCHIVE_INVALID. */
export function fromRecord(column: PlainColumn, value: unknown, place: string): unknown {
  const bound = value === null && !column.nullable ? undefined : bind(column, value);
  if (bound === undefined) throw archiveInvalid(place, `"${column.name}" has no value of its type (${column.type})`);
  return bound;
}

function bind({ type }: NamedColumn, value: unknown): unknown {
  if (value === null) return null;
  if (type === 'bool') return typeof value === 'boolean' ? Number(value) : undefined;
  if (type === 'float8') return realFromRecord(value);
  // Postgres cannot store U+0000.
  if (typeof value !== 'string' || value.includes('\u0000')) return undefined;
  if (type === 'int8') return INTEGER.test(value) ? BigInt(value) : undefined;
  if (type === 'uuid') return UUID.test(value) ? value : undefined;
  if (type === 'timestamptz') return isTimeText(value, 6) ? value : undefined;
  if (type === 'bytea') return Buffer.from(value, 'base64');
  return value;
}

/** Returns undefined if the value is no number. NaN is bound as text (W11). */
export function realFromRecord(value: unknown): number | string | undefined {
  if (typeof value === 'number') return value;
  if (!REAL.has(value)) return undefined;
  return value === 'NaN' ? 'NaN' : Number(value);
}

/** A text of a record. Errors: ARCHIVE_INVALID. */
export function textOf(record: ArchiveRecord, name: string): string {
  const value = record[name];
  if (typeof value === 'string') return value;
  throw archiveInvalid(`record "${record.record}"`, `"${name}" is no text`);
}

/** An integer of a record, at least 0. Errors: ARCHIVE_INVALID. */
export function countOf(record: ArchiveRecord, name: string): bigint {
  const value = record[name];
  if (typeof value === 'string' && INTEGER.test(value) && !value.startsWith('-')) return BigInt(value);
  throw archiveInvalid(`record "${record.record}"`, `"${name}" is no count`);
}

/** A list of objects of a record. Errors: ARCHIVE_INVALID. */
export function listOf(record: ArchiveRecord, name: string): readonly ArchiveRecord[] {
  const value: unknown = record[name];
  if (Array.isArray(value) && value.every((each) => typeof each === 'object' && each !== null)) {
    return value as ArchiveRecord[];
  }
  throw archiveInvalid(`record "${record.record}"`, `"${name}" is no list of objects`);
}

/** Returns rows for the resources in a record. `of` are the columns that they do not have. */
export function rowsIn<Name extends 'status_change' | 'tag'>(
  record: ArchiveRecord,
  field: string,
  name: Name,
  of: object,
): RowOf<(typeof NOUNS)[Name]['table']>[] {
  return listOf(record, field).map((part) => {
    const columns = plainColumns(NOUNS[name]).map((column) => {
      return [column.name, fromRecord(column, part[column.name], `"${field}" of a record`)];
    });
    return { ...Object.fromEntries(columns), ...of };
  }) as unknown as RowOf<(typeof NOUNS)[Name]['table']>[];
}
