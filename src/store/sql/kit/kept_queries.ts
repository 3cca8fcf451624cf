import { type Compilable, CompiledQuery, type Expression, sql } from 'kysely';
import { tupleKey } from '../../../domain/tuple_key.ts';

/** Placeholder for a value in a cached query. */
class Placeholder {
  readonly index: number;

  constructor(index: number) {
    this.index = index;
  }
}

/**
 * Limits of usual page sizes: one row more than the page, and for large pages the sizes of the first and second fetch.
 */
const USUAL_LIMITS: ReadonlySet<number> = new Set([11, 21, 26, 51, 101, 201, 256, 501 - 256, 1001 - 256]);

/** Safety bound; the real number of queries is smaller. */
const MOST = 500;

/** A query with a longer list among its values reads more rows than a few. */
const FEW_KEYS = 16;

/** A query that reads a few rows, each by its key. */
interface KeyedQuery<Row> extends CompiledQuery<Row> {
  readonly isByKey: true;
}

/** Returns whether a query reads a few rows, each by its key (`KeptQueries.byKey`). */
export function isByKey(query: CompiledQuery<unknown>): boolean {
  return 'isByKey' in query;
}

/**
 * Cache of compiled queries of one engine, whose text is the same for all values. Kysely takes as long to build and
 * compile a query of a page as SQLite takes to run it.
 */
export class KeptQueries {
  readonly #kept = new Map<string, CompiledQuery<unknown>>();

  /**
   * Returns the query with these values, for `executeQuery` or `Reads.rows`. The name must identify the text, apart
   * from the lengths of lists among the values. `build` receives placeholders and must only insert them into the query.
   */
  of<const Values extends readonly unknown[], Row>(
    name: string,
    values: Values,
    build: (...slots: Values) => Compilable<Row>,
  ): CompiledQuery<Row> {
    const lengths = values.map((value) => (Array.isArray(value) ? value.length : ''));
    const key = tupleKey(name, ...lengths);
    let kept = this.#kept.get(key);
    if (kept === undefined) {
      if (this.#kept.size >= MOST) this.#kept.clear();
      kept = build(...slotsFor(values)).compile() as CompiledQuery<unknown>;
      this.#kept.set(key, kept);
    }
    const flat = values.flat();
    const parameters = kept.parameters.map((parameter) =>
      parameter instanceof Placeholder ? flat[parameter.index] : parameter,
    );
    return CompiledQuery.raw(kept.sql, parameters) as CompiledQuery<Row>;
  }

  /**
   * Like `of`, for a query that reads one row, or one for each item of a list, by the whole of a unique key, and rows
   * that these refer to. On SQLite it blocks the serving thread (A5), so it must not scan, sort or count others. With a
   * long list, it is a query like any other.
   */
  byKey<const Values extends readonly unknown[], Row>(
    name: string,
    values: Values,
    build: (...slots: Values) => Compilable<Row>,
  ): CompiledQuery<Row> {
    const query = this.of(name, values, build);
    if (values.some((value) => Array.isArray(value) && value.length > FEW_KEYS)) return query;
    const keyed: KeyedQuery<Row> = { ...query, isByKey: true };
    return keyed;
  }

  /**
   * Returns the query for a page of `limit` rows. Usual limits are literals in the text. For a limit in a parameter,
   * Postgres assumes a tenth of all rows and replans each time, which takes longer than reading the page.
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
  let index = 0;
  const next = () => {
    index += 1;
    return new Placeholder(index - 1);
  };
  return values.map((value) => (Array.isArray(value) ? value.map(next) : next())) as unknown as Values;
}

/** Returns the least power of two that is at least this number, so that a text with it has few variants. */
export function powerOfTwo(least: number): number {
  return 2 ** Math.ceil(Math.log2(least));
}

/**
 * Repeats the last item until the length is a power of two. For `in`, where repeated items have no effect. Each length
 * of a list produces another statement, and engines cache a limited number of prepared ones.
 */
export function padded<T>(items: readonly T[]): T[] {
  const last = items.at(-1);
  if (last === undefined) return [];
  return [...items, ...Array<T>(powerOfTwo(items.length) - items.length).fill(last)];
}

/** Splits a list into parts whose lengths are powers of two, for the same reason; at most `most`, which is one too. */
export function* inPowersOfTwo<T>(items: readonly T[], most: number): Generator<readonly T[]> {
  for (let at = 0; at < items.length; ) {
    const length = Math.min(most, 2 ** Math.floor(Math.log2(items.length - at)));
    yield items.slice(at, at + length);
    at += length;
  }
}

/**
 * Values or rows of one statement: engines bound how many parameters one has. A power of two, so that full lists have
 * one length.
 */
export const CHUNK = 1024;

/** The list in pieces that one statement takes. */
export function* chunksOf<T>(items: readonly T[]): Generator<readonly T[]> {
  for (let at = 0; at < items.length; at += CHUNK) yield items.slice(at, at + CHUNK);
}
