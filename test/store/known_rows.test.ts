import { expect, it } from 'vitest';
import type { LockedHead } from '../../src/store/sql/kit/engine.ts';
import { NO_SUMS } from '../../src/store/sql/kit/running_sums.ts';
import { KnownHeads } from '../../src/store/sql/log/append/known_heads.ts';

function row(key: bigint, fields: Partial<LockedHead> = {}): LockedHead {
  const writer = { writerId: '', writerEpoch: 0n, writerActor: '', nextStepNumber: 0n };
  const status = { status: 'RUNNING', statusMessage: '', sealTime: null } as const;
  const named = { namespace: 'here', id: `id ${key}`, uid: `uid ${key}` };
  return {
    tree: 1n,
    key,
    ...named,
    hidden: false,
    ownBegin: 0n,
    ...status,
    ...writer,
    scoredMetrics: [],
    sums: NO_SUMS,
    ...fields,
  };
}

it('keeps a bounded number of trajectories, the ones that were written last', () => {
  const known = new KnownHeads();
  for (let key = 1n; key <= 10_000n; key += 1n) known.learnLocked(row(key));
  known.learnLocked(row(1n));
  known.learnLocked(row(10_001n));
  expect([known.get(1n)?.locked.id, known.get(2n), known.get(3n)?.locked.id]).toEqual(['id 1', undefined, 'id 3']);
  expect([known.find('here', 'id 2'), known.find('here', 'id 10001')]).toEqual([undefined, { tree: 1n, key: 10_001n }]);
});

it('finds a trajectory by its id in its namespace, with or without a head, until it is removed', () => {
  const known = new KnownHeads();
  for (const [key, namespace] of [
    [1n, 'here'],
    [2n, 'there'],
  ] as const)
    known.learnLocked(row(key, { namespace, id: 'a' }));
  const found = () => ['here', 'there', 'nowhere'].map((namespace) => known.find(namespace, 'a')?.key);
  known.learnLocked(row(1n, { id: 'a', status: 'COMPLETED' }));
  expect([known.get(1n), ...found()]).toEqual([undefined, 1n, 2n, undefined]);
  known.forget(2n);
  expect([known.get(2n), ...found()]).toEqual([undefined, 1n, 2n, undefined]);
  known.remove(1n);
  expect(found()).toEqual([undefined, 2n, undefined]);
  known.removeAll();
  expect(found()).toEqual([undefined, undefined, undefined]);
});

it('a trajectory that was created anew with an id is found by it, also after the old one is removed', () => {
  const known = new KnownHeads();
  known.learnLocked(row(1n, { id: 'a' }));
  known.learnLocked(row(2n, { id: 'a' }));
  known.remove(1n);
  expect(known.find('here', 'a')).toEqual({ tree: 1n, key: 2n });
});
