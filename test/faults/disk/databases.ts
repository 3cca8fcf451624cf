/** Databases whose rows live on a small disk. */
import { execFile } from 'node:child_process';
import { chown, mkdir, stat, symlink } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import pg from 'pg';
import { createPostgresDatabase, type Engine, type TestDatabase } from '../../support/database.ts';
import { type PostgresServer, startPostgres } from '../../support/postgres.ts';
import type { SmallDisk } from './small-disk.ts';

const run = promisify(execFile);

export function databaseOn(disk: SmallDisk, engine: Engine): Promise<TestDatabase> {
  return engine === 'sqlite' ? fileOn(disk) : tablespaceOn(disk);
}

async function fileOn(disk: SmallDisk): Promise<TestDatabase> {
  const url = `sqlite:${path.join(disk.dir, 'data.db')}`;
  const drop = () => Promise.resolve(); // removed with the disk
  return { engine: 'sqlite', url, adminUrl: url, drop, [Symbol.asyncDispose]: drop };
}

/**
 * The write-ahead log stays on the large disk: Postgres ends itself if it cannot write its log, which is another test.
 */
async function tablespaceOn(disk: SmallDisk): Promise<TestDatabase> {
  const postgres = await startPostgres();
  const database = await createPostgresDatabase(postgres.url);
  const client = new pg.Client({ connectionString: postgres.url });
  await client.connect();
  const { rows } = await client.query<{ dir: string }>(`select current_setting('data_directory') as dir`);
  await ownedLike(rows[0]!.dir, disk.dir);
  await client.query(`create tablespace small location '${disk.dir}/rows'`);
  await client.query(`alter database "${new URL(database.url).pathname.slice(1)}" set tablespace small`);
  await client.end();
  const drop = () => postgres.stop();
  return { ...database, drop, [Symbol.asyncDispose]: drop };
}

async function ownedLike(model: string, parent: string): Promise<void> {
  const { uid, gid } = await stat(model);
  await mkdir(path.join(parent, 'rows'));
  await chown(path.join(parent, 'rows'), uid, gid);
}

/** Puts the write-ahead log on the small disk, and nothing else. */
export async function moveLog(postgres: PostgresServer, disk: SmallDisk): Promise<void> {
  const log = path.join(postgres.dir, 'data/pg_wal');
  const moved = path.join(disk.dir, 'pg_wal');
  await postgres.killAll();
  await run('mv', [log, moved]);
  await symlink(moved, log);
  await postgres.restart();
}
