import { readFile, writeFile } from 'node:fs/promises';
import net from 'node:net';
import path from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createPostgresDatabase, type TestDatabase } from '../support/database.ts';
import { type PostgresServer, startPostgres } from '../support/postgres.ts';
import { runCli } from './run_cli.ts';

/** Not the password of any role. */
const WRONG = 's3cret';

describe('a Postgres that cannot be used', () => {
  let server: PostgresServer;
  let database: TestDatabase;
  let name: string;
  let admin: pg.Client;

  beforeAll(async () => {
    server = await startPostgres({ port: 'free' });
    database = await createPostgresDatabase(server.url);
    name = new URL(database.url).pathname.slice(1);
    const hba = path.join(server.dir, 'data', 'pg_hba.conf');
    const rules = [
      'host refused_by_hba all all reject',
      'hostssl only_with_tls all all trust',
      'host only_with_tls all all reject',
      'host all postgres all trust',
      'host all no_such_role all trust',
      'host with_md5 all all md5',
      'host with_plain all all password',
      'host all all all scram-sha-256',
    ];
    await writeFile(hba, `${rules.join('\n')}\n${(await readFile(hba, 'utf8')).replace(/^host/gm, '#host')}`);
    admin = new pg.Client(server.url);
    await admin.connect();
    for (const each of ['refused_by_hba', 'only_with_tls', 'with_md5', 'with_plain', 'closed', 'private', 'old'])
      await admin.query(`create database ${each}`);
    await admin.query('alter database closed allow_connections false');
    await admin.query(`revoke connect on database private from public`);
    await admin.query(`create role no_login nologin password '${WRONG}'`);
    await admin.query(`create role no_session login password '${WRONG}' connection limit 0`);
    await admin.query(`create role no_rights login password '${WRONG}'`);
    await admin.query(`create role old_server login password '${WRONG}'`);
    await admin.query('select pg_reload_conf()');
    await pretendOldServer();
  });
  afterAll(async () => {
    await admin?.end();
    await server?.stop();
  });

  /** For one role, Postgres says that it has version 14. */
  async function pretendOldServer(): Promise<void> {
    const url = new URL(server.url);
    url.pathname = '/old';
    const client = new pg.Client(url.href);
    await client.connect();
    await client.query('create schema fake');
    await client.query(`create function fake.current_setting(text) returns text language sql as $$
      select case $1 when 'server_version_num' then '140005' else pg_catalog.current_setting($1) end $$`);
    await client.query('grant usage on schema fake to public');
    await client.query('alter role old_server set search_path = fake, pg_catalog');
    await client.end();
  }

  const urlOf = (change: { database?: string; user?: string; password?: string; query?: string; host?: string }) => {
    const url = new URL(database.url);
    if (change.database !== undefined) url.pathname = `/${change.database}`;
    if (change.user !== undefined) url.username = change.user;
    url.password = change.password ?? WRONG;
    if (change.host !== undefined) url.host = change.host;
    url.search = change.query ?? '';
    return url.href;
  };

  async function expectExplained(url: string, words: RegExp, args: readonly string[] = []): Promise<void> {
    const command = args.length === 0 ? ['serve', '--listen', '127.0.0.1:0'] : args;
    const { code, stdout, stderr } = await runCli(command, { env: { DATABASE_URL: url } });
    expect(stderr).toMatch(words);
    expect(stderr.trim().split('\n'), stderr).toHaveLength(1);
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr).not.toContain(WRONG);
    expect(stderr).not.toContain(new URL(database.url).password);
  }

  it.each([
    ['a wrong password', {}, /password authentication failed.*correct the user and the password/],
    ['a role that does not exist', { user: 'no_such_role' }, /role "no_such_role" does not exist.*create the role/],
    ['a role that may not log in', { user: 'no_login' }, /not permitted to log in.*LOGIN/],
    [
      'a role without the right to connect',
      { user: 'no_rights', database: 'private' },
      /permission denied for database "private".*grant connect/,
    ],
    [
      'a role without the right to create a schema',
      { user: 'no_rights', database: 'postgres' },
      /permission denied for database postgres.*grant connect, create on database/,
    ],
    ['too many connections', { user: 'no_session' }, /too many connections for role.*max_connections/],
    [
      'a database that accepts no connections',
      { user: 'postgres', database: 'closed' },
      /not currently accepting connections.*another database/,
    ],
    ['a rule of pg_hba.conf', { database: 'refused_by_hba' }, /pg_hba.conf rejects.*allow it in pg_hba.conf/],
    ['a rule of pg_hba.conf that requires TLS', { database: 'only_with_tls' }, /no encryption.*sslmode=verify-full/],
    ['a server without TLS', { query: 'sslmode=require' }, /does not offer TLS.*remove sslmode/],
    [
      'a certificate that does not exist',
      { query: 'sslmode=verify-full&sslrootcert=/no/such/file' },
      /\/no\/such\/file.*correct sslrootcert/,
    ],
    ['a port without a server', { host: '127.0.0.1:1' }, /ECONNREFUSED.*check that Postgres is running/],
    ['an unknown host', { host: 'no-such-host.invalid' }, /no-such-host.invalid.*correct the host/],
    [
      'a folder without a socket',
      { query: 'host=/no/such/folder' },
      /\/no\/such\/folder.*check that Postgres is running/,
    ],
    [
      'an invalid option',
      { user: 'postgres', query: 'options=-c%20no_such_setting=1' },
      /no_such_setting.*correct the options/,
    ],
    ['an old version', { user: 'old_server', database: 'old' }, /version 14: version 15 or later is required/],
  ] as const)('is explained in one line with the remedy, and exit code 1: %s', async (_, change, words) => {
    await expectExplained(urlOf(change), words);
  });

  it('is explained if the database does not exist', async () => {
    const { password } = new URL(database.url);
    await expectExplained(urlOf({ database: 'missing', password }), /database "missing" does not exist.*createdb/);
  });

  it.each(['scram', 'with_md5', 'with_plain'])('is explained if the URL has no password: %s', async (each) => {
    const url = new URL(urlOf({ database: each === 'scram' ? name : each }));
    url.password = '';
    await expectExplained(url.href, /password/);
  });

  it('is explained if another program listens at the port', async () => {
    const other = net.createServer((socket) => socket.on('error', () => {}).end('HTTP/1.1 400 Bad Request\r\n\r\n'));
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    const { port } = other.address() as net.AddressInfo;
    await expectExplained(urlOf({ host: `127.0.0.1:${port}` }), /check that Postgres is running/);
    other.close();
  });

  it.each([
    ['migrate', (url: string) => ['migrate', '--database', url]],
    ['verify', (url: string) => ['verify', '--database', url]],
    ['reset', (url: string) => ['reset', '--yes', '--database', url]],
    ['migrate-data', (url: string) => ['migrate-data', '--from', url, '--to', 'sqlite:there.db']],
    ['runs', (url: string) => ['runs', '--database', url]],
    ['demo', (url: string) => ['demo', '--database', url]],
  ])('is explained by %s as by serve', async (_, command) => {
    const changes = [{}, { user: 'no_rights', database: 'private' }, { host: '127.0.0.1:1' }];
    for (const change of changes) {
      const { code, stderr } = await runCli(command(urlOf(change)));
      const lines = stderr
        .trim()
        .split('\n')
        .filter((line) => !line.includes('holds a password'));
      expect(lines, stderr).toHaveLength(1);
      expect(lines[0]).toMatch(/correct the user|grant connect|check that Postgres is running|cannot be read/);
      expect(stderr).not.toContain(WRONG);
      expect(code).toBe(1);
    }
  });
});
