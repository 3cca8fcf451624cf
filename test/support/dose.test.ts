import { describe, expect, it } from 'vitest';
import { sources } from '../house/source.ts';
import { LARGE_DOSES } from './dose.ts';

describe('the list of tests with a large dose in the fault suite', () => {
  it('names every test of npm test that has one', () => {
    const dosed = sources('test')
      .filter(
        ({ path }) =>
          path.endsWith('.test.ts') &&
          !/^test\/(faults|browser|browser-faults|python-faults|languages|package)\//.test(path),
      )
      .filter(({ code }) => /\bdose\(/.test(code))
      .map(({ path }) => path);
    expect(dosed).toEqual(LARGE_DOSES);
  });
});
