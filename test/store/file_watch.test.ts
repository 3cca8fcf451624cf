import { execFile, spawnSync } from 'node:child_process';
import {
  closeSync,
  copyFileSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  renameSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { DatabaseSync } from 'node:sqlite';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { FileWatch, type StorageLost } from '../../src/store/file_guard/watch.ts';
import { openStore } from '../../src/store/open.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { logger, refusedOpen } from './on_store.ts';
import { newMain, RunScene } from './run_scene.ts';
import { Scene } from './scene.ts';
import { sqlitePath } from './sql.ts';

const open = (file: string) => openStore({ engine: 'sqlite', path: file }, { logger });

/** Appends until the store refuses it. Returns the reason. */
async function refusal(scene: Scene, trajectory: Trajectory): Promise<string> {
  for (;;) {
    try {
      await scene.appendWords(trajectory, ['x']);
    } catch (error) {
      if (error instanceof AnabranchError) return error.reason;
      // SQLite's own error, which a further look explains.
      if ((error as { code?: unknown }).code !== 'ERR_SQLITE_ERROR') throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function detailOf({ lost }: Store): string {
  return (lost!.reason as StorageLost).detail;
}

/** Puts a database into the file. */
async function anotherDatabase(file: string): Promise<void> {
  await using other = await createMigratedDatabase('sqlite');
  copyFileSync(sqlitePath(other), file);
}

type Change = (file: string) => void | Promise<void>;

/** What can happen to the file, and what the line for the operator says. */
const CHANGES: readonly (readonly [string, Change, RegExp])[] = [
  ['the file is removed', (file) => rmSync(file), /data\.db was removed/],
  ['the file is renamed', (file) => renameSync(file, `${file}.old`), /data\.db was removed, renamed/],
  [
    'another file takes its place',
    async (file) => {
      await anotherDatabase(`${file}.new`);
      renameSync(`${file}.new`, file);
    },
    /data\.db was removed, renamed or replaced/,
  ],
  [
    'a copy of it takes its place',
    (file) => {
      copyFileSync(file, `${file}.new`);
      renameSync(`${file}.new`, file);
    },
    /data\.db was removed, renamed or replaced/,
  ],
  [
    'a link to it takes its place',
    (file) => {
      renameSync(file, `${file}.old`);
      symlinkSync('nothing', file);
    },
    /data\.db was removed/,
  ],
  ['its folder is renamed', (file) => renameSync(path.dirname(file), `${path.dirname(file)}.old`), /was removed/],
  [
    'its folder is replaced',
    async (file) => {
      renameSync(path.dirname(file), `${path.dirname(file)}.old`);
      mkdirSync(path.dirname(file));
      await anotherDatabase(file);
    },
    /was removed, renamed or replaced/,
  ],
  ['its log is removed', (file) => rmSync(`${file}-wal`), /data\.db-wal was removed/],
  [
    'its log is replaced',
    (file) => {
      copyFileSync(`${file}-wal`, `${file}.new`);
      renameSync(`${file}.new`, `${file}-wal`);
    },
    /data\.db-wal was removed, renamed or replaced/,
  ],
  ['the index of its log is removed', (file) => rmSync(`${file}-shm`), /data\.db-shm was removed/],
  ['its lock is removed', (file) => rmSync(`${file}.lock`), /data\.db\.lock was removed/],
  ['it is emptied', (file) => truncateSync(file), /data\.db was emptied/],
  [
    'it is emptied, and a connection that opens it removes its log',
    (file) => {
      truncateSync(file);
      const late = new DatabaseSync(file);
      late.exec('select * from sqlite_master');
      late.close();
      expect(existsSync(`${file}-wal`)).toBe(false);
    },
    /data\.db was emptied/,
  ],
  ['its log is emptied', (file) => truncateSync(`${file}-wal`), /data\.db-wal was emptied/],
  [
    'its log is shortened',
    async (file) => {
      // The timer of the watch began earlier, so it has looked at the log when this one ends.
      await new Promise((resolve) => setTimeout(resolve, 1000));
      truncateSync(`${file}-wal`, 9000);
    },
    /data\.db-wal was emptied, shortened/,
  ],
  [
    'its log is overwritten',
    (file) => writeFileSync(`${file}-wal`, Buffer.alloc(100_000, 1)),
    /data\.db-wal was emptied, shortened or overwritten/,
  ],
  ['it gets a second name', (file) => linkSync(file, `${file}.link`), /has 2 names \(hard links\).*remove the other/],
];

describe.concurrent('the file of an open database, on sqlite', () => {
  it.each(CHANGES)('D7: when %s, nothing more is acked, and the operator is told why', async (_, change, told) => {
    await using database = await createMigratedDatabase('sqlite');
    const folder = path.join(path.dirname(sqlitePath(database)), 'inner');
    mkdirSync(folder);
    const file = path.join(folder, 'data.db');
    renameSync(sqlitePath(database), file);
    const store = await open(file);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    expect(store.lost?.aborted).toBe(false);
    await change(file);
    expect(await refusal(scene, made)).toBe('STORAGE_LOST');
    expect(detailOf(store)).toMatch(told);
    expect(detailOf(store)).not.toContain('\n');
    await store.close();
  });

  it('D7: after the loss, each kind of write is refused', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const store = await open(sqlitePath(database));
    const scene = new RunScene(store);
    const { run, mainTrajectory: made } = await scene.make({ mainTrajectory: newMain() });
    const points = [{ stageId: undefined, name: 'm', metricStep: 1n, value: 1 }];
    await store.logMetrics(scene.namespace, run.id, points);
    rmSync(sqlitePath(database));
    await refusal(scene, made!);
    const upload = store.putState(scene.namespace);
    const writes = {
      create: () => scene.create(),
      experiment: () => scene.experiment(),
      metrics: () => store.logMetrics(scene.namespace, run.id, points),
      heartbeat: () => store.heartbeatRun(scene.namespace, run.id),
      state: async () => {
        await upload.write(new Uint8Array(1024 * 1024));
        await upload.finish();
      },
      sweep: () => store.sweepLeases(1),
    };
    for (const [name, write] of Object.entries(writes))
      expect(await write().then(String, (error: AnabranchError) => error.reason), name).toBe('STORAGE_LOST');
    await store.close();
  });

  it('D7: when the link that the operator named leads to another file, nothing more is acked', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const link = path.join(path.dirname(file), 'link.db');
    symlinkSync('data.db', link);
    const store = await open(link);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    await anotherDatabase(`${file}.other`);
    rmSync(link);
    symlinkSync('data.db.other', link);
    expect(await refusal(scene, made)).toBe('STORAGE_LOST');
    expect(detailOf(store)).toContain('link.db was removed, renamed or replaced');
    await store.close();
  });

  it('D7: a server that is restarted after its file was removed does not begin with an empty database', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const store = await open(file);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    rmSync(file);
    await refusal(scene, made);
    await store.close();
    const error = await refusedOpen(open(file));
    expect(error.message).toMatch(
      /data\.db does not exist, but .*data\.db\.holder shows that it did: put the file back/,
    );
    expect(existsSync(file)).toBe(false);
    rmSync(`${file}.holder`);
    await (await open(file)).close();
  });

  it('D7: a file that was renamed and is put back has every acked step', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const store = await open(file);
    const scene = new Scene(store);
    const made = await scene.createWith(['a', 'b', 'c']);
    renameSync(file, `${file}.old`);
    await refusal(scene, made);
    await store.close();
    renameSync(`${file}.old`, file);
    const again = await open(file);
    expect((await new Scene(again, scene.namespace).words(made)).slice(0, 3)).toEqual(['a', 'b', 'c']);
    await again.close();
  });

  it('D7: the log of a lost file is not applied to the one that takes its place', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const store = await open(file);
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    await anotherDatabase(`${file}.new`);
    renameSync(file, `${file}.old`);
    renameSync(`${file}.new`, file);
    await refusal(scene, made);
    expect(detailOf(store)).toContain('The log of the lost file is now');
    await store.close();
    const again = await open(file);
    expect(await new Scene(again, scene.namespace).isThere(made.id)).toBe(false);
    for await (const { faults } of again.verify()) expect(faults).toEqual([]);
    await again.close();
    expect(readdirSync(path.dirname(file))).toContain('data.db-wal.lost');
  });

  it('D7: if only the log was removed, closing stores every acked step in the file', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const store = await open(file);
    const scene = new Scene(store);
    const made = await scene.createWith(['a', 'b', 'c']);
    rmSync(`${file}-wal`);
    await refusal(scene, made);
    await store.close();
    const again = await open(file);
    expect((await new Scene(again, scene.namespace).words(made)).slice(0, 3)).toEqual(['a', 'b', 'c']);
    await again.close();
  });

  it('D7: a file that is back when it is looked at again is not lost, and acks wait for that', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const folder = path.join(path.dirname(sqlitePath(database)), 'inner');
    mkdirSync(folder);
    const file = path.join(folder, 'data.db');
    for (const each of ['', '-wal', '-shm', '.lock']) writeFileSync(`${file}${each}`, Buffer.alloc(100));
    const descriptor = openSync(file, 'r+');
    const watch = new FileWatch({ named: file, path: file, descriptor });
    renameSync(file, `${file}.old`);
    let doubt = watch.checked();
    while (doubt === undefined) {
      await new Promise((resolve) => setTimeout(resolve, 10));
      doubt = watch.checked();
    }
    renameSync(`${file}.old`, file);
    await doubt;
    expect(watch.lost.aborted).toBe(false);
    expect(watch.checked()).toBe(undefined);
    watch.close();
    closeSync(descriptor);
  });
});

describe('other names of a file, on sqlite', () => {
  it('D7: a file that has a hard link is refused under both names, with the remedy', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const link = path.join(path.dirname(file), 'link.db');
    linkSync(file, link);
    for (const name of [file, link]) {
      const { message } = await refusedOpen(open(name));
      expect(message).toContain(`${name} has 2 names (hard links)`);
      expect(message).toContain('remove the other links, and start again');
      expect(message).not.toContain('\n');
    }
    expect(readdirSync(path.dirname(file)).filter((name) => name.startsWith('link.db'))).toEqual(['link.db']);
    rmSync(link);
    await (await open(file)).close();
  });

  it('D7: a link to a file that does not exist yet has the lock of that file', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const folder = path.dirname(sqlitePath(database));
    const target = path.join(folder, 'target.db');
    mkdirSync(path.join(folder, 'links'));
    symlinkSync('../target.db', path.join(folder, 'links', 'one.db'));
    symlinkSync('one.db', path.join(folder, 'links', 'two.db'));
    const store = await open(path.join(folder, 'links', 'two.db'));
    for (const name of ['links/one.db', 'links/two.db', 'target.db', 'links/../target.db']) {
      expect((await refusedOpen(open(path.join(folder, name)))).message).toContain(`${target} is in use by`);
    }
    expect(readdirSync(path.join(folder, 'links'))).toEqual(['one.db', 'two.db']);
    await store.close();
  });

  it('a link that leads to itself is refused in one line', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const link = path.join(path.dirname(sqlitePath(database)), 'loop.db');
    symlinkSync('loop.db', link);
    const { message } = await refusedOpen(open(link));
    expect(message).toMatch(/loop\.db cannot be opened as a database: ELOOP/);
  });

  it.skipIf(!canMount())('D7: a file that is mounted alone is refused, its folder is not', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    await (await open(file)).close();
    const folder = path.dirname(file);
    const [place, other] = [path.join(folder, 'a folder', 'data\\.db'), path.join(folder, 'other')];
    mkdirSync(path.dirname(place));
    writeFileSync(place, '');
    mkdirSync(other);
    const program = `
      mount(${JSON.stringify(file)}, ${JSON.stringify(place)});
      mount(${JSON.stringify(folder)}, ${JSON.stringify(other)});
      for (const file of ${JSON.stringify([place, path.join(other, 'data.db')])})
        await open(file).then((store) => { say('open'); return store.close(); }, (error) => say(error.message));`;
    const [alone, within] = await apart(program);
    expect(alone).toContain(`${place} is a mount point`);
    expect(alone).toContain(`Mount the folder of the file instead (docker run -v FOLDER:${path.dirname(place)})`);
    expect(alone).not.toContain('\n');
    expect(readdirSync(path.dirname(place))).toEqual(['data\\.db']);
    expect(within).toBe('open');
  });

  it.skipIf(!canMount())('D7: when the file becomes a mount point, nothing more is acked', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const program = `
      const store = await open(${JSON.stringify(file)});
      mount(${JSON.stringify(file)}, ${JSON.stringify(file)});
      const running = setInterval(() => {}, 1000);
      store.lost.addEventListener('abort', async () => {
        say(store.lost.reason.detail);
        await store.close();
        clearInterval(running);
      });`;
    const [detail] = await apart(program);
    expect(detail).toContain(`${file} is a mount point`);
  });

  /** Runs a program in a process that has mounts of its own. Returns what it says. */
  async function apart(program: string): Promise<string[]> {
    const folder = mkdtempSync(path.join(tmpdir(), 'anabranch-apart-'));
    const file = path.join(folder, 'program.mjs');
    writeFileSync(
      file,
      `import { execFileSync } from 'node:child_process';
      import { openStore } from ${JSON.stringify(path.resolve(import.meta.dirname, '../../src/store/open.ts'))};
      const logger = { info() {}, warn() {}, error() {} };
      const open = (path) => openStore({ engine: 'sqlite', path }, { logger });
      const mount = (source, place) => execFileSync('mount', ['--bind', source, place]);
      const said = [];
      const say = (text) => said.push(text);
      process.on('exit', () => console.log(JSON.stringify(said)));
      ${program}`,
    );
    const { stdout } = await promisify(execFile)('unshare', ['-m', process.execPath, file]);
    rmSync(folder, { recursive: true });
    return JSON.parse(stdout) as string[];
  }
});

/** Mounts need rights that containers often lack. */
function canMount(): boolean {
  const file = path.join(import.meta.dirname, 'file_watch.test.ts');
  return spawnSync('unshare', ['-m', 'mount', '--bind', file, file]).status === 0;
}
