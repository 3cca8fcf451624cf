import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { contractNames } from './contract.ts';

const document = read('docs/concepts.md');
const glossary = document.split('\n## Glossary\n')[1] ?? '';
const words = [...glossary.matchAll(/^\| \*\*(.+?)\*\* \|/gmu)].flatMap(([, word = '']) => word.split(', '));
const concepts = document
  .split(/^## /mu)
  .slice(1)
  .map((section) => ({ title: section.split('\n')[0] ?? '', section }))
  .filter(({ title }) => title !== 'Glossary');

describe('docs/concepts.md', () => {
  it.each(concepts)('$title: has a picture, and names its rules', ({ section }) => {
    expect(section.match(/^```mermaid\n(?:flowchart|sequenceDiagram|stateDiagram-v2)/gmu)).toHaveLength(1);
    const rules = [...section.matchAll(/\((\w+(?:, \w+)*)\)[.:]/gu)].flatMap(([, ids = '']) => ids.split(', '));
    expect(rules.length).toBeGreaterThan(0);
    expect(rules.filter((id) => !read('docs/rules.md').includes(`\n### ${id}. `))).toEqual([]);
  });

  it('explains each word once, in alphabetical order', () => {
    expect(words.length).toBeGreaterThan(40);
    expect(words).toEqual([...new Set(words)].sort());
  });

  it('explains every word that a picture introduces in bold', () => {
    const introduced = [...document.split('\n## Glossary\n')[0]!.matchAll(/\*\*([a-z ]+)\*\*/gu)].map(
      ([, word]) => word,
    );
    const forms = new Set(words.flatMap((word) => [word, `${word}s`, `${word}d`]));
    expect(introduced.filter((word) => !forms.has(word ?? ''))).toEqual([]);
  });

  it('names only fields and reasons that exist', () => {
    const known = contractNames();
    const named = [...document.matchAll(/`([a-z]+(?:_[a-z]+)+|[A-Z]+(?:_[A-Z]+)+)`/gu)].map(([, name = '']) => name);
    expect(named.filter((name) => !known.has(name))).toEqual([]);
  });
});

function read(path: string): string {
  return readFileSync(resolve(import.meta.dirname, '../..', path), 'utf8');
}
