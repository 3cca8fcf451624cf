import { CompiledQuery } from 'kysely';
import type { CallScope } from '../contract/store.ts';
import type { Tx } from '../sql/kit/engine.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import {
  type PointBatch,
  type Points,
  type RangeExtrema,
  type SeriesRange,
  splitRange,
} from '../sql/records/metric/points.ts';
import type { Pool } from './pool.ts';
import type { Ask, PostgresReads } from './reads.ts';
import { SCHEMA } from './schema.ts';
import { retrying } from './transactions.ts';

export interface PointsDeps {
  readonly pool: Pool;
  readonly slots: ReadSlots;
}

/** Points of metric series, for one call or for work that outlives calls. */
export class PostgresPoints implements Points {
  readonly #deps: PointsDeps;
  readonly #reads: PostgresReads;
  readonly #call: CallScope | undefined;

  constructor(deps: PointsDeps, reads: PostgresReads, call: CallScope | undefined) {
    this.#deps = deps;
    this.#reads = reads;
    this.#call = call;
  }

  async upsert(batch: PointBatch, tx?: Tx): Promise<boolean> {
    const values = upsertValues(batch);
    const stored = tx === undefined ? this.#upsertAlone(values) : tx.executeQuery(CompiledQuery.raw(UPSERT, values));
    return Number((await stored).numAffectedRows ?? 0) === batch.values.length;
  }

  /** Without `tx`, the statement is a transaction of its own. */
  #upsertAlone(values: unknown[]): Promise<{ numAffectedRows: number }> {
    const { pool, slots } = this.#deps;
    slots.wrote();
    return retrying(pool, async () => {
      const lease = await pool.lease(this.#call);
      try {
        return { numAffectedRows: (await lease.query(UPSERT, values)).rowCount ?? 0 };
      } finally {
        lease.release();
      }
    });
  }

  readExtrema(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]> {
    return this.#reads.inSnapshot('extrema', (ask) => new ExtremaReader(ask).read(series, ranges));
  }
}

/**
 * Upserts all points or none in one statement. Stores nothing if the run or a series does not exist. Locks the run's
 * row against deletion. Rows are written in order of identity, so that statements do not deadlock.
 */
const UPSERT = `with kept as (
    select key from ${SCHEMA}.runs where namespace = $1 and id = $2 and not hidden for key share
  ), known as materialized (
    select w.place, m.key
    from kept
    cross join unnest($3::uuid[], $4::text[]) with ordinality as w (stage_id, name, place)
    left join ${SCHEMA}.stages as s on s.namespace = $1 and s.id = w.stage_id and s.run = kept.key
    join ${SCHEMA}.metric_series as m on m.run = kept.key and m.name = w.name collate "C"
      and m.stage = case when w.stage_id is null then 0 else s.key end
  )
  insert into ${SCHEMA}.metric_points (series, metric_step, namespace, value)
  select known.key, p.metric_step, $1, p.value
  from unnest($5::bigint[], $6::bigint[], $7::double precision[]) as p (place, metric_step, value)
  join known on known.place = p.place
  where (select count(*) from known) = cardinality($4::text[])
  order by known.key, p.metric_step
  on conflict (series, metric_step) do update set value = excluded.value`;

function upsertValues({ namespace, runId, series, places, metricSteps, values }: PointBatch): unknown[] {
  return [
    namespace,
    runId,
    series.map(({ stageId }) => stageId ?? null),
    series.map(({ name }) => name),
    arrayText(places.map((place) => place + 1)),
    arrayText(metricSteps),
    arrayText(values.map(realText)),
  ];
}

/**
 * Number of parts of a range. One pass of aggregates without groups, the fastest way to read a series, finds the part
 * with an extremum. Its step is found by reading that part again.
 */
const PIECES = 8;

/** Must run in one snapshot, so that the second read finds the values of the first. */
class ExtremaReader {
  readonly #ask: Ask;

  constructor(ask: Ask) {
    this.#ask = ask;
  }

  async read(series: bigint, ranges: readonly SeriesRange[]): Promise<RangeExtrema[]> {
    const pieces = await this.#boundsOf(series, ranges.flatMap(cut));
    const chosen = ranges.map(({ from, to }) => summed(pieces.filter((piece) => from <= piece.from && piece.to <= to)));
    const wanted = chosen.flatMap(({ lowest, highest }) =>
      lowest === undefined || highest === undefined ? [] : [lowest, highest],
    );
    const picked = await this.#pick(series, wanted);
    return chosen.map(({ lowest, highest }) =>
      lowest === undefined || highest === undefined
        ? {}
        : { lowest: picked[wanted.indexOf(lowest)]!, highest: picked[wanted.indexOf(highest)]! },
    );
  }

  async #boundsOf(series: bigint, pieces: readonly SeriesRange[]): Promise<Piece[]> {
    const rows = await this.#ask(
      `select m.lowest, m.highest
       from unnest($2::bigint[], $3::bigint[]) with ordinality as w (first, last, place)
       cross join lateral (
         select min(p.value) as lowest, max(p.value) as highest
         from ${SCHEMA}.metric_points as p where p.series = $1 and p.metric_step >= w.first and p.metric_step <= w.last
       ) as m order by w.place`,
      boundsValues(series, pieces),
    );
    const found = pieces.map((piece, i) => {
      const [lowest, highest] = rows[i] as [number | null, number | null];
      return { ...piece, lowest, highest };
    });
    await this.#correctHighest(
      series,
      found.filter(({ highest }) => Number.isNaN(highest)),
    );
    return found;
  }

  /** Postgres sorts NaN above every number, so a NaN hides the largest number of its part. */
  async #correctHighest(series: bigint, pieces: readonly Piece[]): Promise<void> {
    if (pieces.length === 0) return;
    const rows = await this.#ask(
      `select m.highest
       from unnest($2::bigint[], $3::bigint[]) with ordinality as w (first, last, place)
       cross join lateral (
         select max(p.value) filter (where p.value <> 'NaN') as highest
         from ${SCHEMA}.metric_points as p where p.series = $1 and p.metric_step >= w.first and p.metric_step <= w.last
       ) as m order by w.place`,
      boundsValues(series, pieces),
    );
    for (const [i, piece] of pieces.entries()) {
      const [highest] = rows[i] as [number | null];
      Object.assign(piece, { highest, lowest: highest === null ? null : piece.lowest });
    }
  }

  async #pick(series: bigint, wanted: readonly Wanted[]) {
    if (wanted.length === 0) return [];
    const rows = await this.#ask(
      `select m.metric_step::text, m.value
       from unnest($2::bigint[], $3::bigint[], $4::double precision[]) with ordinality as w (first, last, value, place)
       cross join lateral (
         select p.metric_step, p.value from ${SCHEMA}.metric_points as p
         where p.series = $1 and p.metric_step >= w.first and p.metric_step <= w.last and p.value = w.value
         order by p.metric_step limit 1
       ) as m order by w.place`,
      [
        ...boundsValues(
          series,
          wanted.map(({ piece }) => piece),
        ),
        arrayText(wanted.map(({ value }) => realText(value))),
      ],
    );
    if (rows.length < wanted.length) throw new Error('a smallest or largest value is not where it was found');
    return (rows as [string, number][]).map(([step, value]) => ({ metricStep: BigInt(step), value }));
  }
}

interface Piece extends SeriesRange {
  /** Null if the part has no numbers. */
  readonly lowest: number | null;
  readonly highest: number | null;
}

interface Wanted {
  readonly piece: Piece;
  readonly value: number;
}

function cut({ from, to }: SeriesRange): SeriesRange[] {
  return splitRange(from, to, PIECES);
}

/** Returns the extrema of a range from those of its parts. Of equal values, the first part wins. */
function summed(pieces: readonly Piece[]) {
  let lowest: Wanted | undefined;
  let highest: Wanted | undefined;
  for (const piece of pieces) {
    if (piece.lowest === null || piece.highest === null) continue;
    if (lowest === undefined || piece.lowest < lowest.value) lowest = { piece, value: piece.lowest };
    if (highest === undefined || piece.highest > highest.value) highest = { piece, value: piece.highest };
  }
  return { lowest, highest };
}

function boundsValues(series: bigint, ranges: readonly SeriesRange[]): unknown[] {
  return [series, arrayText(ranges.map(({ from }) => from)), arrayText(ranges.map(({ to }) => to))];
}

/** Encodes a list of numbers as an array literal. `pg` would quote each number. */
function arrayText(items: readonly (number | bigint | string)[]): string {
  return `{${items.join(',')}}`;
}

/** `String` drops the sign of negative zero. */
function realText(value: number): string {
  return Object.is(value, -0) ? '-0' : String(value);
}
