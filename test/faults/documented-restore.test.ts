/** The commands of docs/operations.md, and of a manifest that it names, that need the programs of Postgres. */
import { chmodSync, chownSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import pg from 'pg';
import { expect, it } from 'vitest';
import type { Run } from '../../src/domain/run.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { commandsOfHead } from '../docs/commands.ts';
import { openShell, type Shell } from '../docs/shell.ts';
import { programOf, readSnippets } from '../docs/snippets.ts';
import { openOn } from '../store/on_store.ts';
import { RolloutScene } from '../store/rollout_scene.ts';
import { Watcher } from '../store/run_watcher.ts';
import { Scene } from '../store/scene.ts';
import { expectVerified } from '../store/verified.ts';
import { createPostgresDatabase } from '../support/database.ts';
import { freePort } from '../support/free_port.ts';
import { startJanitor } from '../support/janitor.ts';
import { startPostgres, startStandby } from '../support/postgres.ts';
import { runAs } from '../support/postgres-binaries.ts';

/** See restored.test.ts. */
const BIN = process.env.STOCK_POSTGRES ?? '/usr/lib/postgresql/15/bin';
const PATH = `${BIN}${path.delimiter}${process.env.PATH}`;
const SNIPPETS = readSnippets('docs/operations.md');
const ROLLOUTS = 20;

interface Kept {
  readonly trajectory: Trajectory;
  readonly run: Run;
}

async function keep(scene: RolloutScene): Promise<Kept> {
  const { run, stage } = await scene.place();
  await scene.queue(stage, ROLLOUTS);
  return { trajectory: await scene.createWith(['kept']), run };
}

/** Appends until the function returned is called, which resolves when the last append has ended. */
function appendBeside(scene: Scene): () => Promise<void> {
  const over = new AbortController();
  const appending = (async () => {
    while (!over.signal.aborted) await scene.createWith(['beside']);
  })();
  return () => {
    over.abort();
    return appending;
  };
}

/** Requires that a restored database has what was kept, and can be watched and written to. */
async function useRestored(url: string, namespace: string, { trajectory, run }: Kept): Promise<Scene> {
  const store = await openOn({ engine: 'postgres', url });
  const scene = new RolloutScene(store, namespace);
  expect(await scene.words(await scene.get(trajectory.id))).toEqual(['kept']);
  const watcher = new Watcher(scene, run);
  expect(await watcher.changed()).toEqual({ stages: 1, groups: 1, rollouts: ROLLOUTS });
  await scene.claims({ runId: run.id, count: 3 });
  expect(await watcher.changed()).toEqual({ stages: 0, groups: 1, rollouts: 3 });
  expect(await scene.words(await scene.createWith(['after']))).toEqual(['after']);
  await expectVerified(store);
  return scene;
}

it('docs/operations.md dumps Postgres under load, restores the dump into another cluster, and moves a file into it', async () => {
  await using old = await startPostgres({ bin: BIN, port: 'free' });
  await using young = await startPostgres({ bin: BIN, port: 'free' });
  await using database = await createPostgresDatabase(old.url);
  const { port } = new URL(young.url);
  const local = (text: string) => text.replaceAll('postgres://localhost/', `postgres://postgres@127.0.0.1:${port}/`);
  const place = { PGHOST: '127.0.0.1', PGPORT: port, PGUSER: 'postgres' };
  await using shell = openShell({ PATH, DATABASE_URL: database.url, ...place });
  const store = await openOn(database);
  const scene = new RolloutScene(store);
  const kept = await keep(scene);
  const stop = appendBeside(scene);
  await shell.run(local(programOf(SNIPPETS, 'postgres'))).finally(stop);
  await store.close();
  await (await useRestored(local('postgres://localhost/restored'), scene.namespace, kept)).store.close();

  const moving = programOf(SNIPPETS, 'moving').trim().split('\n').at(-1)!;
  await shell.run('anabranch migrate --database sqlite:.anabranch/data.db && createdb anabranch');
  await shell.run(local(moving));
});

it('deploy/kubernetes/restore.yaml restores a dump into a database that it creates for the role of the server', async () => {
  await using postgres = await startPostgres({ bin: BIN, port: 'free' });
  const database = await createPostgresDatabase(postgres.url); // goes with its cluster
  const store = await openOn(database);
  const scene = new RolloutScene(store);
  const kept = await keep(scene);
  await store.close();
  const restored = new URL('/restored', postgres.url.replace(/\/\/[^@]*@/u, '//anabranch@')).href;
  await using shell = openShell({ PATH, ADMIN_URL: postgres.url, RESTORED_URL: restored });
  await shell.run(`psql '${postgres.url}' --command 'create role anabranch login'`);
  await shell.run(`pg_dump --format=custom --schema=anabranch --file=FILE '${database.url}'`);
  const head = commandsOfHead(readFileSync(new URL('../../deploy/kubernetes/restore.yaml', import.meta.url), 'utf8'));
  const inPod = head.flatMap((command) => / exec restore -- (.*)$/u.exec(command)?.[1] ?? []);
  expect(inPod.length).toBeGreaterThan(2);
  for (const command of inPod) await shell.run(command.replaceAll('/backup', shell.folder));
  await (await useRestored(restored, scene.namespace, kept)).store.close();
});

it('docs/operations.md recovers the moment before a deletion, from a base backup and the log of Postgres under load', async () => {
  await using postgres = await startPostgres({ bin: BIN, port: 'free' });
  const database = await createPostgresDatabase(postgres.url); // goes with its cluster
  await using shell = openShell({ PATH, ADMIN_URL: postgres.url });
  const [configuring, backingUp] = inside(shell, programOf(SNIPPETS, 'archive')).trim().split('\n');
  await shell.run(configuring!);
  await postgres.restart();
  const before = await openOn(database);
  const scene = new RolloutScene(before);
  const stop = appendBeside(scene);
  await shell.run(backingUp!);
  const kept = await keep(scene);
  const admin = new pg.Client(postgres.url);
  await admin.connect();
  const ask = async (text: string, values: unknown[] = []) => (await admin.query(text, values)).rows[0].answer;
  const moment = await ask(
    `select to_char(clock_timestamp() at time zone 'utc', 'YYYY-MM-DD HH24:MI:SS.US') as answer`,
  );
  await scene.delete(kept.trajectory);
  const late = await scene.createWith(['late']);
  await stop();
  const log = await ask('select pg_walfile_name(pg_switch_wal()) as answer');
  const isArchived = () => ask('select last_archived_wal >= $1 as answer from pg_stat_archiver', [log]);
  await expect.poll(isArchived, { timeout: 60_000 }).toBe(true);
  await admin.end();
  await before.close();

  const port = await freePort();
  await using _recovered = runAsPostgres(shell);
  const name = new URL(database.url).pathname.slice(1);
  const recovered = `postgres://postgres@127.0.0.1:${port}/${name}`;
  const recovering = inside(shell, programOf(SNIPPETS, 'recover'))
    .replace(/cp -a (\S+)2026-11-30/, 'cp -a "$(ls -d $12*)"')
    .replace('2026-11-30 12:00:00', moment)
    .replace("'-p 5433'", `'-p ${port}'`)
    .replace('--port=5433', `--host=127.0.0.1 --port=${port}`)
    .replace('postgres://localhost:5433/anabranch', recovered);
  await shell.run(recovering);
  const there = await useRestored(recovered, scene.namespace, kept);
  await expect(there.get(late.id)).rejects.toThrow();
  await there.store.close();
});

/** The commands with a folder of the shell in place of /backup. Postgres owns it. */
function inside({ folder }: Shell, commands: string): string {
  const backup = path.join(folder, 'backup');
  const { uid, gid } = runAs();
  chmodSync(folder, 0o755);
  for (const each of [backup, path.join(backup, 'log')]) {
    mkdirSync(each, { recursive: true });
    if (uid !== undefined && gid !== undefined) chownSync(each, uid, gid);
  }
  return commands.replaceAll('/backup', backup);
}

/** Lets pg_ctl of a shell run as another user than root, without a Unix socket. Its server is stopped at the end. */
function runAsPostgres({ folder }: Shell): AsyncDisposable {
  const data = path.join(folder, 'recovered');
  const { uid, gid } = runAs();
  const asUser = uid === undefined ? '' : `setpriv --reuid=${uid} --regid=${gid} --clear-groups`;
  const program = path.join(folder, 'bin/pg_ctl');
  writeFileSync(
    program,
    `#!/bin/sh
${uid === undefined ? '' : `chown -R ${uid}:${gid} '${data}' && touch '${data}.log' && chown ${uid}:${gid} '${data}.log'`}
exec ${asUser} '${BIN}/pg_ctl' "$@" --options="-c unix_socket_directories=''"
`,
  );
  chmodSync(program, 0o755);
  const stop = `kill -QUIT "$(head -n 1 "$1/postmaster.pid")"; while [ -e "$1/postmaster.pid" ]; do sleep 0.1; done`;
  const janitor = startJanitor(stop, [data]);
  return { [Symbol.asyncDispose]: () => janitor.dismiss() };
}

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
  await using shell = openShell({ PATH, STANDBY_URL: url.href });
  const [promoting] = programOf(SNIPPETS, 'failover').split('\n');
  await shell.run(promoting!);
  const store = await openOn({ engine: 'postgres', url: url.href });
  const there = new Scene(store, scene.namespace);
  expect(await there.words(await there.get(made.id))).toEqual(['acked']);
  await there.createWith(['after']);
  await expectVerified(store);
  await store.close();
});
