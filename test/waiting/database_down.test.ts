import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { Store } from '../../src/store/contract/store.ts';
import { Committer } from '../../src/stream/append/committer.ts';
import { logger, openOn } from '../store/on_store.ts';
import { refusalOf, Scene } from '../store/scene.ts';
import { createPostgresDatabase, type TestDatabase } from '../support/database.ts';
import { type PostgresServer, startPostgres } from '../support/postgres.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { type Direction, startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';

/**
 * SQLite has no server that could become unreachable. The proxy stands for the network between the service and
 * Postgres.
 */
describe('an unreachable database, on postgres', () => {
  let server: PostgresServer;
  let proxy: TcpProxy;
  let database: TestDatabase;
  let store: Store;

  beforeAll(async () => {
    server = await startPostgres({ port: 'free' });
    proxy = await startTcpProxy({ host: '127.0.0.1', port: Number(new URL(server.url).port) });
    database = await createPostgresDatabase(server.url);
    const through = new URL(database.url);
    through.host = `127.0.0.1:${proxy.port}`;
    store = await openOn({ ...database, url: through.href });
  });
  afterAll(async () => {
    await store?.close();
    await proxy?.close();
    await server?.stop();
  });

  /** A call whose outcome is unknown is repeated until it is answered, as a client would do (I1). */
  async function settled<T>(call: () => Promise<T>): Promise<T> {
    for (let tries = 0; ; tries += 1) {
      try {
        return await call();
      } catch (error) {
        if (tries === 10 || (error as { reason?: string }).reason !== 'DATABASE_UNAVAILABLE') throw error;
      }
    }
  }

  it('I1, D3: an append whose connection was cut at any point is stored completely or not at all, and its replay shows which', async () => {
    const scene = new Scene(store);
    const made = await scene.create();
    let unknown = 0;
    let stored = 0;
    let expected = 0n;
    /** Returns the append of the next two steps, with nothing sent yet. */
    const next = (what: string) => {
      const state = newState(what);
      const steps = [makeStep(expected, { states: [stateRef(state)] }), wordStep(expected + 1n, what)];
      expected += 2n;
      return () => scene.append(made, steps, { states: [state] });
    };
    const cutAt = async (bytes: number, direction: Direction, what: string) => {
      const append = next(what);
      const cut = proxy.cutAfter(bytes, direction);
      const outcome = await append().catch((error) => {
        expect(error.reason).toBe('DATABASE_UNAVAILABLE');
      });
      if (outcome === undefined) {
        const replayed = await settled(append);
        expect([0, 2]).toContain(replayed.duplicates);
        unknown += 1;
        stored += replayed.duplicates === 2 ? 1 : 0;
      }
      // An append that needed fewer bytes leaves the cut to a later call.
      for (let done = false; !done; ) {
        void cut.then(() => {
          done = true;
        });
        await store.ping().catch(() => undefined);
      }
      const row = await settled(() => scene.get(made.id));
      expect(row.nextStepNumber).toBe(expected);
    };
    for (const direction of ['toServer', 'toClient'] as const) {
      // With a new connection, on which the program agrees with Postgres first.
      for (let bytes = 0; bytes < 1200; bytes += 60) await cutAt(bytes, direction, `${direction} ${bytes}`);
      // With a connection that is open. All that an append sends and is answered is known, so its last cuts come after
      // the commit.
      await settled(next(`${direction} opens`));
      const before = proxy.delivered(direction);
      await next(`${direction} measures`)();
      const whole = proxy.delivered(direction) - before;
      for (let left = 1; left <= whole; left += 12) {
        await settled(next(`${direction} opens again, ${left}`));
        await cutAt(whole - left, direction, `${direction}, ${left} left`);
      }
    }
    expect(await settled(() => scene.steps(made))).toHaveLength(Number(expected));
    // Otherwise nothing was proven: cuts must fall before and after the commit.
    expect(stored).toBeGreaterThan(0);
    expect(unknown - stored).toBeGreaterThan(0);
  });

  it('A1: a network that drops everything causes DATABASE_UNAVAILABLE within 5 s, for reads and writes; the store recovers by itself', async () => {
    const scene = new Scene(store);
    const made = await scene.createWith(['a']);
    proxy.blackhole();
    const begun = performance.now();
    const calls = [
      scene.append(made, [wordStep(1n, 'b')]),
      // More steps than one read returns: calls that wait for others fail with them.
      ...Array.from({ length: 50 }, () => scene.get(made.id)),
      store.listTrajectories(scene.namespace, {}, { limit: 1, after: undefined }),
      store.ping(),
    ];
    const errors = await Promise.all(calls.map((call) => refusalOf(call).then(({ reason }) => reason)));
    expect(new Set(errors)).toEqual(new Set(['DATABASE_UNAVAILABLE']));
    expect(performance.now() - begun).toBeLessThan(6_500);
    await proxy.release();
    await settled(() => scene.append(made, [wordStep(1n, 'b')]));
    expect(await settled(() => scene.words(made))).toEqual(['a', 'b']);
  });

  it('A1: in a silent network, all calls that wait to commit fail within 5 s, however many groups they would form', async () => {
    const scene = new Scene(store);
    const made = await Promise.all(Array.from({ length: 20 }, () => scene.create()));
    let groups = 0;
    const counting: Pick<Store, 'append'> = {
      append: (batches, wait) => {
        groups += 1;
        return store.append(batches, wait);
      },
    };
    const committer = new Committer(counting, logger, { commitsAtOnce: 2, groupSteps: 1 });
    proxy.blackhole();
    const begun = performance.now();
    const errors = await Promise.all(
      made.map((each) => {
        const { promise, resolve } = Promise.withResolvers<unknown>();
        const source = {
          over: false,
          committed: resolve,
          failed(_batch: object, _bytes: number, error: unknown) {
            source.over = true;
            resolve(error);
          },
        };
        committer.submit(source, scene.batch(each, [wordStep(0n, 'a')]), 10);
        return promise;
      }),
    );
    expect(performance.now() - begun).toBeLessThan(6_500);
    for (const error of errors) expect(error).toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    await proxy.release();
    await committer.idle();
    expect(groups).toBe(2);
  });

  it('D1, A1: kill -9 of Postgres during appends loses no acked step; the store recovers by itself', async () => {
    const scene = new Scene(store);
    const made = await Promise.all(Array.from({ length: 4 }, () => scene.create()));
    const acked = made.map(() => 0);
    let stop = false;
    const writers = made.map(async (each, i) => {
      while (!stop) {
        const n = acked[i] as number;
        const done = await scene.append(each, [wordStep(BigInt(n), `${n}`)]).then(
          () => true,
          (error) => {
            expect(error.reason).toBe('DATABASE_UNAVAILABLE');
            return false;
          },
        );
        if (done) acked[i] = n + 1;
      }
    });
    await expect.poll(() => Math.min(...acked), { timeout: 10_000 }).toBeGreaterThan(20);
    await server.killAll();
    expect((await refusalOf(store.ping())).reason).toBe('DATABASE_UNAVAILABLE');
    const atKill = [...acked];
    await server.restart();
    await expect
      .poll(() => Math.min(...acked.map((n, i) => n - (atKill[i] as number))), { timeout: 15_000 })
      .toBeGreaterThan(5);
    stop = true;
    await Promise.all(writers);
    for (const [i, each] of made.entries())
      expect(await scene.words(each)).toEqual(Array.from({ length: acked[i] as number }, (_, n) => `${n}`));
  });
});
