import type { CompiledQuery, DatabaseConnection, Dialect, Driver, QueryResult } from 'kysely';

type Read = (query: CompiledQuery) => Promise<unknown[]>;

/** Returns a dialect that differs from an engine's own in how it runs queries: for reads alone, each a statement by itself. `read` returns its rows. */
export function readingDialect(engine: Dialect, read: Read): Dialect {
  return {
    // Kysely lets one query at a time through to an adapter without this.
    createAdapter: () => Object.defineProperty(engine.createAdapter(), 'supportsMultipleConnections', { value: true }),
    createIntrospector: (db) => engine.createIntrospector(db),
    createQueryCompiler: () => engine.createQueryCompiler(),
    createDriver: () => new ReadingDriver(read),
  };
}

class ReadingDriver implements Driver {
  private readonly connection: DatabaseConnection;

  constructor(read: Read) {
    this.connection = {
      async executeQuery<Row>(query: CompiledQuery): Promise<QueryResult<Row>> {
        return { rows: (await read(query)) as Row[] };
      },
      streamQuery: refuse,
    };
  }

  async init(): Promise<void> {}

  async acquireConnection(): Promise<DatabaseConnection> {
    return this.connection;
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
  throw new Error('This connection runs single read statements only. Use Engine.write for transactions.');
}
