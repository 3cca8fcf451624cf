import { describe, expect, it } from 'vitest';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { fillDisk, fillDiskOfLog } from './disk/filling.ts';
import { reportFigures } from './figures.ts';

/** Writers beside the one that fills the disk. Whatever they have stored is read back. */
const LOAD = dose({ writers: 2, window: 1 }, { writers: 4, window: 8 });

describe.each(ENGINES)('a full disk, on %s', (engine) => {
  it('D4: only stored steps are acked, writers get STORAGE_FULL, reads succeed, and writes resume when there is room', async () => {
    const filled = await fillDisk(engine, LOAD);
    reportFigures(`disk full, ${engine}`, {
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

describe('a full disk, under the log of postgres', () => {
  it('D4, D1, A1: no acked step is lost, writers get a retryable error, and continue when Postgres does', async () => {
    const filled = await fillDiskOfLog(LOAD);
    const { acked, lost, refusals, resumedMs } = filled;
    reportFigures('disk full, log of postgres', {
      'acked steps checked': acked,
      lost,
      refusals: refusals.length,
      'writers resumed after (ms)': Math.round(resumedMs),
    });
    const allowed = [
      'ResourceExhausted STORAGE_FULL with RetryInfo',
      'Unavailable DATABASE_UNAVAILABLE with RetryInfo',
    ];
    expect(refusals.filter((refusal) => !allowed.includes(refusal))).toEqual([]);
    expect(refusals).toContain(allowed[1]);
    expect(lost).toBe(0);
    expect(filled.faults).toEqual([]);
    expect(filled.failures).toEqual([]);
    expect(filled.serverLived).toBe(true);
    expect(filled.serverFaults).toEqual([]);
  });
});
