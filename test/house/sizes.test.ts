import { describe, expect, it } from 'vitest';
import { linesOfCode, sources, withoutComments } from './source.ts';

/** Lines of a file, with comments and blank lines. */
const LARGEST_FILE = 400;

/** Lines of code in a room, without comments and blank lines. */
const LARGEST_ROOMS = {
  'src/store/contract': 1010,
  'src/store/postgres': 1970,
  'src/store/sqlite': 1300,
} as const;

describe('sizes', () => {
  it(`no file of src has more than ${LARGEST_FILE} lines, migrations aside`, () => {
    const files = sources('src').filter(({ path }) => !path.startsWith('src/store/migrations/'));
    expect(files.length).toBeGreaterThan(300);
    const large = files.map(({ path, text }) => ({ path, lines: text.trimEnd().split('\n').length }));
    expect(large.filter(({ lines }) => lines > LARGEST_FILE)).toEqual([]);
  });

  it.each(Object.entries(LARGEST_ROOMS))('%s has at most %i lines of code', (room, largest) => {
    const lines = sources(room).reduce((sum, file) => sum + linesOfCode(file), 0);
    expect(lines).toBeGreaterThan(largest / 2);
    expect(lines).toBeLessThanOrEqual(largest);
  });

  it('does not count comments and blank lines as code', () => {
    const text = '/** A\n * B */\nconst a = 1; // C\n\n// D\nconst b = `\n`;\n';
    expect(linesOfCode({ code: withoutComments(text) })).toBe(3);
  });
});
