import { existsSync, readFileSync } from 'node:fs';
import { parseEnv } from 'node:util';
import { expect, it } from 'vitest';
import { loadConfig } from '../../src/config/config.ts';
import { CONFIG_TABLE, type ConfigRow } from '../../src/config/table.ts';

it('docs/configuration.md holds the table of src/config/table.ts, row by row', () => {
  const lines = read('docs/configuration.md').split('\n');
  const start = lines.indexOf('| variable | flag | default | expected | what it does |');
  const end = lines.indexOf('', start);
  expect(lines.slice(start + 2, end)).toEqual(CONFIG_TABLE.map(asLine));
});

it('.env.example names only existing settings, and is valid as it is and with every line uncommented', () => {
  const text = read('.env.example');
  const inForce = text.replace(/^# ?(?=[A-Z][A-Z_]*=)/gmu, '');
  const known = new Set(CONFIG_TABLE.map((row) => row.name));
  for (const dotEnv of [text, inForce]) {
    expect(Object.keys(parseEnv(dotEnv)).filter((name) => !known.has(name))).toEqual([]);
    loadConfig({ env: {}, flags: {}, cwd: '/', readFile: () => dotEnv });
  }
});

function asLine(row: ConfigRow): string {
  const flag = row.flag === undefined ? '' : `\`${row.flag}\``;
  const initial = row.default === undefined ? '' : /\s/u.test(row.default) ? row.default : `\`${row.default}\``;
  const doc = row.secret ? `${row.doc} Secret: never printed.` : row.doc;
  return `| \`${row.name}\` | ${flag} | ${initial} | ${row.expected} | ${doc} |`;
}

function read(path: string): string {
  const url = new URL(`../../${path}`, import.meta.url);
  if (!existsSync(url)) throw new Error(`${path} is missing`);
  return readFileSync(url, 'utf8');
}
