import { type Compilable, CompiledQuery, type Expression, sql } from 'kysely';
import { tupleKey } from '../../domain/tuple_key.ts';

/** Stands for a value in a query that is kept. */
class Slot {
  readonly place: number;

  constructor(place: number) {
    this.place = place;
  }
}

/** What pages ask for: one more than the sizes that people use, and of a larger one what is fetched first and then. */
const USUAL_LIMITS: ReadonlySet<number> = new Set([11, 21, 26, 51, 101, 201, 256, 501 - 256, 1001 - 256]);

/** Queries are few, so this is a bound against surprises. */
const MOST = 500;

/**
 * Queries whose text is the same each time, of one engine: built and compiled once, then run with other values. For a page of a list Kysely takes
 * as long to build and compile its queries as SQLite takes to answer them.
 */
export class KeptQueries {
  private readonly kept = new Map<string, CompiledQuery<unknown>>();

  /**
   * The query with these values, to be run by `executeQuery` or `Engine.rows`. The name says all that its text depends on, but for the lengths of lists
   * among the values; `build` gets what stands for them, and must do no more with it than put it into the query.
   */
  of<const Values extends readonly unknown[], Row>(
    name: string,
    values: Values,
    build: (...slots: Values) => Compilable<Row>,
  ): CompiledQuery<Row> {
    const lengths = values.map((value) => (Array.isArray(value) ? value.length : ''));
    const key = tupleKey(name, ...lengths);
    let kept = this.kept.get(key);
    if (kept === undefined) {
      if (this.kept.size >= MOST) this.kept.clear();
      kept = build(...slotsFor(values)).compile() as CompiledQuery<unknown>;
      this.kept.set(key, kept);
    }
    const flat = values.flat();
    const parameters = kept.parameters.map((parameter) =>
      parameter instanceof Slot ? flat[parameter.place] : parameter,
    );
    return CompiledQuery.raw(kept.sql, parameters) as CompiledQuery<Row>;
  }

  /**
   * The same for a page of so many rows. A usual limit stands in the text: Postgres takes a tenth of all rows for a limit that it does not know, so
   * that every plan for one that it knows looks better, and plans anew each time, which takes longer than the page.
   */
  page<const Values extends readonly unknown[], Row>(
    name: string,
    limit: number,
    values: Values,
    build: (limit: Expression<number>, ...slots: Values) => Compilable<Row>,
  ): CompiledQuery<Row> {
    if (USUAL_LIMITS.has(limit)) {
      return this.of(`${name}, ${limit} rows`, values, (...slots) => build(sql.lit(limit), ...slots));
    }
    return this.of(name, [limit, ...values], (most, ...slots) => build(sql.val(most), ...(slots as unknown as Values)));
  }
}

function slotsFor<Values extends readonly unknown[]>(values: Values): Values {
  let place = 0;
  const next = () => {
    place += 1;
    return new Slot(place - 1);
  };
  return values.map((value) => (Array.isArray(value) ? value.map(next) : next())) as unknown as Values;
}
