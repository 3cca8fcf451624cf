import { afterEach, expect, it, vi } from 'vitest';
import { CLOCK, openWriter } from '../../src/store/sqlite/connection.ts';
import { createDatabase } from '../support/database.ts';
import { sqlitePath } from './sql.ts';

afterEach(() => {
  vi.useRealTimers();
});

it('Q3: times of SQLite rise, and follow a clock that is set back by more than a second', async () => {
  await using database = await createDatabase('sqlite');
  const writer = openWriter(sqlitePath(database));
  const read = writer.prepare(`select ${CLOCK}() as now`);
  const at = (time: string) => {
    vi.setSystemTime(new Date(time));
    return String(read.get()!.now);
  };
  vi.useFakeTimers({ toFake: ['Date'] });
  expect(at('2030-01-01T00:00:01Z')).toBe('2030-01-01T00:00:01.000000Z');
  expect(at('2030-01-01T00:00:01Z')).toBe('2030-01-01T00:00:01.000001Z');
  expect(at('2030-01-01T00:00:00.500Z')).toBe('2030-01-01T00:00:01.000002Z');
  expect(at('2031-02-05T00:00:00Z')).toBe('2031-02-05T00:00:00.000000Z');
  expect(at('2030-01-01T00:00:02Z')).toBe('2030-01-01T00:00:02.000000Z');
  writer.close();
});
