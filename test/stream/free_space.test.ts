import { describe, expect, it } from 'vitest';
import { returnSpace, type ShrinkableFile } from '../../src/stream/free_space.ts';

const MIB = 1024 * 1024;

/** A file of this many MiB in use and free. `kept` are the MiB that each vacuum was asked to leave. */
function fileOf(used: number, free: number) {
  const kept: number[] = [];
  const file: ShrinkableFile = {
    size: async () => ({ bytes: BigInt((used + free) * MIB), freeBytes: BigInt(free * MIB) }),
    shorten: async () => {},
    async *vacuum(_signal, keepBytes) {
      kept.push(keepBytes / MIB);
      for (let freed = 1; freed <= free - keepBytes / MIB; freed += 1) yield { freedBytes: BigInt(freed * MIB) };
    },
  };
  return { file, kept };
}

describe('the return of free space', () => {
  it.each([
    { used: 10, free: 7, kept: [], title: 'a few MiB stay for new rows' },
    { used: 10, free: 9, kept: [4], title: '4 MiB of a small file are kept' },
    { used: 1600, free: 190, kept: [], title: 'an eighth of a large file may be free' },
    { used: 1600, free: 210, kept: [100], title: 'a sixteenth of a large file is kept' },
    { used: 160, free: 150, isMerging: true, kept: [], title: 'much is kept while rows are merged' },
    { used: 160, free: 170, isMerging: true, kept: [80], title: 'even then, half of the file is never free' },
  ])('$title', async ({ used, free, isMerging = false, kept }) => {
    const scene = fileOf(used, free);
    const freed = await returnSpace(scene.file, isMerging, () => false);
    expect(scene.kept).toEqual(kept);
    expect(Number(freed) / MIB).toBe(kept.length === 0 ? 0 : free - kept[0]!);
  });

  it('stops after the transaction in which it is asked to', async () => {
    let asked = 0;
    const stopped = () => {
      asked += 1;
      return asked > 3;
    };
    expect(await returnSpace(fileOf(10, 50).file, false, stopped)).toBe(BigInt(3 * MIB));
  });
});
