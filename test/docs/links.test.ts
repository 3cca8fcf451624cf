import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));
const documents = [
  'README.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join('docs', name)),
];

it.each(documents)('%s: every link within the repository leads to a file', (document) => {
  const text = readFileSync(join(root, document), 'utf8');
  const links = [...text.matchAll(/\]\(([^)\s]+)\)/gu)].map((match) => match[1] ?? '');
  const broken = links.filter((link) => {
    if (/^https?:/u.test(link)) return false;
    const [path = '', anchor] = link.split('#');
    const target = path === '' ? join(root, document) : join(root, dirname(document), path);
    if (!existsSync(target)) return true;
    return anchor !== undefined && !anchorsOf(readFileSync(target, 'utf8')).has(anchor);
  });
  expect(broken).toEqual([]);
});

it.each(documents)('%s: every source and test file that it names exists', (document) => {
  const text = readFileSync(join(root, document), 'utf8');
  const named = [...text.matchAll(/`((?:src|test|proto|gen|examples|bench|docs|third_party|\.ci)\/[\w./-]+)`/gu)];
  expect(named.map((match) => match[1] ?? '').filter((path) => !existsSync(join(root, path)))).toEqual([]);
});

function anchorsOf(markdown: string): Set<string> {
  const headings = [...markdown.matchAll(/^#+ (.+)$/gmu)].map((match) => match[1] ?? '');
  return new Set(
    headings.map((heading) =>
      heading
        .toLowerCase()
        .replace(/[^\w\s-]/gu, '')
        .replaceAll(' ', '-'),
    ),
  );
}
