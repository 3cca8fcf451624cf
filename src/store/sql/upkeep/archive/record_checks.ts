import { type ArchiveRecord, archiveInvalid } from '../../../../domain/archive.ts';
import { LIMITS } from '../../../../domain/limits.ts';
import { fitsBytes, isStorableText } from '../../../../domain/text.ts';
import { brokenCondition } from '../../kit/tables/conditions.ts';
import { ANY_INTEGER, expectedBy, type Form, isTimeText, MOMENT, NATURAL, upTo } from '../../kit/tables/forms.ts';
import { TASKS } from '../../kit/tables/rollouts.ts';
import { METRIC_SERIES } from '../../kit/tables/runs.ts';
import {
  INTEGER,
  NOUNS,
  type Noun,
  type NounName,
  type PlainColumn,
  plainColumns,
  realFromRecord,
  type Target,
  UUID,
} from './nouns.ts';

/** Points of one record of a series. Exports write as many. */
export const POINTS_OF_RECORD = 1000;

/** Ids of trajectories that the last record lists. */
export const MOST_LEFT_OUT = 10_000;

/** Returns what a value would have to be. Undefined if it is right. */
type Check = (value: unknown) => string | undefined;

type Checks = Readonly<Record<string, Check>>;

/** The fields of a record, or of an object in it. Other fields are refused. */
interface Fields {
  readonly required: ReadonlyMap<string, Check>;
  readonly optional: ReadonlyMap<string, Check>;
}

function fields(required: Checks, optional: Checks = {}): Fields {
  return { required: new Map(Object.entries(required)), optional: new Map(Object.entries(optional)) };
}

const DIGEST = /^[0-9a-f]{64}$/;

const uuid: Check = (value) => (typeof value === 'string' && UUID.test(value) ? undefined : 'a UUID');
const digest: Check = (value) => (typeof value === 'string' && DIGEST.test(value) ? undefined : 'a SHA-256');
const bool: Check = (value) => (typeof value === 'boolean' ? undefined : 'true or false');
const yes: Check = (value) => (value === true ? undefined : 'true');
/** No list and no object, which may be nested too deep to be handed over. */
const scalar: Check = (value) => (typeof value === 'object' && value !== null ? 'text or a number' : undefined);

function orNull(check: Check): Check {
  return (value) => {
    const expected = value === null ? undefined : check(value);
    return expected && `${expected}, or null`;
  };
}

function textOf(form: Form): Check {
  return (value) => (typeof value === 'string' ? expectedBy(form, value) : 'text');
}

function integerOf(form: Form): Check {
  return (value) => {
    if (typeof value !== 'string' || !INTEGER.test(value)) return 'an integer in a text';
    const integer = BigInt(value);
    const { imported } = form as Form & { kind: 'integer' };
    if (imported !== undefined && integer > imported) return `at most ${imported}`;
    return expectedBy(form, integer);
  };
}

function realOf(form: Form): Check {
  return (value) => {
    const real = realFromRecord(value);
    return real === undefined ? 'a number' : expectedBy(form, Number(real));
  };
}

const moment: Check = (value) => {
  return isTimeText(value, 6) ? expectedBy(MOMENT, value as string) : 'a time in UTC with six fractional digits';
};

function ofColumn({ type, form, nullable, name }: PlainColumn): Check {
  const check = plainCheck(type, form, name);
  return nullable ? orNull(check) : check;
}

function plainCheck(type: PlainColumn['type'], form: Form | undefined, name: string): Check {
  if (type === 'bool') return bool;
  if (type === 'uuid') return uuid;
  if (form === undefined) throw new Error(`the column ${name} has no form`);
  if (type === 'int8') return integerOf(form);
  if (type === 'float8') return realOf(form);
  return type === 'timestamptz' ? moment : textOf(form);
}

/** Ids of tasks are texts of clients. All others are UUIDs. */
function idOf(target: Target): Check {
  return target === 'tasks' ? textOf(TASKS.columns.id.form!) : uuid;
}

function fieldsOf(name: NounName, more: Checks = {}): Fields {
  const noun: Noun = NOUNS[name];
  const keys = Object.entries(noun.keys).map(([column, target]) => {
    const isOptional = noun.table.columns[column]!.nullable || target === 'stages';
    return [column, isOptional ? orNull(idOf(target)) : idOf(target)] as const;
  });
  const plain = plainColumns(noun).map((column) => [column.name, ofColumn(column)] as const);
  const trajectory = noun.trajectory === undefined ? {} : { [noun.trajectory[1]]: orNull(uuid) };
  return fields({ ...Object.fromEntries([...plain, ...keys]), ...trajectory, ...more });
}

/** Returns the first field that is wrong, and what it would have to be. */
function faultIn({ required, optional }: Fields, record: Readonly<Record<string, unknown>>): string | undefined {
  for (const [name, check] of required) {
    const expected = check(record[name]);
    if (expected !== undefined) return `"${name}" must be ${expected}`;
  }
  for (const [name, value] of Object.entries(record)) {
    if (name === 'record' || required.has(name)) continue;
    const check = optional.get(name);
    if (check === undefined) return `"${name.slice(0, 100)}" is no field of it`;
    const expected = check(value);
    if (expected !== undefined) return `"${name}" must be ${expected}`;
  }
  return undefined;
}

type Objects = readonly Readonly<Record<string, unknown>>[];

/** A list of objects with these fields. */
function listOf(fields: Fields, most = Number.POSITIVE_INFINITY): Check {
  return (value) => {
    if (!Array.isArray(value)) return 'a list';
    if (value.length > most) return `a list of at most ${most}`;
    for (const [i, each] of value.entries()) {
      if (typeof each !== 'object' || each === null || Array.isArray(each)) return 'a list of objects';
      const fault = faultIn(fields, each as Record<string, unknown>);
      if (fault !== undefined) return `a list whose objects are right, and in the one at ${i}, ${fault}`;
    }
    return undefined;
  };
}

const history = listOf(fieldsOf('status_change'));
const tags = listOf(fieldsOf('tag'));

/** Lists of a rollout. If they are long, they continue in records "more", as do those of other resources. */
const IN_ROLLOUT = {
  history,
  attempts: listOf(fieldsOf('attempt')),
  validations: listOf(fieldsOf('validation')),
  overrides: listOf(fieldsOf('override')),
  environments: listOf(fieldsOf('rollout_environment')),
};
const CONTINUED: readonly unknown[] = ['run', 'stage', 'environment', 'rollout'];

const attached = fields(
  {
    step_number: integerOf(NATURAL),
    name: textOf(upTo(LIMITS.stateNameBytes, 1)),
    digest,
    media_type: textOf(upTo(128)),
    size: (size) => (Number.isInteger(size) && (size as number) >= 0 ? undefined : 'a number of bytes'),
    small: bool,
  },
  { attach_time: moment, pruned_time: moment },
);

const points: Check = (value) => {
  if (!Array.isArray(value) || value.length > POINTS_OF_RECORD) return `a list of at most ${POINTS_OF_RECORD} points`;
  const isPoint = (point: unknown) =>
    Array.isArray(point) &&
    point.length === 2 &&
    integerOf(ANY_INTEGER)(point[0]) === undefined &&
    realFromRecord(point[1]) !== undefined;
  return value.every(isPoint) ? undefined : 'a list of pairs of a step and a number';
};

const leftOut: Check = (value) => {
  const isRight = Array.isArray(value) && value.length <= MOST_LEFT_OUT && value.every((id) => uuid(id) === undefined);
  return isRight ? undefined : `a list of at most ${MOST_LEFT_OUT} UUIDs`;
};

const count = integerOf(NATURAL);

const RECORDS: ReadonlyMap<string, Fields> = new Map(
  Object.entries({
    task: fieldsOf('task'),
    validator: fieldsOf('validator'),
    experiment: fieldsOf('experiment'),
    group: fieldsOf('group'),
    cancellation: fieldsOf('cancellation'),
    run: fieldsOf('run', { history }),
    stage: fieldsOf('stage', { history }),
    environment: fieldsOf('environment', { history }),
    rollout: fieldsOf('rollout', IN_ROLLOUT),
    trajectory: fieldsOf('trajectory', { parent: orNull(uuid), hidden: bool, tags, history }),
    archive: fields({}, { format: scalar, version: scalar, namespace: scalar, scope: scalar, id: scalar }),
    more: fields(
      { of: (value) => (CONTINUED.includes(value) ? undefined : `one of ${CONTINUED.join(', ')}`), id: uuid },
      IN_ROLLOUT,
    ),
    tags: fields({ trajectory: uuid, tags }),
    attached_states: fields({ trajectory: uuid, states: listOf(attached) }),
    state_left_out: fields({ digest }),
    trajectory_end: fields({ id: uuid }, { steps_digest: digest, digest, left_out: yes }),
    main_trajectory: fields({ run: uuid, exists: bool, trajectory: orNull(uuid) }),
    metric_points: fields({
      run: uuid,
      stage: orNull(uuid),
      name: textOf(METRIC_SERIES.columns.name.form!),
      points,
    }),
    deleted_trajectory: fields({ id: uuid, delete_time: moment }),
    end: fields(
      {},
      { trajectories: count, steps: count, states: count, runs: count, rollouts: count, left_out: leftOut },
    ),
  }),
);

/** Checks the values of a record, each by its column, and what columns must be together. Errors: ARCHIVE_INVALID. */
export function checkRecord(record: ArchiveRecord): void {
  const fields = RECORDS.get(record.record);
  if (fields === undefined) throw archiveInvalid(`record "${record.record}"`, 'this kind is not known');
  const fault = faultIn(fields, record) ?? faultOfRow(record) ?? faultOfLists(record);
  if (fault !== undefined) throw archiveInvalid(placeOf(record), fault);
}

export function placeOf(record: ArchiveRecord): string {
  const id = record.id ?? record.run ?? record.trajectory;
  const isShort = typeof id === 'string' && isStorableText(id) && fitsBytes(id, 256);
  return `record "${record.record}"${isShort ? ` of ${id}` : ''}`;
}

function faultOfRow(record: ArchiveRecord): string | undefined {
  const noun = (NOUNS as Readonly<Record<string, Noun>>)[record.record];
  if (noun === undefined) return undefined;
  const row: Record<string, unknown> = { ...record };
  for (const { name, type } of plainColumns(noun)) {
    if (type === 'int8' && row[name] !== null) row[name] = BigInt(row[name] as string);
  }
  return brokenCondition(noun.table.name, row);
}

/** The lists of a record agree with its row. The newest changes of a status come first, in the record itself. */
function faultOfLists(record: ArchiveRecord): string | undefined {
  const { history, attempts, attempt, status, status_changes } = record;
  const changes = history as Objects | undefined;
  if (record.record !== 'more' && changes !== undefined) {
    const last = changes.at(-1);
    if (last?.new_status !== status) return '"history" must end with the status';
    if (status_changes !== undefined && BigInt(last!.ordinal as string) !== BigInt(status_changes as string) - 1n)
      return '"history" must end with the last of "status_changes"';
  }
  if (changes?.some(({ ordinal }, i) => i > 0 && BigInt(ordinal as string) !== ordinalOf(changes[i - 1]!) + 1n))
    return '"history" must have consecutive ordinals';
  if (record.record !== 'rollout' || attempt === '0') return undefined;
  const hasLatest = (attempts as Objects).some(({ number }) => number === attempt);
  return hasLatest ? undefined : '"attempts" must have the latest one';
}

function ordinalOf(change: Readonly<Record<string, unknown>>): bigint {
  return BigInt(change.ordinal as string);
}
