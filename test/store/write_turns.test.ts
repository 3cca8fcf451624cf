import { expect, it } from 'vitest';
import { openStore } from '../../src/store/open.ts';
import { WriteLock } from '../../src/store/sqlite/write_lock.ts';
import { ON_POSTGRES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { logger } from './on_store.ts';
import { Scene } from './scene.ts';

const CALLS = ['many 1', 'many 2', 'many 3', 'one 1', 'one 2', 'many 4'];
const IN_TURN = ['many 1', 'many 2', 'one 1', 'many 3', 'one 2', 'many 4'];

it('MS5: transactions of several namespaces run in turn on SQLite, and a failed one delays no other', async () => {
  const lock = new WriteLock();
  const run: string[] = [];
  const transaction = (name: string) =>
    lock
      .run(async () => {
        run.push(name);
        await undefined;
        if (name === 'many 2') throw new Error('a fault of its own');
      }, name.split(' ')[0])
      .catch(() => undefined);
  await Promise.all(CALLS.map(transaction));
  expect(run).toEqual(IN_TURN);
});

it.runIf(ON_POSTGRES)(
  'MS5: calls of several namespaces that write or read get connections in turn, on postgres',
  async () => {
    await using database = await createMigratedDatabase('postgres');
    const store = await openStore({ engine: 'postgres', url: database.url, poolSize: 1 }, { logger });
    const { signal } = new AbortController();
    const scene = (call: string) => {
      const namespace = call.split(' ')[0]!;
      return new Scene(store.within({ signal, namespace }), namespace);
    };
    const run: string[] = [];
    const write = (call: string) =>
      scene(call)
        .create()
        .then(() => run.push(call));
    await Promise.all(CALLS.map(write));
    expect(run).toEqual(IN_TURN);
    // A read beside many writes of another namespace.
    run.length = 0;
    const writes = Promise.all(Array.from({ length: 20 }, () => write('many')));
    await scene('one').isThere('00000000-0000-4000-8000-000000000000');
    expect(run.length).toBeLessThan(4);
    await writes;
    await store.close();
  },
);
