import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { CONFIG_TABLE } from '../../src/config/table.ts';
import { ROOT } from './source.ts';

const example = readFileSync(path.join(ROOT, '.env.example'), 'utf8');
const lines = [...example.matchAll(/^# ([A-Z][A-Z_]*)=(.*)$/gm)].map(([, name = '', value = '']) => ({ name, value }));

describe('.env.example', () => {
  it('names every setting, once, and no other', () => {
    expect(lines.map(({ name }) => name).sort()).toEqual(CONFIG_TABLE.map(({ name }) => name).sort());
  });

  it('has no setting uncommented', () => {
    expect(example.split('\n').filter((line) => line !== '' && !line.startsWith('#'))).toEqual([]);
  });

  it('shows the default of every setting that has one', () => {
    const own = CONFIG_TABLE.filter(({ name }) => name.startsWith('ANABRANCH_') || name === 'DATABASE_URL');
    const withDefault = own.filter((row) => row.default !== undefined);
    for (const { name, default: initial } of withDefault) expect(lines).toContainEqual({ name, value: initial });
  });
});

describe('docker-compose.yml', () => {
  it('takes from .env only names that the service reads too, except the port of pgAdmin', () => {
    const compose = readFileSync(path.join(ROOT, 'docker-compose.yml'), 'utf8');
    const names = new Set([...compose.matchAll(/(?<!\$)\$\{(\w+)/g)].map(([, name]) => name));
    names.delete('PGADMIN_PORT');
    expect(CONFIG_TABLE.map(({ name }) => name)).toEqual(expect.arrayContaining([...names]));
  });
});
