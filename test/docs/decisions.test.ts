import { readdirSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { expect, it } from 'vitest';

const folder = resolve(import.meta.dirname, '../../docs/decisions');
const names = readdirSync(folder).sort();

it('each decision has its own number of four digits', () => {
  const numbers = names.map((name) => /^\d{4}(?=-)/u.exec(name)?.[0]);
  expect(numbers).not.toContain(undefined);
  expect(new Set(numbers).size).toBe(names.length);
});

it('there are at most 25, each of at most 250 words', () => {
  expect(names.length).toBeLessThanOrEqual(25);
  const words = (name: string) => readFileSync(resolve(folder, name), 'utf8').trim().split(/\s+/u).length;
  expect(names.filter((name) => words(name) > 250)).toEqual([]);
});

it.each(names)('%s has context, decision and consequences, under its own number', (name) => {
  const headings = readFileSync(resolve(folder, name), 'utf8').match(/^#+ .+$/gmu) ?? [];
  expect(headings[0]).toMatch(new RegExp(`^# ${Number(name.slice(0, 4))}\\. \\S`, 'u'));
  expect(headings.slice(1)).toEqual(['## Context', '## Decision', '## Consequences']);
});
