import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { importsOf, sources } from './source.ts';

/** Helpers that verify a whole database (V1). */
const VERIFYING: ReadonlySet<string> = new Set(['test/support/intact.ts', 'test/store/verified.ts']);

/** Suites that harm no database, and the one whose databases are verified by clients/python/tests/conftest.py. */
const EXCEPTIONS: ReadonlySet<string> = new Set([
  'test/faults/cut-handshakes.test.ts',
  'test/faults/memory.test.ts',
  'test/faults/small-heap.test.ts',
  'test/faults/step-pass.test.ts',
  'test/faults/writer-model.test.ts',
  'test/python-faults/client.test.ts',
]);

const FOLDERS = ['test/faults', 'test/browser-faults', 'test/python-faults'];

describe('V1: fault tests', () => {
  const code = new Map(sources('test').map((file) => [file.path, file.code]));
  const suites = [...code.keys()].filter((file) => file.endsWith('.test.ts') && FOLDERS.includes(path.dirname(file)));

  it('are found', () => {
    expect(suites.length).toBeGreaterThan(20);
    expect([...EXCEPTIONS].filter((file) => !suites.includes(file))).toEqual([]);
  });

  it.each(suites)('%s verifies the databases that it has harmed', (suite) => {
    const loaded = new Set([suite]);
    for (const file of loaded) {
      for (const wanted of importsOf(code.get(file) ?? '')) {
        if (wanted.startsWith('.')) loaded.add(path.posix.join(path.posix.dirname(file), wanted));
      }
    }
    expect([...loaded].some((file) => VERIFYING.has(file))).toBe(!EXCEPTIONS.has(suite));
  });
});
