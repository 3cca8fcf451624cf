import {
  type CompiledQuery,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  Kysely,
  type KyselyPlugin,
  type QueryCompiler,
  type QueryResult,
} from 'kysely';
import type { Tables } from '../tables.ts';

type Read = (query: CompiledQuery) => Promise<unknown[]>;

/**
 * Makes what each call reads with, in which each statement runs by itself. All calls share what compiles queries, which
 * takes 10 KB.
 */
export class ReadingDbs {
  readonly #engine: Dialect;
  readonly #compiler: QueryCompiler;
  readonly #plugins: KyselyPlugin[];

  /** `schema`: that of the tables. Default: the names of tables are sent without one. */
  constructor(engine: Dialect, schema?: string) {
    this.#engine = engine;
    this.#compiler = engine.createQueryCompiler();
    const db = new Kysely({ dialect: engine });
    this.#plugins = [...(schema === undefined ? db : db.withSchema(schema)).getExecutor().plugins];
  }

  /** `read` runs a query and returns its rows. */
  over(read: Read): Kysely<Tables> {
    const [engine, compiler] = [this.#engine, this.#compiler];
    return new Kysely<Tables>({
      dialect: {
        // Without this, Kysely runs one query at a time.
        createAdapter: () =>
          Object.defineProperty(engine.createAdapter(), 'supportsMultipleConnections', { value: true }),
        createIntrospector: (db) => engine.createIntrospector(db),
        createQueryCompiler: () => compiler,
        createDriver: () => new ReadingDriver(read),
      },
      plugins: this.#plugins,
    });
  }
}

class ReadingDriver implements Driver {
  readonly #connection: DatabaseConnection;

  constructor(read: Read) {
    this.#connection = {
      async executeQuery<Row>(query: CompiledQuery): Promise<QueryResult<Row>> {
        return { rows: (await read(query)) as Row[] };
      },
      streamQuery: refuse,
    };
  }

  async init(): Promise<void> {}

  async acquireConnection(): Promise<DatabaseConnection> {
    return this.#connection;
  }

  async beginTransaction(): Promise<void> {
    refuse();
  }

  async commitTransaction(): Promise<void> {
    refuse();
  }

  async rollbackTransaction(): Promise<void> {
    refuse();
  }

  async releaseConnection(): Promise<void> {}

  async destroy(): Promise<void> {}
}

function refuse(): never {
  throw new Error('This connection runs single read statements only. Use `Transactions.run` for transactions.');
}
