import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ServerService } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { isSecret, newSecret } from '../../src/domain/access.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer } from '../support/test-server.ts';
import { runCli } from './run_cli.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-keys-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

/** The role of the caller with this key. */
async function roleOf(url: string, secret: string): Promise<string> {
  const headers = { authorization: `Bearer ${secret}` };
  const { caller } = await createClient(ServerService, createGrpcTransport({ baseUrl: url })).getServerInfo(
    {},
    { headers },
  );
  return `${caller!.name} ${caller!.role}`;
}

describe('keys', () => {
  it('N2: are created, listed and revoked on a database that no server uses, also a new one', async () => {
    const database = ['--database', `sqlite:${path.join(folder, 'new.db')}`];
    const made = await runCli(['keys', 'create', 'worker', '--role', 'work', '--namespace', 'a', ...database]);
    expect(made.code).toBe(0);
    expect(isSecret(made.stdout.trim())).toBe(true);
    expect(made.stderr).toContain('Keep this key; it cannot be shown again:');
    const created = await runCli([
      'keys',
      'create',
      'ann',
      '--role',
      'admin',
      '--expires',
      '90d',
      '--json',
      ...database,
    ]);
    const { key, secret } = JSON.parse(created.stdout) as { key: Record<string, unknown>; secret: string };
    expect(key).toMatchObject({ name: 'ann', role: 'ROLE_ADMIN', namespaces: ['*'] });
    expect(isSecret(secret)).toBe(true);
    const listed = await runCli(['keys', 'list', ...database]);
    expect(listed.stdout).toMatch(
      /^\S{36} {2}worker {16}work {3}a\n\S{36} {2}ann {19}admin {2}\* {2}until \d{4}-\d\d-\d\d\n$/,
    );
    expect(listed.stdout).not.toContain('anb_');
    const [id = ''] = listed.stdout.split(' ');
    const revoked = await runCli(['keys', 'revoke', id, ...database]);
    expect(revoked.stdout).toMatch(new RegExp(`^Revoked ${id} {2}worker .*revoked \\d{4}-\\d\\d-\\d\\d\n$`));
    expect((await runCli(['keys', 'list', ...database])).stdout).toMatch(/worker .*revoked/);
    const missing = await runCli(['keys', 'revoke', '00000000-0000-4000-8000-000000000000', ...database]);
    expect(missing).toMatchObject({ code: 1, stderr: expect.stringContaining('API_KEY_NOT_FOUND') });
  });

  it('N2: are created on a database whatever the environment says of a server', async () => {
    const files = [
      'ADMIN_KEY_FILE',
      'CLIENT_CA',
      'JWT_JWKS',
      'JWT_AUDIENCE',
      'METRICS_LISTEN',
      'PRINCIPALS',
      'TLS_CERT',
      'TLS_KEY',
    ];
    const env = {
      ...Object.fromEntries(files.map((name) => [`ANABRANCH_${name}`, 'none'])),
      ANABRANCH_AUTH: 'required',
      ANABRANCH_JWT_ISSUER: 'https://issuer.example',
      ANABRANCH_LISTEN: '0.0.0.0:50051',
    };
    const database = ['--database', `sqlite:${path.join(folder, 'served.db')}`];
    const made = await runCli(['keys', 'create', 'worker', '--role', 'work', ...database], { env });
    expect([made.code, isSecret(made.stdout.trim())], made.stderr).toEqual([0, true]);
  });

  it('N2: need a role, and one that exists', async () => {
    for (const role of [[], ['--role', 'root']]) {
      expect((await runCli(['keys', 'create', 'worker', ...role])).code).toBe(2);
    }
  });
});

describe('--admin-key-file', () => {
  it('N2: names a file that the server creates with the first key, for its owner only', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const file = path.join(folder, 'admin.key');
    const flags = { auth: 'required', adminKeyFile: file };
    await using first = await startTestServer({ database, flags });
    const secret = (await readFile(file, 'utf8')).trim();
    expect((await stat(file)).mode & 0o777).toBe(0o600);
    expect(await roleOf(first.url, secret)).toBe('admin 4');
    await first.stop();
    await using second = await startTestServer({ database, flags });
    expect(await roleOf(second.url, secret)).toBe('admin 4');
    expect((await readFile(file, 'utf8')).trim()).toBe(secret);
  });

  it('N2: may hold a key that the operator has chosen', async () => {
    const [file, secret] = [path.join(folder, 'mounted.key'), newSecret()];
    await writeFile(file, `${secret}\n`);
    await using server = await startTestServer({ flags: { auth: 'required', adminKeyFile: file } });
    expect(await roleOf(server.url, secret)).toBe('admin 4');
  });

  it.each([
    ['no key', 'secret', /has no API key of Anabranch/],
    ['a folder', undefined, /cannot be read or created: EISDIR/],
  ])('N2: that is %s keeps the server from starting', async (_, text, message) => {
    const file = text === undefined ? folder : path.join(folder, 'bad.key');
    if (text !== undefined) await writeFile(file, text);
    await expect(startTestServer({ flags: { auth: 'required', adminKeyFile: file } })).rejects.toThrow(message);
  });
});
