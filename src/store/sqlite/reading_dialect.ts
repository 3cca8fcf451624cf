import {
  type CompiledQuery,
  type DatabaseConnection,
  type Dialect,
  type Driver,
  type Kysely,
  type QueryResult,
  SqliteAdapter,
  SqliteIntrospector,
  SqliteQueryCompiler,
} from 'kysely';

type Read = (query: CompiledQuery) => Promise<unknown[]>;

/** Kysely for reads alone, each a statement by itself: `read` returns its rows. */
export class ReadingDialect implements Dialect {
  private readonly read: Read;

  constructor(read: Read) {
    this.read = read;
  }

  createDriver(): Driver {
    return new ReadingDriver(this.read);
  }

  createQueryCompiler(): SqliteQueryCompiler {
    return new SqliteQueryCompiler();
  }

  createAdapter(): SqliteAdapter {
    return new SqliteAdapter();
  }

  createIntrospector(db: Kysely<never>): SqliteIntrospector {
    return new SqliteIntrospector(db);
  }
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
  throw new Error('reads are single statements: write in a transaction of the engine');
}
