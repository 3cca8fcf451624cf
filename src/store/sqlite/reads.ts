import type { CompiledQuery, Kysely, RawBuilder } from 'kysely';
import type { CallScope } from '../contract/store.ts';
import { traced } from '../contract/trace.ts';
import type { FileWatch } from '../file_guard/watch.ts';
import type { QueriesOf, Reads, RowsOf } from '../sql/kit/engine.ts';
import { isByKey } from '../sql/kit/kept_queries.ts';
import type { ReadingDbs } from '../sql/kit/reading/dbs.ts';
import type { ReadSlots } from '../sql/kit/reading/slots.ts';
import { nameOf } from '../sql/kit/statement_times.ts';
import type { Tables } from '../sql/kit/tables.ts';
import type { KeyReads } from './key_reads.ts';
import {
  kindOf,
  objectsOf,
  type ReadJob,
  type ReadResult,
  type ReadThreads,
  type StatementJob,
} from './read_threads.ts';

export interface ReadsDeps {
  readonly threads: ReadThreads;
  readonly keyReads: KeyReads;
  readonly dbs: ReadingDbs;
  readonly watch: FileWatch;
  readonly slots: ReadSlots;
}

/** Reads on threads, and by key without a detour, for one call or for work that outlives calls. */
export class SqliteReads implements Reads {
  readonly #deps: ReadsDeps;
  readonly #call: CallScope | undefined;
  #db: Kysely<Tables> | undefined;

  constructor(deps: ReadsDeps, call: CallScope | undefined) {
    this.#deps = deps;
    this.#call = call;
  }

  get db(): Kysely<Tables> {
    this.#db ??= this.#deps.dbs.over((query) => this.#rows('objects', query));
    return this.#db;
  }

  async rows<Row extends readonly unknown[]>(query: RawBuilder<unknown> | CompiledQuery<unknown>): Promise<Row[]> {
    return (await this.#rows('arrays', 'compile' in query ? query.compile(this.db) : query)) as Row[];
  }

  async snapshot<const Rows extends readonly object[]>(queries: QueriesOf<Rows>): Promise<RowsOf<Rows>> {
    const all: readonly CompiledQuery<object>[] = queries;
    const statements = all.map(({ sql: text, parameters }) => ({ text, parameters }));
    const found = await this.#runOnThread({ kind: 'snapshot', statements });
    const tables = found.map(({ columns, rows }) => objectsOf(columns, rows));
    return (await this.#deps.slots.handOverAll(tables, this.#call?.namespace)) as RowsOf<Rows>;
  }

  async read<Job extends ReadJob>(job: Job): Promise<ReadResult<Job>> {
    return this.#deps.slots.handOver(await this.#runOnThread(job), this.#call?.namespace);
  }

  async #rows(kind: StatementJob['kind'], query: CompiledQuery<unknown>): Promise<unknown[]> {
    const job: StatementJob = { kind, text: query.sql, parameters: query.parameters };
    const found = isByKey(query) ? await this.#traced(job.text, () => this.#runHere(job)) : undefined;
    return found === undefined ? this.read(job) : this.#deps.slots.handOver(found, this.#call?.namespace);
  }

  /** Returns undefined if a thread must read the rows. */
  async #runHere(job: StatementJob): Promise<unknown[] | undefined> {
    await this.#deps.slots.takeByKey(this.#call?.namespace);
    this.#call?.signal.throwIfAborted();
    try {
      return this.#deps.keyReads.run(job);
    } catch (error) {
      throw await this.#deps.watch.explain(error);
    }
  }

  #traced<T>(text: string, read: () => Promise<T>): Promise<T> {
    return traced(this.#call?.trace, () => nameOf(text), read);
  }

  async #runOnThread<Job extends ReadJob>(job: Job): Promise<ReadResult<Job>> {
    const { threads, watch } = this.#deps;
    try {
      return await this.#traced(kindOf(job), () => threads.run(job, this.#call));
    } catch (error) {
      throw await watch.explain(error);
    }
  }
}
