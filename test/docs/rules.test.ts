import { existsSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { contractNames } from './contract.ts';

const ROOT = resolve(import.meta.dirname, '../..');
const document = readFileSync(resolve(ROOT, 'docs/rules.md'), 'utf8');
const guarantees = readFileSync(resolve(ROOT, 'docs/guarantees.md'), 'utf8');
const rules = document
  .split(/^### /mu)
  .slice(1)
  .map((section) => ({ id: /^([A-Z]+\d+)\. \S/u.exec(section)?.[1] ?? section.slice(0, 40), section }));
const PREFIXES = ['FM', 'W', 'RD', 'B', 'S', 'ID', 'L', 'Q', 'M', 'MS', 'V', 'N'];
/** A key of the metadata of errors. */
const OTHER = ['violations_left_out'];

describe('docs/rules.md', () => {
  it('has each rule of docs/guarantees.md once, by subject and number', () => {
    const ids = rules.map(({ id }) => id);
    const listed = [...(guarantees.split('\n## Rules\n')[1] ?? '').matchAll(/^\| ([A-Z]+\d+) \|/gmu)].map(
      ([, id]) => id,
    );
    expect(listed.length).toBeGreaterThan(40);
    expect(ids.toSorted()).toEqual(listed.toSorted());
    expect(ids).toEqual(ids.toSorted((a, b) => orderOf(a) - orderOf(b)));
  });

  it.each(rules)('$id: the cited tests exist with these titles', ({ section }) => {
    const citations = [...section.matchAll(/^- `(test\/[\w./-]+\.test\.ts)`: (.+)$/gmu)];
    expect(citations.length).toBeGreaterThan(0);
    const missing = citations.filter(([, file = '', title = '']) => {
      const path = resolve(ROOT, file);
      return !existsSync(path) || !hasTitle(readFileSync(path, 'utf8'), title);
    });
    expect(missing.map(([line]) => line)).toEqual([]);
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

/** Position of a rule in the document: by subject, then by number. */
function orderOf(id: string): number {
  const [, prefix = '', number = ''] = /^([A-Z]+)(\d+)$/u.exec(id) ?? [];
  return PREFIXES.indexOf(prefix) * 100 + Number(number);
}

/** The title is a string in the source, as in tests: `it('…'`, or a case of `it.each`. */
function hasTitle(source: string, title: string): boolean {
  return ["'", '"', '`'].some((quote) => source.includes(`${quote}${title}${quote}`));
}
