import { describe, expect, it } from 'vitest';
import { sources } from '../house/source.ts';
import { MEASURES_MEMORY } from './measures-memory.ts';

describe('the list of tests with a process of their own', () => {
  it('names every test of npm test that measures the memory of its process', () => {
    const measuring = sources('test')
      .filter(({ path }) => path.endsWith('.test.ts') && !/^test\/(faults|languages|package)\//.test(path))
      .filter(({ code }) => /\bprocess\.(memory|resource)Usage\(/.test(code))
      .map(({ path }) => path);
    expect(measuring).toEqual(MEASURES_MEMORY);
  });
});
