/** Reads the rollouts of an ended run by plain SQL, without the service. */
import { outsideSql } from '../../store/sql.ts';
import type { TestDatabase } from '../../support/database.ts';
import { readTableSteps, type TableStep } from '../../support/stored_steps.ts';

export interface StoredRollout {
  readonly id: string;
  readonly group: number;
  readonly number: number;
  readonly status: string;
  readonly attempt: number;
  readonly attempts: readonly StoredAttempt[];
  /** Its statuses, in order of ordinal. */
  readonly history: readonly string[];
  /** The ordinals of the history. */
  readonly ordinals: readonly number[];
}

export interface StoredAttempt {
  readonly number: number;
  readonly status: string;
  readonly worker: string;
  readonly trajectory: string;
  /** Of the trajectory. */
  readonly sealed: string;
  /** The contents of its steps, in order of number. */
  readonly marks: readonly string[];
}

/** The counters in the row of a group. */
export interface StoredGroup {
  readonly number: number;
  readonly rollouts: number;
  readonly terminalRollouts: number;
  readonly terminalTurns: number;
}

export interface StoredRollouts {
  readonly rollouts: readonly StoredRollout[];
  readonly groups: readonly StoredGroup[];
  /** Trajectories that belong to no attempt. */
  readonly strays: number;
}

type Row = Record<string, unknown>;

export async function collectRollouts(database: TestDatabase): Promise<StoredRollouts> {
  const sql = await outsideSql(database);
  try {
    const steps = Map.groupBy(await readTableSteps(sql), ({ owner }) => owner);
    const attempts = Map.groupBy(await sql.rows(ATTEMPTS), (row) => `${row.rollout}`);
    const changes = Map.groupBy(await sql.rows(CHANGES), (row) => `${row.entity}`);
    const rollouts = (await sql.rows(ROLLOUTS)).map((row): StoredRollout => {
      const history = changes.get(`${row.key}`) ?? [];
      return {
        id: `${row.id}`,
        group: Number(row.group_number),
        number: Number(row.number),
        status: `${row.status}`,
        attempt: Number(row.attempt),
        attempts: (attempts.get(`${row.key}`) ?? []).map((attempt) => readAttempt(attempt, steps)),
        history: history.map(({ new_status }) => `${new_status}`),
        ordinals: history.map(({ ordinal }) => Number(ordinal)),
      };
    });
    const groups = (await sql.rows(GROUPS)).map((row) => ({
      number: Number(row.number),
      rollouts: Number(row.rollouts),
      terminalRollouts: Number(row.terminal_rollouts),
      terminalTurns: Number(row.terminal_turns),
    }));
    const strays = Number((await sql.rows(STRAYS))[0]?.count);
    return { rollouts, groups, strays };
  } finally {
    await sql.close();
  }
}

const ROLLOUTS = 'select key, id, group_number, number, status, attempt from rollouts order by key';

const ATTEMPTS = `select a.rollout, a.number, a.status, a.worker_id, t.id as trajectory, t.status as sealed
  from attempts a left join trajectories t on t.tree = a.tree and t.key = a.trajectory order by a.rollout, a.number`;

const CHANGES = `select entity, ordinal, new_status from status_changes where entity_kind = 'ROLLOUT' order by entity, ordinal`;

const GROUPS = 'select number, rollouts, terminal_rollouts, terminal_turns from groups order by number';

const STRAYS = `select count(*) as count from trajectories t
  where not exists (select 1 from attempts a where a.tree = t.tree and a.trajectory = t.key)`;

function readAttempt(row: Row, steps: ReadonlyMap<string, TableStep[]>): StoredAttempt {
  return {
    number: Number(row.number),
    status: `${row.status}`,
    worker: `${row.worker_id}`,
    trajectory: `${row.trajectory}`,
    sealed: `${row.sealed}`,
    marks: (steps.get(`${row.trajectory}`) ?? []).map(({ step }) => step.infoJson),
  };
}
