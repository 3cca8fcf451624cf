import { setTimeout as delay } from 'node:timers/promises';
import { pino } from 'pino';
import { describe, expect, it } from 'vitest';
import { AnabranchError } from '../../src/domain/errors.ts';
import { returnSpace, type ShrinkableFile, startReturningSpace } from '../../src/stream/free_space.ts';

const MIB = 1024 * 1024;

/** A file of this many MiB in use and free. `kept` are the MiB that each vacuum was asked to leave. */
function fileOf(used: number, free: number) {
  const kept: number[] = [];
  const file: ShrinkableFile = {
    size: async () => ({ bytes: BigInt((used + free) * MIB), freeBytes: BigInt(free * MIB) }),
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

  it('a file of an older version is reported once, and then left as it is', async () => {
    const lines: string[] = [];
    const reported = Promise.withResolvers<void>();
    const write = (line: string) => {
      lines.push(line);
      reported.resolve();
    };
    const { file } = fileOf(10, 50);
    let vacuums = 0;
    const older: ShrinkableFile = {
      ...file,
      vacuum() {
        vacuums += 1;
        throw new AnabranchError('VACUUM_UNAVAILABLE', 'An older version created the file.');
      },
    };
    const logger = pino({ level: 'info' }, { write });
    const running = startReturningSpace(older, logger, 1, () => false);
    await reported.promise;
    await delay(20);
    await running.stop();
    expect(vacuums).toBe(1);
    expect(lines).toEqual([expect.stringContaining('An older version created the file.')]);
  });
});
