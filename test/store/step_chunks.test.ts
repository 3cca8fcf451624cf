import { expect, it } from 'vitest';
import type { Digest } from '../../src/domain/ids.ts';
import { type RowState, withRowStates } from '../../src/store/sql/upkeep/archive/step_chunks.ts';

const at = (stepNumber: bigint, key: bigint): RowState => ({ stepNumber, key, digest: '' as Digest, size: 1 });

it('V5: a chunk of an export is read again if states were pruned or attached while it was read', async () => {
  const looks = [[at(0n, 1n), at(1n, 2n)], [at(1n, 2n)], [at(1n, 3n)], [at(1n, 3n)]];
  let pages = 0;
  const read = await withRowStates(
    () => {
      pages += 1;
      return Promise.resolve(pages);
    },
    () => Promise.resolve(looks.shift() ?? []),
  );
  expect(read).toEqual({ page: 3, states: [at(1n, 3n)] });
  expect(looks).toEqual([]);
});
