import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, stat } from 'node:fs/promises';
import path from 'node:path';
import process from 'node:process';
import { undoMigrations } from '../../test/store/earlier_schema.ts';
import { outsideSql } from '../../test/store/sql.ts';
import { type Bench, figure, type Result, type Run } from '../bench.ts';
import { databaseBytes } from '../database_size.ts';
import { cpuSeconds, pidOf } from '../processes.ts';
import { pause } from '../programs/program.ts';

const STEPS_EACH = 200;
/** Between two looks at the size of a database that is migrated. */
const LOOK_SECONDS = 0.25;

const MAIN = path.resolve(import.meta.dirname, '../../src/main.ts');

export const migration: Bench = {
  names: ['migration', 'migration-disk', 'migration-after'],
  about:
    'minutes for each million steps of `anabranch migrate`, on a database of a version before segments with 1,000,000 CartPole steps with states, in trajectories of 200; and the most bytes on disk meanwhile, and afterwards, by those before',
  engines: ['sqlite', 'postgres'],
  onlyWhenNamed: true,
  async run(run): Promise<Result[]> {
    const database = await formerDatabase(run);
    const before = await bytesOnDisk(database);
    run.showProgress('migrating');
    const begun = performance.now();
    const child = spawn(process.execPath, [MAIN, 'migrate', '--database', database], {
      cwd: await run.resources.folder(),
      stdio: ['ignore', 'ignore', 'inherit'],
    });
    const exited = once(child, 'exit');
    let most = before;
    let cpu = 0;
    while (child.exitCode === null) {
      cpu = cpuSeconds([pidOf(child)]) || cpu;
      await Promise.race([exited, pause(LOOK_SECONDS)]);
      most = Math.max(most, await bytesOnDisk(database));
    }
    const minutes = (performance.now() - begun) / 60_000;
    if (child.exitCode !== 0) throw new Error(`the migration ended with code ${child.exitCode}`);
    const after = await bytesOnDisk(database);
    const megabytes = (bytes: number) => `${Math.round(bytes / 1e6).toLocaleString('en-US')} MB`;
    const note = `${megabytes(before)} before, at most ${megabytes(most)} meanwhile, ${megabytes(after)} afterwards; CPU of the process ${cpu.toFixed(0)} s`;
    const perMillion = (minutes / run.archiveSteps) * 1e6;
    return [
      figure(run, { bench: 'migration', unit: 'min', note }, [perMillion]),
      figure(run, { bench: 'migration-disk', unit: 'x', aim: '<= 4' }, [most / before]),
      figure(run, { bench: 'migration-after', unit: 'x' }, [after / before]),
    ];
  },
};

/** Creates a database as a version before segments left it. Returns its URL. */
async function formerDatabase(run: Run): Promise<string> {
  const { engine, archiveSteps } = run;
  const url = await run.resources.database(engine);
  run.showProgress(`writing ${archiveSteps} steps`);
  // Rows that were merged cannot be taken back.
  const server = await run.resources.server('real', engine, url, { mergeIdleMs: 0 });
  await server.episodes(Math.ceil(archiveSteps / STEPS_EACH), STEPS_EACH);
  await server.stop();
  run.showProgress('taking the migrations back');
  const sql = await outsideSql({ engine, url });
  await undoMigrations(sql, '0018_segments');
  // The former database is as small as it would be if it had been written by that version.
  await sql.rows(engine === 'sqlite' ? 'vacuum' : 'vacuum full');
  if (engine === 'sqlite') await sql.rows('pragma wal_checkpoint(truncate)');
  await sql.close();
  return url;
}

/** Returns the bytes of a database, with those of the files beside it. */
async function bytesOnDisk(database: string): Promise<number> {
  if (!database.startsWith('sqlite:')) return databaseBytes(database);
  const folder = path.dirname(database.slice('sqlite:'.length));
  const sizes = (await readdir(folder)).map((name) =>
    stat(path.join(folder, name)).then(
      ({ size }) => size,
      () => 0,
    ),
  );
  return (await Promise.all(sizes)).reduce((sum, size) => sum + size, 0);
}
