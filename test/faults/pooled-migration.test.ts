import { expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { logger, openOn, refusedOpen } from '../store/on_store.ts';
import { expectVerified } from '../store/verified.ts';
import { addMigration } from '../support/added_migration.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startPgbouncer } from '../support/pgbouncer.ts';

const STATEMENTS = 'alter table trajectories add column model_uri text;';

it('D3: a migration behind a pooler says that an index needs the direct URL, and completes with it', async () => {
  await using database = await createMigratedDatabase('postgres');
  await using pooler = await startPgbouncer(database.url, { poolSize: 10 });
  using _ = addMigration({
    name: '9001_add_model_uri_after_0001',
    postgres: STATEMENTS,
    sqlite: STATEMENTS,
    indexes: [{ name: 'trajectories_by_model_uri', table: 'trajectories', keys: '(model_uri)' }],
  });
  const pooled = { engine: 'postgres', url: pooler.url } as const;
  expect((await refusedOpen(openStore(pooled, { logger }))).message).toContain('set ANABRANCH_DIRECT_DATABASE');
  await (await openStore({ ...pooled, directUrl: database.url }, { logger })).close();
  const store = await openOn(database);
  await expectVerified(store);
  await store.close();
});
