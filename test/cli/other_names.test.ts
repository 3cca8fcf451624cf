import { copyFileSync, linkSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { sqlitePath } from '../store/sql.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { runCli } from './run_cli.ts';

describe('a file with a hard link', () => {
  it.each([
    ['serve', '--listen', '127.0.0.1:0', '--database', 'sqlite:DB'],
    ['migrate', '--database', 'sqlite:DB'],
    ['verify', '--database', 'sqlite:DB'],
    ['vacuum', '--database', 'sqlite:DB'],
    ['reset', '--yes', '--database', 'sqlite:DB'],
    ['backup', 'OUT', '--database', 'sqlite:DB'],
    ['runs', '--database', 'sqlite:DB'],
    ['migrate-data', '--from', 'sqlite:DB', '--to', 'sqlite:OUT'],
    ['migrate-data', '--from', 'sqlite:OTHER', '--to', 'sqlite:DB'],
  ])('D7: is refused by %s in one line, and not changed', async (...args) => {
    await using database = await createMigratedDatabase('sqlite');
    const file = sqlitePath(database);
    const at = (name: string) => path.join(path.dirname(file), name);
    linkSync(file, at('link.db'));
    copyFileSync(file, at('other.db'));
    const before = readFileSync(file);
    const named = args.map((arg) =>
      arg.replace('DB', at('link.db')).replace('OUT', at('out')).replace('OTHER', at('other.db')),
    );
    const { code, stdout, stderr } = await runCli(named);
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr).toContain('link.db has 2 names (hard links)');
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(readFileSync(file).equals(before)).toBe(true);
    expect(
      readdirSync(path.dirname(file))
        .filter((name) => !name.startsWith('other.db'))
        .sort(),
    ).toEqual(['data.db', 'link.db']);
  });
});
