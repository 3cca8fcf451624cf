import { sql } from 'kysely';
import type { StorageFault } from '../../../../domain/verification.ts';
import type { Engine } from '../../kit/engine.ts';
import { ATTEMPTS, VALIDATION_OVERRIDES, VALIDATIONS } from '../../kit/tables/attempts.ts';
import { STATUS_CHANGES } from '../../kit/tables/changes.ts';
import { brokenCondition } from '../../kit/tables/conditions.ts';
import { expectedBy } from '../../kit/tables/forms.ts';
import {
  GROUPS,
  ROLLOUT_CANCELLATIONS,
  ROLLOUT_ENVIRONMENTS,
  ROLLOUTS,
  TASKS,
  VALIDATORS,
} from '../../kit/tables/rollouts.ts';
import { ENVIRONMENTS, EXPERIMENTS, METRIC_SERIES, RUNS, STAGES } from '../../kit/tables/runs.ts';
import type { NamedColumn, Row, Table } from '../../kit/tables/table.ts';
import { DELETED_TRAJECTORIES, TAGS, TRAJECTORIES, TRAJECTORY_IMPORTS } from '../../kit/tables/trajectories.ts';
import type { Tables } from '../../kit/tables.ts';
import { readReal } from '../../kit/values.ts';

/** Tables whose columns have forms, with their primary keys. */
const CHECKED: readonly (readonly [table: Table, key: readonly string[]])[] = [
  ...[EXPERIMENTS, RUNS, STAGES, ENVIRONMENTS, TASKS, VALIDATORS, GROUPS, ROLLOUTS, METRIC_SERIES].map(
    (table) => [table, ['key']] as const,
  ),
  [TRAJECTORIES, ['tree', 'key']],
  [ATTEMPTS, ['rollout', 'number']],
  [VALIDATIONS, ['rollout', 'attempt', 'name']],
  [VALIDATION_OVERRIDES, ['rollout', 'ordinal']],
  [ROLLOUT_ENVIRONMENTS, ['rollout', 'attempt', 'environment']],
  [ROLLOUT_CANCELLATIONS, ['run', 'stage']],
  [STATUS_CHANGES, ['tree', 'entity_kind', 'entity', 'ordinal']],
  [TAGS, ['tree', 'trajectory', 'name']],
  [TRAJECTORY_IMPORTS, ['tree', 'trajectory']],
  [DELETED_TRAJECTORIES, ['namespace', 'id']],
];

/** Rows of one statement. Each has at most a few MiB. */
const PAGE = 64;

/** Yields the values that do not have the forms of their columns, page by page. */
export async function* checkValues(
  engine: Engine,
): AsyncGenerator<() => Promise<readonly StorageFault[]>, void, undefined> {
  for (const [table, key] of CHECKED) {
    for (let after: Row | undefined, isLast = false; !isLast; ) {
      const from: Row | undefined = after;
      // The rows after a page that cannot be read cannot be found.
      isLast = true;
      yield async () => {
        const rows = await readPage(engine, table, key, from);
        await engine.slots.take();
        after = rows.at(-1);
        isLast = rows.length < PAGE;
        return rows.flatMap((row) => rowFaults(table, key, row));
      };
    }
  }
}

async function readPage(
  engine: Engine,
  { name }: Table,
  key: readonly string[],
  after: Row | undefined,
): Promise<readonly Row[]> {
  const columns = sql.join(key.map((column) => sql.ref(column)));
  const beyond =
    after === undefined ? sql`` : sql`where (${columns}) > (${sql.join(key.map((column) => after[column]))})`;
  const { rows } = await sql<Row>`select * from ${engine.sql.table(name as keyof Tables)} ${beyond}
    order by ${columns} limit ${sql.lit(PAGE)}`.execute(engine.db);
  return rows;
}

function rowFaults(table: Table, key: readonly string[], row: Row): StorageFault[] {
  const place = `table ${table.name}, row with ${key.map((column) => `${column} ${row[column]}`).join(', ')}`;
  const fault = (message: string): StorageFault => {
    return { check: 'ROWS', namespace: row.namespace as string, message: `${place}: ${message}` };
  };
  const faults = table.order.flatMap((column) => {
    const expected = valueFault(column, row[column.name]);
    return expected === undefined ? [] : [fault(`"${column.name}" must be ${expected}`)];
  });
  if (faults.length > 0) return faults;
  const broken = brokenCondition(table.name, row);
  return broken === undefined ? [] : [fault(broken)];
}

/** Returns what a value that was read would have to be. Undefined if it has its form, or the column has none. */
function valueFault({ type, form }: NamedColumn, value: unknown): string | undefined {
  if (form === undefined || value === null) return undefined;
  try {
    if (form.kind === 'integer') return typeof value === 'bigint' ? expectedBy(form, value) : `of type ${type}`;
    if (form.kind === 'real') return expectedBy(form, readReal(value as number | string | bigint));
    return typeof value === 'string' ? expectedBy(form, value) : `of type ${type}`;
  } catch {
    return `of type ${type}`;
  }
}
