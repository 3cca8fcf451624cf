import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import fc from 'fast-check';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { describeDatabase, loadConfig } from '../../src/config/config.ts';
import { scrubUrl } from '../../src/config/scrub_url.ts';
import { ConfigError, type ConfigSources } from '../../src/config/values.ts';
import { runCli } from './run_cli.ts';

const CANARY = 'c4n4ry';

/** Passwords with everything that ends a part of a URL. */
const passwords = fc
  .array(
    fc.constantFrom(
      CANARY,
      '@',
      ':',
      '/',
      '?',
      '#',
      '%',
      '%zz',
      '%40',
      '&',
      '=',
      ' ',
      "'",
      '"',
      '\\',
      '1',
      'x',
      '[',
      ';',
      '\t',
      'ä',
    ),
    { maxLength: 8 },
  )
  .chain((parts) =>
    fc.nat({ max: parts.length }).map((at) => [...parts.slice(0, at), CANARY, ...parts.slice(at)].join('')),
  );

/** What people set as a database URL, with a password in it. */
const PLACEMENTS: Readonly<Record<string, (password: string) => string>> = {
  'a URL': (p) => `postgres://app:${p}@127.0.0.1:1/db`,
  'a URL with options': (p) => `postgresql://app:${p}@db.example:5432/db?sslmode=require&host=/run/pg`,
  'a URL of SQLAlchemy': (p) => `postgresql+psycopg2://app:${p}@h/db`,
  'a URL without host': (p) => `postgres://app:${p}@/db`,
  'a URL without database': (p) => `postgres://app:${p}@h`,
  'a URL with a bad port': (p) => `postgres://app:${p}@h:abc/db`,
  'a URL without user': (p) => `postgres://:${p}@h/db`,
  'a URL whose credentials are encoded as one': (p) => `postgres://${encodeURIComponent(`app:${p}`)}@h/db`,
  'an encoded URL': (p) => `postgres://app:${encodeURIComponent(p)}@127.0.0.1:1/db`,
  'an encoded host': (p) => `postgres://app:x@${encodeURIComponent(`${p}@h`)}/db`,
  'a URL in upper case': (p) => `POSTGRES://app:${p}@h/db`,
  'one slash': (p) => `postgres:/app:${p}@h/db`,
  'no slash': (p) => `postgres:app:${p}@h/db`,
  'no scheme': (p) => `app:${p}@h:5432/db`,
  'only slashes': (p) => `//app:${p}@h/db`,
  'another scheme': (p) => `mysql://app:${p}@h/db`,
  'a misspelt scheme': (p) => `postgress://app:${p}@h/db`,
  'a scheme of SQLite': (p) => `sqlite:app:${p}@h/db`,
  'a scheme of SQLite with slashes': (p) => `sqlite:///app:${p}@h/db`,
  'a URL of JDBC': (p) => `jdbc:postgresql://h/db?user=app&password=${p}`,
  'a parameter': (p) => `postgres://h/db?user=app&password=${p}`,
  'a parameter and a user': (p) => `postgres://app@h/db?password=${p}`,
  'the parameter of a key': (p) => `postgres://app@h/db?sslpassword=${p}&passfile=${p}`,
  'words of libpq': (p) => `host=h user=app password=${p} dbname=db`,
  'quoted words of libpq': (p) => `host='h' password='${p}'`,
  'words of ADO': (p) => `Server=h;User Id=app;Pwd=${p};`,
  'double quotes': (p) => `"postgres://app:${p}@h/db"`,
  'single quotes': (p) => `'postgres://app:${p}@h/db'`,
  'a blank before': (p) => `  postgres://app:${p}@h/db`,
  'a blank after the scheme': (p) => `postgres:// app:${p}@h/db`,
  'a whole assignment': (p) => `DATABASE_URL=postgres://app:${p}@h/db`,
  'the last of several hosts': (p) => `postgres://h1,app:${p}@h2:5432/db`,
  'several hosts': (p) => `postgres://app:${p}@h1:5432,h2:5432/db`,
  'only the password': (p) => p,
};

/** Returns everything that is printed about a configuration. */
function printedOf(sources: Pick<ConfigSources, 'env' | 'flags'>, dotEnv?: string): string {
  try {
    const config = loadConfig({ ...sources, cwd: '/srv', readFile: () => dotEnv });
    const url = config.database.engine === 'postgres' ? config.database.url : '';
    return JSON.stringify([describeDatabase(config), config.warnings, config.databaseChosenBy, driverError(url)]);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    return `${error.message}\n${error.stack}`;
  }
}

/** The driver parses the URL as well. */
function driverError(url: string): string {
  try {
    new pg.Client({ connectionString: url });
    return '';
  } catch (error) {
    return String((error as Error).stack);
  }
}

describe('a password in a database URL', () => {
  it.each(Object.entries(PLACEMENTS))('is not printed, whatever it consists of: %s', (_, place) => {
    fc.assert(
      fc.property(passwords, (password) => {
        const text = place(password);
        const all = [
          printedOf({ env: { DATABASE_URL: text }, flags: {} }),
          printedOf({ env: {}, flags: { database: text } }),
          // A # after a blank begins a comment, as people write them behind values.
          /\s#/u.test(text) ? '' : printedOf({ env: {}, flags: {} }, `DATABASE_URL=${text}`),
        ];
        expect(all.join('\n')).not.toContain(CANARY);
      }),
      { numRuns: 150 },
    );
  });

  it.each(['POSTGRES_HOST', 'POSTGRES_DB', 'POSTGRES_USER', 'SQLITE_DB_FILE'])(
    'is not printed if %s is set to a URL',
    (name) => {
      for (const place of Object.values(PLACEMENTS).slice(0, 4)) {
        const env = { POSTGRES_DB: 'db', [name]: place(CANARY), ...(name === 'SQLITE_DB_FILE' && { POSTGRES_DB: '' }) };
        expect(printedOf({ env, flags: {} })).not.toContain(CANARY);
      }
    },
  );

  it.each([
    'postgres://app:1/s3cret@h/db',
    'postgres://app:1?s3cret@h/db',
    'postgres://app:1#s3cret@h/db',
    'postgres://app:1/db?s3cret@h/db',
    'postgres://app:x@1/s3cret@h/db',
  ])('is not taken for a port, a database or a host: %s', (url) => {
    expect(() => loadConfig({ env: { DATABASE_URL: url }, flags: {}, cwd: '/', readFile: () => undefined })).toThrow(
      /^DATABASE_URL begins with "postgres:\/\/": expected .*percent-encoded/u,
    );
  });

  it('is not taken for a scheme', () => {
    const load = () =>
      loadConfig({ env: { DATABASE_URL: 's3cret://x' }, flags: {}, cwd: '/', readFile: () => undefined });
    expect(load).toThrow(/^DATABASE_URL is not a database URL \(not shown: it may hold a password\)/u);
  });

  it('is not cut at a # or a quote in .env', () => {
    const load = (dotEnv: string, env = {}) => loadConfig({ env, flags: {}, cwd: '/', readFile: () => dotEnv });
    for (const line of [
      'DATABASE_URL=postgres://u:p#1@h/d',
      'export POSTGRES_PASSWORD = a#b',
      'POSTGRES_PASSWORD=a# b',
      "DATABASE_URL='a'b'",
      "DATABASE_URL='postgres://u:/a'#b@h/d'",
      'DATABASE_URL="postgres://u:/a"#b@h/d"',
    ])
      expect(() => load(`# first\n${line}\n`), line).toThrow(/^\w+ \(\.env\) is cut at a # or a quote/u);
    const quoted = '# DATABASE_URL=a#b\nDATABASE_URL="postgres://u:p%231@h/d" # comment\nPOSTGRES_PASSWORD=\'a#b\'';
    expect(load(quoted).database).toMatchObject({ url: 'postgres://u:p%231@h/d' });
    expect(load(`DATABASE_URL="sqlite:a.db" # it's the "first" one`).database).toMatchObject({ path: '/a.db' });
    expect(load('DATABASE_URL=sqlite:a.db # comment').database).toMatchObject({ path: '/a.db' });
    expect(load('DATABASE_URL=a#b', { DATABASE_URL: 'sqlite:a.db' }).database).toMatchObject({ path: '/a.db' });
  });

  it('is removed from a valid URL; user, host, port, database and the folder of the socket are shown', () => {
    expect(scrubUrl('postgres://ann:p%40@h:5432/d')).toBe('postgres://ann@h:5432/d');
    expect(scrubUrl('postgresql+psycopg2://ann:p@/d?host=/run/pg&password=p')).toBe(
      'postgresql+psycopg2://ann@localhost/d?host=/run/pg',
    );
    expect(scrubUrl('postgres://ann:p@[::1]:1,h/d?a=p')).toBe('postgres://ann@[::1]:1,h:5432/d');
    for (const after of ['1,2/c@h/d', '1,2?c@h/d', '1,2#c@h/d', 'a,b/d']) {
      expect(scrubUrl(`postgres://ann:${after}`)).toBe('postgres://');
    }
    expect(scrubUrl('sqlite:.anabranch/data.db')).toBe('sqlite:.anabranch/data.db');
    expect(scrubUrl('postgres:/ann:p@h/d')).toBe('');
  });
});

describe('the command line', () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-passwords-'));
    await writeFile(path.join(folder, 'file'), '');
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  const COMMANDS: readonly ((url: string) => string[])[] = [
    (url) => ['serve', '--listen', '127.0.0.1:0', '--database', url],
    (url) => ['serve', '--url', url],
    (url) => ['serve', `--url=${url}`],
    (url) => ['serve', url],
    (url) => [url],
    (url) => ['migrate', '--database', url],
    (url) => ['migrate-data', '--from', url, '--to', 'sqlite:there.db'],
    (url) => ['migrate-data', '--from', `sqlite:${folder}/file`, '--to', url],
    (url) => ['backup', `${folder}/backup.db`, '--database', url],
    (url) => ['backup', url],
    (url) => ['restore', `${folder}/file`, '--database', url],
    (url) => ['restore', url, '--database', `sqlite:${folder}/restored.db`],
    (url) => ['export', url],
    (url) => ['import', url],
    (url) => ['verify', '--database', url],
    (url) => ['vacuum', '--database', url],
    (url) => ['reset', '--yes', '--database', url],
    (url) => ['demo', '--database', url],
    (url) => ['runs', '--database', url],
    (url) => ['runs', '--address', url],
    (url) => ['steps', url],
    (url) => ['tail', url],
    (url) => ['serve', '--allowed-host', url],
    (url) => ['serve', '--allowed-origin', url],
    (url) => ['serve', '--allowed-origin', `http://127.0.0.1,${url}`],
  ];
  const URLS = [
    'postgres:/app:s3cret@127.0.0.1/db',
    'app:s3cret@127.0.0.1:5432/db',
    'host=127.0.0.1 user=app password=s3cret dbname=db',
    'postgres://app:x@s3cret?y@127.0.0.1/db',
    '"postgres://app:s3cret@127.0.0.1/db"',
    'mysql://app:s3cret@127.0.0.1/db',
    'https://app:x,s3cret@app.example',
    'postgres://127.0.0.1:1/db?host=/run/pg;password=s3cret',
    'postgres://127.0.0.1:1/db?user=app:s3cret&host=x@',
  ];

  it.each(URLS)('rejects %s in one line with exit code 2, and prints nothing of the password', async (url) => {
    for (const command of COMMANDS) {
      const { code, stdout, stderr } = await runCli(command(url));
      const what = command('URL').join(' ');
      expect(stdout + stderr, what).not.toContain('s3cret');
      expect(stderr, what).not.toMatch(/\n\s+at /);
      expect({ code, stdout, lines: stderr.trim().split('\n').length }, what).toEqual({
        code: 2,
        stdout: '',
        lines: 1,
      });
    }
    const { code, stderr } = await runCli(['serve', '--listen', '127.0.0.1:0'], { env: { DATABASE_URL: url } });
    expect(code).toBe(2);
    expect(stderr).not.toContain('s3cret');
  });
});
