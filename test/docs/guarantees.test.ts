import { existsSync, globSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';

const ROOT = resolve(import.meta.dirname, '../..');
const document = readFileSync(resolve(ROOT, 'docs/guarantees.md'), 'utf8');
const rows = [...document.matchAll(/^\| ([A-Z]+\d+) \| (.+) \| (.+) \|$/gmu)].map(([, id = '', , proof = '']) => ({
  id,
  proof,
}));
const PROMISES = 'D1 D2 D3 D4 D5 O1 O2 I1 I2 F1 F2 R1 R2 R3 A1 A2'.split(' ');

const figureRows = [...document.matchAll(/^\| `(test\/[\w./-]+)` \| (.+?) \| (.+) \|$/gmu)].map(
  ([, file = '', proof = '', figures = '']) => ({ file, proof, figures }),
);
const faultTests = globSync('test/faults/**/*.test.ts', { cwd: ROOT })
  .sort()
  .map((file) => ({ file, source: readFileSync(resolve(ROOT, file), 'utf8') }));

describe('docs/guarantees.md', () => {
  it('has every promise, once', () => {
    expect(rows.map((row) => row.id)).toEqual(expect.arrayContaining(PROMISES));
    expect(new Set(rows.map((row) => row.id)).size).toBe(rows.length);
  });

  it.each(rows)(
    '$id: the named tests exist and cite the id in a title, or the row says that there is none yet',
    ({ id, proof }) => {
      if (proof === 'not proven yet') return;
      const files = [...proof.matchAll(/`(test\/[\w./-]+)`/gu)].map((match) => match[1] ?? '');
      expect(files.length).toBeGreaterThan(0);
      const silent = files.filter((file) => {
        const path = resolve(ROOT, file);
        return !existsSync(path) || !citesInAName(readFileSync(path, 'utf8'), id);
      });
      expect(silent).toEqual([]);
    },
  );

  it.each(faultTests)('$file: every promise that it proves lists it, with figures', ({ file, source }) => {
    const cited = PROMISES.filter((id) => citesInAName(source, id));
    const untold = cited.filter((id) => !rows.find((row) => row.id === id)?.proof.includes(`\`${file}\``));
    expect(untold).toEqual([]);
    expect(figureRows.filter((row) => row.file === file).length).toBeGreaterThan(0);
  });

  it('has figures only of existing tests', () => {
    expect(faultTests.map(({ file }) => file)).toEqual(expect.arrayContaining(figureRows.map(({ file }) => file)));
  });

  it('reports no loss, and violations for each control', () => {
    const lost = figureRows.filter(({ figures }) => /\blost: (?!0\b)/u.test(figures));
    expect(lost.filter(({ proof }) => !proof.includes('control'))).toEqual([]);
    for (const { figures } of figureRows.filter(({ proof }) => proof.startsWith('control')))
      expect(figures).toMatch(/\bviolations: [1-9]/u);
  });
});

/**
 * The id is in a string on one line, as in test titles (`it('W3: …'`, `describe('W1 to W5'`), and not only in a
 * comment.
 */
function citesInAName(source: string, id: string): boolean {
  const code = source.replace(/^\s*(?:\/\/|\/?\*).*$/gmu, '');
  return new RegExp(`['"\`][^'"\`\\n]*(?<![\\w-])${id}(?!\\w)`, 'u').test(code);
}
