import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';

const summary = read('docs/performance.md');
const notes = read('docs/performance-notes.md');
const rows = [...summary.matchAll(/^\| `([\w-]+)` \| .* \| (.+?) \| (.+?) \| .*\|$/gmu)].map(
  ([, bench = '', sqlite = '', postgres = '']) => ({ bench, sqlite, postgres }),
);

describe('docs/performance.md', () => {
  it('has at most two pages', () => {
    expect(summary.split('\n').length).toBeLessThanOrEqual(140);
  });

  it.each(rows)('$bench: the figures are those of the notes', ({ bench, sqlite, postgres }) => {
    expect({ sqlite, postgres }).toEqual({ sqlite: noted(bench, 'sqlite'), postgres: noted(bench, 'postgres') });
  });

  it('has the comparisons of the notes', () => {
    const compared = [...summary.matchAll(/^\| [^`|]+ \|.+\d.+\|$/gmu)].map(([row]) => row);
    expect(compared).toHaveLength(11);
    expect(compared.filter((row) => !notes.includes(`${row}\n`))).toEqual([]);
  });
});

/** Value, ratio and missed aim of a bench on an engine, in the form of the summary. */
function noted(bench: string, engine: string): string {
  const row = new RegExp(`^\\| \`${bench}\` \\| ${engine} \\| (.*?) \\| .*? \\| (.*?) \\| (.*?) \\|`, 'mu').exec(notes);
  if (row === null) return '–';
  const [, value = '', ratio = '', aim = ''] = row;
  return `${value}${ratio.trim() === '' ? '' : ` (${ratio})`}${aim.includes('missed') ? ', **missed**' : ''}`;
}

function read(path: string): string {
  return readFileSync(resolve(import.meta.dirname, '../..', path), 'utf8');
}
