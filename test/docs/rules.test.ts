import { globSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { contractNames } from './contract.ts';

const ROOT = resolve(import.meta.dirname, '../..');
const document = read('docs/rules.md');
const rules = document
  .split(/^### /mu)
  .slice(1)
  .map((section) => ({ id: /^([A-Z]+\d+)\. \S/u.exec(section)?.[1] ?? section.slice(0, 40), section }));
const promises = [...read('docs/guarantees.md').matchAll(/^\| ([A-Z]+\d+) \|/gmu)].map(([, id = '']) => ({ id }));
const PREFIXES = ['FM', 'W', 'RD', 'B', 'S', 'ID', 'L', 'Q', 'M', 'MS', 'V', 'N'];
/** A key of the metadata of errors. */
const OTHER = ['violations_left_out'];
/** The ids at the beginning of strings of tests, as in `it('W1, W2: …'`, and in rows of their tables. */
const proven = new Set(
  globSync(['test/**/*.ts', 'clients/python/tests/*.py'], { cwd: ROOT })
    .flatMap((file) => [...read(file).matchAll(/['"`]([A-Z]{1,2}\d+[^:'"`\n]*):/gu)])
    .flatMap(([, ids = '']) => ids.match(/\b[A-Z]{1,2}\d+\b/gu) ?? []),
);

describe('docs/rules.md', () => {
  it('has each rule once, by subject and number', () => {
    const ids = rules.map(({ id }) => id);
    expect(ids.length).toBeGreaterThan(40);
    expect(new Set(ids).size).toBe(ids.length);
    expect(ids).toEqual(ids.toSorted((a, b) => orderOf(a) - orderOf(b)));
  });

  it.each(rules)('$id: the named fields, reasons and values exist', ({ section }) => {
    const known = new Set([...contractNames(), ...OTHER]);
    const named = [...section.matchAll(/`([a-z]+(?:_[a-z]+)+|[A-Z]+(?:_[A-Z]+)+)(?:: [^`]+)?`/gu)];
    expect(named.map(([, name = '']) => name).filter((name) => !known.has(name))).toEqual([]);
  });

  it('refers to no file outside of the repository', () => {
    expect(document).not.toMatch(/shared\/|contract\.md|design\.md/u);
  });
});

it.each([...rules, ...promises])('$id: the title of a test has this id', ({ id }) => {
  expect(proven).toContain(id);
});

/** Position of a rule in the document: by subject, then by number. */
function orderOf(id: string): number {
  const [, prefix = '', number = ''] = /^([A-Z]+)(\d+)$/u.exec(id) ?? [];
  return PREFIXES.indexOf(prefix) * 100 + Number(number);
}

function read(path: string): string {
  return readFileSync(resolve(ROOT, path), 'utf8');
}
