import type { CompiledQuery, DatabaseConnection, Dialect, Driver, QueryResult } from 'kysely';

type Read = (query: CompiledQuery) => Promise<unknown[]>;

/**
 * Returns a dialect for reads only, in which each statement runs by itself. `read` runs a query and returns its rows.
 */
export function readingDialect(engine: Dialect, read: Read): Dialect {
  return {
    // Without this, Kysely runs one query at a time.
    createAdapter: () => Object.defineProperty(engine.createAdapter(), 'supportsMultipleConnections', { value: true }),
    createIntrospector: (db) => engine.createIntrospector(db),
    createQueryCompiler: () => engine.createQueryCompiler(),
    createDriver: () => new ReadingDriver(read),
  };
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
