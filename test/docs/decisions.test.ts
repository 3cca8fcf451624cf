import { readdirSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { expect, it } from 'vitest';

const folder = resolve(import.meta.dirname, '../../docs/decisions');
const names = readdirSync(folder).sort();

it('decisions are numbered 0001, 0002, … without gap', () => {
  expect(names.map((name) => name.slice(0, 5))).toEqual(names.map((_, i) => `${String(i + 1).padStart(4, '0')}-`));
});

it.each(names)('%s has context, decision and consequences, under its own number', (name) => {
  const headings = readFileSync(resolve(folder, name), 'utf8').match(/^#+ .+$/gmu) ?? [];
  expect(headings[0]).toMatch(new RegExp(`^# ${Number(name.slice(0, 4))}\\. \\S`, 'u'));
  expect(headings.slice(1)).toEqual(['## Context', '## Decision', '## Consequences']);
});
