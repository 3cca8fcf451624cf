import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createAuthority, writeIssued } from '../support/certificates.ts';
import { createDatabase, ENGINES } from '../support/database.ts';
import { makeFleFile } from '../support/fle_file.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { spawnServer } from '../support/spawned-server.ts';
import { startTestServer } from '../support/test-server.ts';
import { speak } from '../wire/raw.ts';
import { runCli } from './run_cli.ts';

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'anabranch-serve-'));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

type Env = Readonly<Record<string, string>>;

/** Runs `serve` until it reports that it is ready, then asks it to stop. */
async function serveOnce(args: readonly string[], env: Env = {}) {
  const stop = new AbortController();
  const free = ['--listen', '127.0.0.1:0'];
  const options = { env, signal: stop.signal, onOutput: () => stop.abort() };
  return runCli(['serve', ...(args.includes('--listen') ? [] : free), ...args], options);
}

describe('serve', () => {
  it('prints address, store and one command to try', async () => {
    const file = path.join(folder, 'new', 'deep', 'a.db');
    const { code, stdout } = await serveOnce(['--database', `sqlite:${file}`]);
    expect(code).toBe(0);
    const [, url] = /listens on (http:\/\/127\.0\.0\.1:\d+) /.exec(stdout) ?? [];
    expect(stdout).toContain(`Its page for browsers: ${url}/\n`);
    expect(stdout).toContain(`It stores in SQLite ${file}. The database was chosen by --database.\n`);
    expect(stdout).toContain(`curl -s ${url}/anabranch.v1.TrajectoryService/CreateTrajectory`);
  });

  it('--json prints the same in one line that a script can parse', async () => {
    const { code, stdout, stderr } = await serveOnce(['--json', '--log-level', 'warn'], {
      DATABASE_URL: `sqlite:${path.join(folder, 'json.db')}`,
    });
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    expect(stdout.trim().split('\n')).toHaveLength(1);
    const ready = JSON.parse(stdout) as { url: string; port: number };
    expect(ready).toEqual({
      event: 'ready',
      url: `http://127.0.0.1:${ready.port}`,
      host: '127.0.0.1',
      port: expect.any(Number),
      store: `SQLite ${path.join(folder, 'json.db')}`,
      storeChosenBy: 'DATABASE_URL',
    });
  });

  it('logs to stderr, as text or as JSON', async () => {
    const database = `sqlite:${path.join(folder, 'log.db')}`;
    const people = await serveOnce(['--database', database, '--log-format', 'pretty']);
    expect(people.stderr).toMatch(/INFO.*: stopped/);
    const machines = await serveOnce(['--database', database]);
    const lines = machines.stderr
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { time: string; level: string; msg: string });
    expect(lines.at(-1)).toEqual({ time: expect.any(String), level: 'info', msg: 'stopped' });
    expect(new Date(lines[0]!.time).toISOString()).toBe(lines[0]!.time);
  });

  it('warns of a password that the process list shows, and prints it nowhere', async () => {
    const { code, stderr, stdout } = await serveOnce(['--database', 'postgres://ann:s3cret@127.0.0.1:1/x']);
    expect(code).toBe(1);
    expect(stderr).toContain('DATABASE_URL');
    expect(stderr + stdout).not.toContain('s3cret');
  });

  it('reports a port in use in one line', async () => {
    const holder = net.createServer().listen(0, '127.0.0.1');
    await new Promise((resolve) => holder.once('listening', resolve));
    const { port } = holder.address() as net.AddressInfo;
    const database = `sqlite:${path.join(folder, 'port.db')}`;
    const { code, stdout, stderr } = await serveOnce(['--listen', `127.0.0.1:${port}`, '--database', database]);
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr.trim()).toBe(
      `Cannot listen on 127.0.0.1:${port}: the port is in use. Stop the program that uses it, or choose another port with --listen HOST:PORT.`,
    );
    holder.close();
    expect((await serveOnce(['--database', database])).code, 'the file was released').toBe(0);
  });

  it('reports a file that another server uses in one line, with that server', async () => {
    const held = await startTestServer();
    const { code, stdout, stderr } = await serveOnce(['--database', held.database.url]);
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toContain(`in use by process ${process.pid}`);
    await held.stop();
  });

  it('names its address in the file of the holder, and after a restart the new one', async () => {
    const file = path.join(folder, 'holder.db');
    for (let i = 0; i < 2; i += 1) {
      const { stdout } = await serveOnce(['--json', '--database', `sqlite:${file}`]);
      const { url } = JSON.parse(stdout) as { url: string };
      const since = String.raw`\d{4}-\d\d-\d\dT[\d:.]+Z`;
      expect(await readFile(`${file}.holder`, 'utf8')).toMatch(
        new RegExp(`^process ${process.pid} on \\S+, since ${since}, at ${url}\n$`, 'u'),
      );
    }
  });

  it.each([
    ['an invalid address', ['--listen', 'nowhere'], 2, '--listen is "nowhere": expected HOST:PORT'],
    [
      'the address of another machine',
      ['--listen', '127.0.0.1:0', '--listen', '192.0.2.1:0', '--insecure'],
      1,
      'does not have that address',
    ],
    ['all addresses without --insecure', ['--listen', '0.0.0.0:0'], 2, '--insecure'],
    ['an invalid database', ['--database', 'mysql://x'], 2, '--database begins with "mysql://": expected sqlite:PATH'],
    ['an unreachable Postgres', ['--database', 'postgres://ann@127.0.0.1:1/x'], 1, 'ECONNREFUSED'],
    ['an unknown flag', ['--lisen', 'x'], 2, 'Did you mean --listen?'],
    ['an extra argument', ['now'], 2, 'too many arguments'],
  ])('reports %s in one line, without a stack', async (_what, args, code, words) => {
    const database = ['--database', `sqlite:${path.join(folder, 'refused.db')}`];
    const result = await serveOnce(args.includes('--database') ? args : [...args, ...database]);
    expect(result.stderr).toContain(words);
    expect(result.stderr).not.toMatch(/\n\s+at /);
    expect({ code: result.code, stdout: result.stdout }).toEqual({ code, stdout: '' });
  });

  it('reports a file that is no database in one line', async () => {
    const file = path.join(folder, 'text.db');
    await writeFile(file, 'once upon a time, there was a file that was no database at all');
    const { code, stderr } = await serveOnce(['--database', `sqlite:${file}`]);
    expect(code).toBe(1);
    expect(stderr.trim().split('\n')).toHaveLength(1);
    expect(stderr).toContain(file);
  });

  it('D6: with the settings of FLE, its database is refused in one line that names the setting, and left unchanged', async () => {
    const file = path.join(folder, 'skills.db');
    makeFleFile(file);
    const before = await readFile(file);
    for (const command of [serveOnce, (args: readonly string[], env: Env) => runCli(['migrate', ...args], { env })]) {
      const { code, stdout, stderr } = await command([], { FLE_DB_TYPE: 'sqlite', SQLITE_DB_FILE: file });
      expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
      expect(stderr.trim().split('\n')).toHaveLength(1);
      expect(stderr).toContain(`${file} cannot be used as a database of Anabranch: it holds tables of another program`);
      expect(stderr).toContain('To use another file, set --database sqlite:PATH or DATABASE_URL.');
      expect(stderr).toContain('(The database was chosen by FLE_DB_TYPE.)');
    }
    expect((await readFile(file)).equals(before)).toBe(true);
    expect((await readdir(folder)).filter((name) => name.startsWith('skills.db'))).toEqual(['skills.db']);
  });

  it('warns that POSTGRES_PASSWORD alone does not select Postgres, and says what selected the database', async () => {
    const env = { POSTGRES_PASSWORD: 's3cret', SQLITE_DB_FILE: path.join(folder, 'silent.db') };
    const { code, stdout, stderr } = await serveOnce(['--log-format', 'json'], env);
    expect(code).toBe(0);
    expect(stdout).toContain('The database was chosen by SQLITE_DB_FILE.');
    expect(stderr).toContain('POSTGRES_PASSWORD is set but not used: the database was chosen by SQLITE_DB_FILE.');
    const lines = stderr
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as { msg: string; store?: string });
    expect(lines).toContainEqual(
      expect.objectContaining({
        msg: 'the database was chosen by SQLITE_DB_FILE',
        store: `SQLite ${env.SQLITE_DB_FILE}`,
      }),
    );
    expect(stdout + stderr).not.toContain('s3cret');
  });

  it('reports in one line a folder that cannot be created', async () => {
    const file = path.join(folder, 'file');
    await writeFile(file, '');
    const { code, stderr } = await serveOnce(['--database', `sqlite:${path.join(file, 'a.db')}`]);
    expect(code).toBe(1);
    expect(stderr.trim().split('\n')).toHaveLength(1);
  });

  it('--help shows every setting with its variable and its default', async () => {
    const { code, stdout } = await runCli(['serve', '--help']);
    expect(code).toBe(0);
    for (const part of [
      '--listen <ADDRESS>',
      'ANABRANCH_LISTEN',
      '127.0.0.1:50051',
      '--database <URL>',
      '--insecure',
      '--log-level <LEVEL>',
    ]) {
      expect(stdout).toContain(part);
    }
  });
});

describe.each(ENGINES)('the process, on %s', (engine) => {
  it('migrate creates the schema, and the server uses it', async () => {
    await using database = await createDatabase(engine);
    const env = { DATABASE_URL: database.url };
    for (let i = 0; i < 2; i += 1) {
      const { code, stdout } = await runCli(['migrate'], { env });
      expect({ code, stdout }).toEqual({
        code: 0,
        stdout: expect.stringMatching(/^(SQLite|Postgres) .* is up to date\.\n$/),
      });
    }
    const { stdout } = await runCli(['migrate', '--json'], { env });
    expect(JSON.parse(stdout)).toMatchObject({ event: 'migrated' });
    expect((await serveOnce([], env)).code).toBe(0);
  });
});

describe('flags that repeat', () => {
  it('A7: --allowed-host and --allowed-origin accept every value given', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const hosts = ['--allowed-host', 'a.example', '--allowed-host', 'b.example'];
    const origins = ['--allowed-origin', 'https://c.example', '--allowed-origin', 'https://d.example'];
    const stop = new AbortController();
    const ready = Promise.withResolvers<{ readonly port: number }>();
    const args = ['serve', '--json', '--listen', '127.0.0.1:0', ...hosts, ...origins];
    const serving = runCli(args, {
      env: { DATABASE_URL: database.url },
      signal: stop.signal,
      onOutput: (text) => ready.resolve(JSON.parse(text)),
    });
    const { port } = await ready.promise;
    try {
      for (const [host, origin, status] of [
        ['a.example', 'https://c.example', 200],
        ['b.example', 'https://d.example', 200],
        ['c.example', 'https://c.example', 421],
        ['a.example', 'https://a.example', 403],
      ] as const) {
        const request = `GET /healthz HTTP/1.1\r\nHost: ${host}\r\nOrigin: ${origin}\r\nConnection: close\r\n\r\n`;
        expect(await speak(port, request), `${host} ${origin}`).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
      }
    } finally {
      stop.abort();
    }
    expect((await serving).code).toBe(0);
  });
});

describe('A13: a server on a Unix socket', () => {
  const listen = () => `unix:${path.join(folder, 'run', 'sock')}`;

  it('announces it and can be called there', async () => {
    const file = path.join(folder, 'socket.db');
    const { code, stdout } = await serveOnce(['--listen', listen(), '--database', `sqlite:${file}`]);
    expect(code).toBe(0);
    expect(stdout).toContain(`Anabranch listens on ${listen()} (`);
    expect(stdout).toContain(`curl -s --unix-socket ${listen().slice(5)} http://localhost/anabranch.v1.`);
    expect(stdout).not.toContain('Its page');
    const machines = await serveOnce(['--json', '--listen', listen(), '--database', `sqlite:${file}`]);
    expect(JSON.parse(machines.stdout)).toEqual({
      event: 'ready',
      url: listen(),
      store: `SQLite ${file}`,
      storeChosenBy: '--database',
    });
  });

  it('replaces the socket of a killed server, and refuses that of a running one', async () => {
    await using database = await createMigratedDatabase('sqlite');
    await using other = await createMigratedDatabase('sqlite');
    const killed = await spawnServer({ database: database.url, listen: listen() });
    await killed.kill();
    await using next = await spawnServer({ database: database.url, listen: listen() });
    expect(next.url).toBe(listen());
    const { code, stderr } = await serveOnce(['--listen', listen(), '--database', other.url]);
    expect({ code, stderr: stderr.trim() }).toEqual({
      code: 1,
      stderr: `Cannot listen on ${listen()}: another server uses the socket. Stop it, or choose another path.`,
    });
  });
});

describe('A12: a server with TLS', () => {
  it('announces https, and names its certificate in the log', async () => {
    const { cert, key } = createAuthority().issue({ commonName: 'anabranch.example' });
    const [certFile, keyFile] = [path.join(folder, 'tls.crt'), path.join(folder, 'tls.key')];
    await Promise.all([writeFile(certFile, cert), writeFile(keyFile, key)]);
    const args = ['--database', `sqlite:${path.join(folder, 'tls.db')}`, '--tls-cert', certFile, '--tls-key', keyFile];
    const { code, stdout, stderr } = await serveOnce([...args, '--log-format', 'json']);
    expect(code).toBe(0);
    expect(stdout).toMatch(/listens on https:\/\/127\.0\.0\.1:\d+ /);
    expect(stdout).toMatch(/curl -s https:.*CreateTrajectory --cacert FILE/);
    expect(stderr).toContain('"subject":"CN=anabranch.example"');
    const other = createAuthority().issue();
    await writeFile(keyFile, other.key);
    const refused = await serveOnce(args);
    expect({ code: refused.code, stderr: refused.stderr.trim() }).toEqual({
      code: 1,
      stderr: `TLS is not possible: ${keyFile} is not the key of ${certFile}.`,
    });
  });
});

describe('the process', () => {
  const signals = { sqlite: 'SIGINT', postgres: 'SIGTERM' } as const;
  it.each(ENGINES.map((engine) => [signals[engine], engine] as const))(
    'A2: exits on %s after an orderly shutdown, with code 0 (on %s)',
    async (signal, engine) => {
      await using database = await createMigratedDatabase(engine);
      await using server = await spawnServer({ database: database.url });
      expect(await (await fetch(`${server.url}/healthz`)).text()).toBe('ok');
      server.signal(signal);
      expect(await server.exited).toEqual({ code: 0, signal: null });
      expect(server.output()).toContain('stopped');
    },
  );

  it('exits with code 0 when no client has been connected for the seconds of --exit-when-unused', async () => {
    await using database = await createMigratedDatabase('sqlite');
    await using server = await spawnServer({ database: database.url, args: ['--exit-when-unused', '1'] });
    expect(await server.exited).toEqual({ code: 0, signal: null });
    expect(server.output()).toContain('no client has been connected');
  });

  it('A2: accepts calls after SIGTERM for the seconds of --lame-duck, but not after SIGINT', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const args = ['--lame-duck', '300'];
    {
      await using server = await spawnServer({ database: database.url, args });
      server.signal('SIGTERM');
      await expect.poll(server.output, { interval: 5 }).toContain('calls are accepted for 300 more seconds');
      expect((await fetch(`${server.url}/readyz`)).status).toBe(503);
      expect((await fetch(`${server.url}/livez`)).status).toBe(200);
      server.signal('SIGTERM');
      expect(await server.exited).toEqual({ code: 143, signal: null });
    }
    await using server = await spawnServer({ database: database.url, args });
    server.signal('SIGINT');
    expect(await server.exited).toEqual({ code: 0, signal: null });
  });

  it('A2: stops on SIGHUP if it has no files to read again, with a line of the log', async () => {
    await using database = await createMigratedDatabase('sqlite');
    await using server = await spawnServer({ database: database.url });
    server.signal('SIGHUP');
    expect(await server.exited).toEqual({ code: 0, signal: null });
    expect(server.output()).toMatch(/SIGHUP: the server stops[\s\S]*stopped/);
  });

  it('stops on SIGHUP of the terminal that was closed, though it has a certificate', async () => {
    const hangup = Promise.withResolvers<() => void>();
    await using database = await createMigratedDatabase('sqlite');
    const { tlsCert, tlsKey } = writeIssued(createAuthority().issue());
    const tls = ['--tls-cert', tlsCert, '--tls-key', tlsKey];
    const terminal = Object.assign(new PassThrough(), { isTTY: true });
    const { code, stderr } = await runCli(['serve', '--listen', '127.0.0.1:0', '--database', database.url, ...tls], {
      stdin: terminal,
      onHangup: hangup.resolve,
      onOutput: () => void hangup.promise.then((hangUp) => hangUp()),
    });
    expect(code).toBe(0);
    expect(stderr).toMatch(/SIGHUP: the server stops[\s\S]*stopped/);
  });

  it('reads its certificate again on SIGHUP, keeps the one in use if the new one is wrong, and serves on', async () => {
    const authority = createAuthority();
    const { tlsCert, tlsKey } = writeIssued(authority.issue({ commonName: 'first' }));
    await using database = await createMigratedDatabase('sqlite');
    const args = ['--tls-cert', tlsCert, '--tls-key', tlsKey];
    await using server = await spawnServer({ database: database.url, args });
    const { cert, key } = authority.issue({ commonName: 'second' });
    await writeFile(tlsCert, cert);
    await writeFile(tlsKey, key);
    server.signal('SIGHUP');
    await expect.poll(server.output, { interval: 5 }).toContain('were read again');
    expect(server.output()).toContain('CN=second');
    await writeFile(tlsKey, 'no key');
    server.signal('SIGHUP');
    await expect.poll(server.output, { interval: 5 }).toContain('the certificate in use stays');
    expect(await server.terminate()).toEqual({ code: 0, signal: null });
  });

  it('exits at once on a second signal', async () => {
    await using database = await createMigratedDatabase('sqlite');
    await using server = await spawnServer({ database: database.url });
    const open = net.connect(server.port, server.host);
    open.write(
      'POST /anabranch.v1.TrajectoryService/CreateTrajectory HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nContent-Type: application/json\r\n\r\n{',
    );
    await new Promise((resolve) => open.once('connect', resolve));
    server.signal('SIGTERM');
    await expect.poll(server.output, { interval: 5 }).toContain('stopping');
    server.signal('SIGTERM');
    expect(await server.exited).toEqual({ code: 143, signal: null });
    open.destroy();
  });

  it('exits on an uncaught error after an orderly shutdown, with code 1 and the error as text', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const planted = "process.once('SIGUSR2', () => { throw new Error('planted') })";
    const nodeArgs = ['--import', `data:text/javascript,${encodeURIComponent(planted)}`];
    await using server = await spawnServer({ database: database.url, nodeArgs });
    server.signal('SIGUSR2');
    expect(await server.exited).toEqual({ code: 1, signal: null });
    expect(server.output()).toContain('Error: planted');
    expect(server.output()).toContain('stopped');
  });
});
