import { SqliteAdapter, SqliteDialect } from 'kysely';

/** SQLite can change its schema in a transaction, so a migration is applied completely or not at all (D3). */
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
