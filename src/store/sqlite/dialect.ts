import { SqliteAdapter, SqliteDialect } from 'kysely';

/** SQLite supports schema changes in transactions, so a migration is all or nothing (D3). */
class Adapter extends SqliteAdapter {
  override get supportsTransactionalDdl(): boolean {
    return true;
  }
}

export class Dialect extends SqliteDialect {
  override createAdapter(): Adapter {
    return new Adapter();
  }
}
