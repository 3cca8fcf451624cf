import { describe, expect, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { fillDisk, fillDiskOfLog } from './disk/filling.ts';
import { reportFigures } from './figures.ts';

describe.each(ENGINES)('a disk that is full, under %s', (engine) => {
  it('D4: nothing is acked that is not stored, writers are told STORAGE_FULL, reads go on, and writes resume when there is room', async () => {
    const filled = await fillDisk(engine, 4);
    await reportFigures(`disk full, ${engine}`, {
      'acked steps checked': filled.acked,
      lost: filled.lost,
      refusals: filled.refusals.length,
      'refused but stored': filled.refusedButStored,
      'steps read while full': filled.readsWhileFull,
      'bytes free when full': filled.freeBytes,
      'writers resumed after (ms)': Math.round(filled.resumedMs),
    });
    expect(new Set(filled.refusals)).toEqual(new Set(['ResourceExhausted STORAGE_FULL with RetryInfo']));
    expect(filled.refusedButStored).toBe(0);
    expect(filled.readFaults).toEqual([]);
    expect(filled.readsWhileFull).toBeGreaterThan(10);
    expect(filled.lost).toBe(0);
    expect(filled.faults).toEqual([]);
    expect(filled.failures).toEqual([]);
    expect(filled.serverLived).toBe(true);
    expect(filled.serverFaults).toEqual([]);
  });
});

describe('a disk that is full, under the log of postgres', () => {
  it('D4, D1, A1: nothing acked is lost, writers are told to come again, and go on when Postgres does', async () => {
    const filled = await fillDiskOfLog(4);
    const { acked, lost, refusals, resumedMs } = filled;
    await reportFigures('disk full, log of postgres', {
      'acked steps checked': acked,
      lost,
      refusals: refusals.length,
      'writers resumed after (ms)': Math.round(resumedMs),
    });
    const told = ['ResourceExhausted STORAGE_FULL with RetryInfo', 'Unavailable DATABASE_UNAVAILABLE with RetryInfo'];
    expect(refusals.filter((refusal) => !told.includes(refusal))).toEqual([]);
    expect(refusals).toContain(told[1]);
    expect(lost).toBe(0);
    expect(filled.faults).toEqual([]);
    expect(filled.failures).toEqual([]);
    expect(filled.serverLived).toBe(true);
    expect(filled.serverFaults).toEqual([]);
  });
});
