import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import type { App } from '../../src/stream/app.ts';
import { AppScene, createTestApp, step, wordOf } from '../service/on_app.ts';
import { logger, openedAs, openOn } from '../store/on_store.ts';
import { ON_POSTGRES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';

const NEVER = 3_600_000;
const FOLLOWERS = 20;

describe.runIf(ON_POSTGRES)(
  'R2: an instance that hears nothing of others, because its LISTEN is cut, on postgres',
  () => {
    let database: TestDatabase;
    let cable: TcpProxy;
    /** Listens through the cable, and uses the database directly for all else. */
    let deaf: Store;
    let other: Store;
    const apps: App[] = [];

    beforeAll(async () => {
      database = await createMigratedDatabase('postgres');
      const directUrl = new URL(database.url);
      const { hostname, searchParams } = directUrl;
      const folder = searchParams.get('host');
      const port = directUrl.port || searchParams.get('port') || '5432';
      cable = await startTcpProxy(
        folder === null ? { host: hostname, port: Number(port) } : { path: `${folder}/.s.PGSQL.${port}` },
      );
      searchParams.delete('host');
      searchParams.delete('port');
      directUrl.hostname = '127.0.0.1';
      directUrl.port = `${cable.port}`;
      const opened = openedAs(database);
      if (opened.engine !== 'postgres') throw new Error('this test is for Postgres');
      deaf = await openStore({ ...opened, directUrl: directUrl.href }, { logger });
      other = await openOn(database);
    });
    afterAll(async () => {
      for (const app of apps) await app.close();
      await deaf.close();
      await other.close();
      await cable.close();
      await database.drop();
    });

    function appOn(store: Store, pollMs: number): App {
      const app = createTestApp({ engine: 'postgres', store }, { pollMs });
      apps.push(app);
      return app;
    }

    /** Followers on one instance, of trajectories that another one writes. */
    async function following(reader: App, writer: App) {
      const writing = new AppScene(writer);
      const reading = new AppScene(reader, writing.caller.namespace);
      const trajectories = await Promise.all(Array.from({ length: FOLLOWERS }, () => writing.createWith(['a'])));
      const words = trajectories.map(() => [] as string[]);
      const ends = trajectories.map(async (trajectory, i) => {
        for await (const { steps } of reading.read(trajectory, { follow: true })) words[i]!.push(...steps.map(wordOf));
      });
      const write = (number: bigint, word: string, seal = false) =>
        Promise.all(
          trajectories.map((each) =>
            writing.write(each, [step(number, word)], seal ? { status: 'COMPLETED', message: '' } : undefined),
          ),
        );
      const have = (expected: string) =>
        expect.poll(() => words.map((each) => each.join('')), { timeout: 10_000 }).toEqual(words.map(() => expected));
      return { write, have, words, ended: Promise.all(ends) };
    }

    const isDeaf = () => expect.poll(() => deaf.hearsOthers, { timeout: 10_000 }).toBe(false);
    const isHearing = () => expect.poll(() => deaf.hearsOthers, { timeout: 10_000 }).toBe(true);

    it('loses nothing without polls: after the return of LISTEN, each follower gets each step once', async () => {
      const { write, have, words, ended } = await following(appOn(deaf, NEVER), appOn(other, NEVER));
      await write(1n, 'b');
      await have('ab');
      cable.blackhole();
      cable.cut();
      await isDeaf();
      await write(2n, 'c');
      await write(3n, 'd');
      expect(words.every((each) => each.join('') === 'ab')).toBe(true);
      await cable.release();
      await isHearing();
      await have('abcd');
      await write(4n, 'e', true);
      await ended;
      await have('abcde');
    });

    it('polls for all followers meanwhile, and its own writes still wake followers elsewhere', async () => {
      const here = await following(appOn(deaf, 20), appOn(other, NEVER));
      const there = await following(appOn(other, NEVER), appOn(deaf, 20));
      await here.have('a');
      cable.blackhole();
      cable.cut();
      await isDeaf();
      for (const { write, have } of [here, there]) {
        await write(1n, 'b');
        await have('ab');
        await write(2n, 'c', true);
      }
      await Promise.all([here.ended, there.ended]);
      for (const { have } of [here, there]) await have('abc');
      await cable.release();
      await isHearing();
    });
  },
);
