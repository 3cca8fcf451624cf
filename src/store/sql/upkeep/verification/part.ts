import { type CompiledQuery, type RawBuilder, sql } from 'kysely';
import type { TrajectoryRef } from '../../../../domain/trajectory.ts';
import type { Engine } from '../../kit/engine.ts';
import type { SegmentRow } from '../../kit/tables/steps.ts';
import { HEAD_COLUMNS, type HeadRowRead } from '../../log/append/heads.ts';

/** Faults of one kind that one statement returns. */
export const MOST_FAULTS = 100;

/** Rows of `segments` that are read at once. Each has at most 64 KiB, or one step. */
const ROWS = 16;

export interface HeadPart extends HeadRowRead {
  readonly purging: boolean | bigint;
  readonly trimming: boolean | bigint;
  readonly indexed_to: bigint;
}

export interface SegmentPart extends SegmentRow {
  /** Where the row before it ends. Null for the first row. */
  readonly previous_end: bigint | null;
}

export interface RefPart {
  readonly step_number: bigint;
  readonly name: string;
  readonly namespace: string;
  /** Of the state. Null if there is no such row. */
  readonly state_namespace: string | null;
  readonly digest: Uint8Array | null;
  readonly size: bigint | null;
  readonly collected: boolean | bigint | null;
}

export interface AttachedPart {
  readonly namespace: string;
  readonly step_number: bigint;
  readonly name: string;
  readonly digest: Uint8Array;
  readonly size: bigint;
  readonly data: Uint8Array | null;
  readonly pruned_time: string | null;
}

export interface ScorePart {
  readonly namespace: string;
  readonly step_number: bigint;
  readonly metric: string;
  readonly value: number | string;
}

/** A row of the index of names. */
export interface NamePart {
  readonly first_step_number: bigint;
  readonly name: string;
}

/** Some consecutive rows of a trajectory, with all that other tables have about their steps, from one snapshot. */
export interface Part {
  /** Undefined if the trajectory was deleted. */
  readonly head: HeadPart | undefined;
  readonly segments: readonly SegmentPart[];
  readonly refs: readonly RefPart[];
  readonly attached: readonly AttachedPart[];
  readonly scores: readonly ScorePart[];
  readonly names: readonly NamePart[];
  /** No rows follow. */
  readonly isLast: boolean;
}

/** Reads from the row with this step on. Undefined: from the first row, and what lies before it. */
export async function readPart(engine: Engine, { tree, key }: TrajectoryRef, at: bigint | undefined): Promise<Part> {
  const [stored, states] = [engine.sql.table('segments'), engine.sql.table('states')];
  const owned = (alias: string) =>
    sql`${sql.ref(`${alias}.tree`)} = ${tree} and ${sql.ref(`${alias}.trajectory`)} = ${key}`;
  const from: RawBuilder<unknown> =
    at === undefined
      ? sql`cast(${-1n} as bigint)`
      : sql`coalesce((select b.first_step_number from (select first_step_number, next_step_number from ${stored} as l
          where ${owned('l')} and l.first_step_number <= ${at} order by l.first_step_number desc limit 1) as b
          where b.next_step_number > ${at}), cast(${at} as bigint))`;
  // The first row that is not read.
  const end = sql`(select e.first_step_number from ${stored} as e where ${owned('e')} and e.first_step_number >= ${from}
    order by e.first_step_number limit 1 offset ${sql.lit(ROWS)})`;
  const [ofStep, ofRow] = ['step_number', 'first_step_number'] as const;
  const columns = { r: ofStep, a: ofStep, p: ofStep, s: ofRow, n: ofRow } as const;
  const within = (alias: keyof typeof columns) => {
    const number = sql.ref(`${alias}.${columns[alias]}`);
    return sql`${owned(alias)} and ${number} >= ${from} and (${number} < ${end} or ${end} is null)`;
  };
  const compiled = <Row>(query: RawBuilder<unknown>) => query.compile(engine.db) as CompiledQuery<Row>;
  const [heads, segments, refs, attached, scores, names] = await engine.reads.snapshot([
    compiled<HeadPart>(sql`select ${sql.join(HEAD_COLUMNS.map((name) => sql.ref(name)))}, purging, trimming, indexed_to
      from ${engine.sql.table('trajectories')} where tree = ${tree} and key = ${key}`),
    compiled<SegmentPart>(sql`select (select b.next_step_number from ${stored} as b
        where ${owned('b')} and b.first_step_number < s.first_step_number
        order by b.first_step_number desc limit 1) as previous_end, s.*
      from ${stored} as s where ${within('s')} order by s.first_step_number`),
    compiled<RefPart>(sql`select r.step_number, r.name, r.namespace, s.namespace as state_namespace, s.digest, s.size,
        s.collected
      from ${engine.sql.table('state_refs')} as r left join ${states} as s on s.key = r.state where ${within('r')}`),
    compiled<AttachedPart>(sql`select a.namespace, a.step_number, a.name, a.digest, a.size, a.data, a.pruned_time
      from ${engine.sql.table('attached_states')} as a where ${within('a')}`),
    compiled<ScorePart>(sql`select p.namespace, p.step_number, p.metric, p.value
      from ${engine.sql.table('step_scores')} as p where ${within('p')}`),
    compiled<NamePart>(sql`select n.first_step_number, n.name
      from ${engine.sql.table('segment_names')} as n where ${within('n')}`),
  ]);
  return { head: heads[0], segments, refs, attached, scores, names, isLast: segments.length < ROWS };
}
