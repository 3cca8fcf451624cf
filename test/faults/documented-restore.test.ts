/** The commands of docs/operations.md that need the programs of Postgres. */
import path from 'node:path';
import process from 'node:process';
import { expect, it } from 'vitest';
import { openShell } from '../docs/shell.ts';
import { programOf, readSnippets } from '../docs/snippets.ts';
import { openOn } from '../store/on_store.ts';
import { Scene } from '../store/scene.ts';
import { expectVerified } from '../store/verified.ts';
import { createPostgresDatabase } from '../support/database.ts';
import { startPostgres, startStandby } from '../support/postgres.ts';

/** See restored.test.ts. */
const BIN = process.env.STOCK_POSTGRES ?? '/usr/lib/postgresql/15/bin';
const SNIPPETS = readSnippets('docs/operations.md');

it('docs/operations.md dumps and restores Postgres under load, and moves a file into it', async () => {
  await using postgres = await startPostgres({ bin: BIN, port: 'free' });
  await using database = await createPostgresDatabase(postgres.url);
  const { port } = new URL(postgres.url);
  const local = (text: string) => text.replaceAll('postgres://localhost/', `postgres://postgres@127.0.0.1:${port}/`);
  await using shell = openShell({
    PATH: `${BIN}${path.delimiter}${process.env.PATH}`,
    DATABASE_URL: database.url,
    PGHOST: '127.0.0.1',
    PGPORT: port,
    PGUSER: 'postgres',
  });
  const store = await openOn(database);
  const scene = new Scene(store);
  const made = await scene.createWith(['kept']);
  const load = new AbortController();
  const appending = (async () => {
    while (!load.signal.aborted) await scene.createWith(['beside']);
  })();
  await shell.run(local(programOf(SNIPPETS, 'postgres')));
  load.abort();
  await appending;
  await store.close();
  const restored = await openOn({ engine: 'postgres', url: local('postgres://localhost/restored') });
  const there = new Scene(restored, scene.namespace);
  expect(await there.words(await there.get(made.id))).toEqual(['kept']);
  await expectVerified(restored);
  await restored.close();

  const moving = programOf(SNIPPETS, 'moving').trim().split('\n').at(-1)!;
  await shell.run('anabranch migrate --database sqlite:.anabranch/data.db && createdb anabranch');
  await shell.run(local(moving));
});

it('docs/operations.md promotes a standby, which then has all acked steps and accepts writes', async () => {
  await using primary = await startPostgres();
  const database = await createPostgresDatabase(primary.url); // goes with its cluster
  const before = await openOn(database);
  const scene = new Scene(before);
  const made = await scene.createWith(['acked']);
  await before.close();
  await using standby = await startStandby(primary);
  await primary.killAll();
  const url = new URL(standby.url);
  url.pathname = new URL(database.url).pathname;
  await using shell = openShell({ PATH: `${BIN}${path.delimiter}${process.env.PATH}`, STANDBY_URL: url.href });
  const [promoting] = programOf(SNIPPETS, 'failover').split('\n');
  await shell.run(promoting!);
  const store = await openOn({ engine: 'postgres', url: url.href });
  const there = new Scene(store, scene.namespace);
  expect(await there.words(await there.get(made.id))).toEqual(['acked']);
  await there.createWith(['after']);
  await expectVerified(store);
  await store.close();
});
