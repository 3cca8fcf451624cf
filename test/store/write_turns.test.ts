import { expect, it } from 'vitest';
import { WriteLock } from '../../src/store/sqlite/write_lock.ts';

it('MS5: transactions of several namespaces run in turn, and a failed one delays no other', async () => {
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
  await Promise.all(['many 1', 'many 2', 'many 3', 'one 1', 'one 2', 'many 4'].map(transaction));
  expect(run).toEqual(['many 1', 'many 2', 'one 1', 'many 3', 'one 2', 'many 4']);
});
