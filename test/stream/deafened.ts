/** An instance whose LISTEN goes through a cable, another one that writes, and followers of what it writes. */
import { expect } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import type { App } from '../../src/stream/app.ts';
import type { AppSettings } from '../../src/stream/settings.ts';
import { AppScene, createTestApp, step, wordOf } from '../service/on_app.ts';
import { logger, openedAs, openOn } from '../store/on_store.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy } from '../support/tcp-proxy.ts';

const FOLLOWERS = 20;

export interface Deafened {
  /** Listens through the cable, and uses the database directly for all else. */
  readonly deaf: Store;
  readonly other: Store;
  /** Ends LISTEN of the deaf store, and holds back all attempts to listen again. Resolves when the store knows. */
  cut(): Promise<void>;
  /** Resolves when the deaf store listens again. */
  mend(): Promise<void>;
  /** An app that is closed with the stores. */
  appOn(store: Store, settings: Partial<AppSettings>): App;
  [Symbol.asyncDispose](): Promise<void>;
}

export async function openDeafened(): Promise<Deafened> {
  const database = await createMigratedDatabase('postgres');
  const directUrl = new URL(database.directUrl ?? database.url);
  const { hostname, searchParams } = directUrl;
  const folder = searchParams.get('host');
  const port = directUrl.port || searchParams.get('port') || '5432';
  const cable = await startTcpProxy(
    folder === null ? { host: hostname, port: Number(port) } : { path: `${folder}/.s.PGSQL.${port}` },
  );
  searchParams.delete('host');
  searchParams.delete('port');
  directUrl.hostname = '127.0.0.1';
  directUrl.port = `${cable.port}`;
  const opened = openedAs(database);
  if (opened.engine !== 'postgres') throw new Error('this scene is for Postgres');
  const deaf = await openStore({ ...opened, directUrl: directUrl.href }, { logger });
  const other = await openOn(database);
  const apps: App[] = [];
  const hears = (expected: boolean) => expect.poll(() => deaf.hearsOthers, { timeout: 10_000 }).toBe(expected);
  return {
    deaf,
    other,
    async cut() {
      cable.blackhole();
      cable.cut();
      await hears(false);
    },
    async mend() {
      await cable.release();
      await hears(true);
    },
    appOn(store, settings) {
      const app = createTestApp({ engine: 'postgres', store }, settings);
      apps.push(app);
      return app;
    },
    [Symbol.asyncDispose]: async () => {
      for (const app of apps) await app.close();
      await deaf.close();
      await other.close();
      await cable.close();
      await database.drop();
    },
  };
}

/** Followers on one instance, of trajectories that another one writes. */
export async function following(reader: App, writer: App) {
  const writing = new AppScene(writer);
  const reading = new AppScene(reader, writing.caller.namespace);
  const trajectories = await Promise.all(Array.from({ length: FOLLOWERS }, () => writing.createWith(['a'])));
  const words = trajectories.map(() => [] as string[]);
  /** When a follower received each of its steps. */
  const times = trajectories.map(() => [] as number[]);
  const ends = trajectories.map(async (trajectory, i) => {
    for await (const { steps } of reading.read(trajectory, { follow: true })) {
      words[i]!.push(...steps.map(wordOf));
      times[i]!.push(...steps.map(() => performance.now()));
    }
  });
  const write = (number: bigint, word: string, seal = false) =>
    Promise.all(
      trajectories.map((each) =>
        writing.write(each, [step(number, word)], seal ? { status: 'COMPLETED', message: '' } : undefined),
      ),
    );
  const have = (expected: string) =>
    expect.poll(() => words.map((each) => each.join('')), { timeout: 10_000 }).toEqual(words.map(() => expected));
  return { write, have, words, times, ended: Promise.all(ends) };
}
