import { describe, expect, it } from 'vitest';
import { importCycles, importGraph } from './import_cycles.ts';
import { sources } from './source.ts';

const file = (path: string, ...imported: string[]) => ({
  path,
  code: imported.map((wanted) => `import type { A } from '${wanted}';\n`).join(''),
});

describe('the files of src', () => {
  it('import each other without a cycle, including type imports', () => {
    const graph = importGraph(sources('src'));
    expect([...graph.values()].flat().length).toBeGreaterThan(1000);
    expect(importCycles(graph).map((cycle) => cycle.join(' > '))).toEqual([]);
  });
});

describe('importCycles', () => {
  it.each([
    ['a file that imports itself', [file('src/a.ts', './a.ts')], ['src/a.ts', 'src/a.ts']],
    [
      'two files of two folders',
      [file('src/a.ts', './b/b.ts', 'kysely'), file('src/b/b.ts', '../a.ts')],
      ['src/a.ts', 'src/b/b.ts', 'src/a.ts'],
    ],
    [
      'a cycle that begins behind other imports',
      [file('src/a.ts', './b.ts'), file('src/b.ts', './c.ts'), file('src/c.ts', './d.ts'), file('src/d.ts', './b.ts')],
      ['src/b.ts', 'src/c.ts', 'src/d.ts', 'src/b.ts'],
    ],
  ])('finds %s', (_what, files, cycle) => {
    expect(importCycles(importGraph(files))).toEqual([cycle]);
  });

  it('accepts files that several others import', () => {
    const files = [file('src/a.ts', './b.ts', './c.ts'), file('src/b.ts', './d.ts'), file('src/c.ts', './d.ts')];
    expect(importCycles(importGraph([...files, file('src/d.ts')]))).toEqual([]);
  });
});
