import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';

const UNITS: Readonly<Record<string, number>> = { KiB: 1024, MiB: 1024 ** 2 };

it('docs/limitations.md lists every limit of src/domain/limits.ts, with its value', () => {
  const document = readFileSync(new URL('../../docs/limitations.md', import.meta.url), 'utf8');
  const rows = [...document.matchAll(/^\| `(\w+)` \| ([^|]+) \| .+ \|$/gmu)];
  expect(rows.map(([, name, value = '']) => [name, sizeOf(value)])).toEqual(Object.entries(LIMITS));
});

/** `1 MiB − 4 KiB` → 1044480; `10,000` → 10000. */
function sizeOf(text: string): number {
  const amounts = text.split('−').map((part) => {
    const [amount = '', unit = ''] = part.trim().replaceAll(',', '').split(' ');
    return Number(amount) * (UNITS[unit] ?? 1);
  });
  return amounts.reduce((total, less) => total - less);
}
