import http from 'node:http';
import net from 'node:net';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { connectClient } from '../../src/client/index.ts';
import { COMMANDS } from '../../src/rpc/refusal.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { MAIN_LINE, plantTree, treeId } from './grove.ts';
import { runCli } from './run_cli.ts';

/** A port on which nobody listens: the system has just assigned and released it. */
async function closedPort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as net.AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

describe('the command line', () => {
  it.each(['demo', 'runs', 'run', 'watch', 'tree', 'search', 'tail'])(
    '%s --help shows its flags and examples',
    async (command) => {
      const { code, stdout, stderr } = await runCli([command, '--help']);
      expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
      expect(stdout).toContain(`Usage: anabranch ${command}`);
      for (const part of ['--address <HOST:PORT>', '--database <URL>', '--json', '\nExamples:\n']) {
        expect(stdout).toContain(part);
      }
      expect(stdout).not.toContain('default: []');
    },
  );

  it.each(Object.values(COMMANDS))('has the command %s, which an error of the server names', async (command) => {
    const words = command.slice('`anabranch '.length, -1).split(' ');
    expect((await runCli([...words, '--help'])).stdout).toContain(`Usage: anabranch ${words.join(' ')}`);
  });

  it.each([76, 80, 100])(
    '--help of every command fits a terminal of %i columns, and says the same as a wide one',
    async (columns) => {
      const { stdout: root } = await runCli(['--help']);
      const commands = [...root.matchAll(/^ {2}([a-z-]+) /gm)]
        .map(([, name]) => [name!])
        .filter(([name]) => name !== 'help');
      const all = [[], ...commands, ...['plan', 'apply', 'set', 'list', 'delete'].map((name) => ['retention', name])];
      expect(all.length).toBeGreaterThan(20);
      for (const command of all) {
        const [narrow, wide] = await Promise.all(
          [columns, 400].map((width) => runCli([...command, '--help'], { terminal: true, columns: width })),
        );
        for (const line of narrow!.stdout.split('\n')) expect(line.length).toBeLessThanOrEqual(columns);
        const words = (text: string) => text.replaceAll(/ \\\n/g, ' ').split(/\s+/);
        expect(words(narrow!.stdout)).toEqual(words(wide!.stdout));
      }
    },
  );

  it.each([
    [
      ['serve', '--port', '3000'],
      "error: unknown option '--port': use --listen HOST:PORT, for example --listen 127.0.0.1:50051",
    ],
    [
      ['tree', '--port=3000'],
      "error: unknown option '--port': use --address HOST:PORT, for example --address 127.0.0.1:50051",
    ],
    [
      ['--host', 'x', 'serve'],
      "error: unknown option '--host': use serve --listen HOST:PORT, for example serve --listen 127.0.0.1:50051",
    ],
  ])('%j names the option that is meant', async (args, message) => {
    expect(await runCli(args)).toEqual({ code: 2, stdout: '', stderr: `${message}\n` });
  });

  it('lists its commands, except the internal processes of the demo', async () => {
    const { stdout } = await runCli(['--help']);
    for (const command of [
      'serve',
      'migrate',
      'demo',
      'runs',
      'run',
      'watch',
      'tree',
      'picture',
      'page',
      'search',
      'tail',
      'retention',
    ])
      expect(stdout).toContain(`\n  ${command} `);
    expect(stdout).not.toContain('demo-');
  });

  it.each([
    [['tree', `${MAIN_LINE}@`], 'expected a step number or a tag after @'],
    [['tail', 'x'], 'TRAJECTORY is "x": expected the id of a trajectory'],
    [['run'], "missing required argument 'RUN'"],
    [['watch'], "missing required argument 'RUN'"],
    [['run', ''], 'RUN is "": expected the id or the name of a run.'],
    [['run', 'x', '--limit', '0'], '--limit is "0": expected a whole number, 1 to 100000.'],
    [['run', 'x', '--stages', '1001'], '--stages is "1001": expected a whole number, 0 to 1000.'],
    [['runs', '--limit', '0'], '--limit is "0": expected a whole number, 1 to 100000.'],
    [
      ['runs', '--status', 'runing'],
      '--status is "runing": expected one or more of pending, initializing, running, paused,',
    ],
    [['runs', '--label', 'model'], '--label is "model": expected KEY=VALUE, such as model=pid.'],
    [['search'], "missing required argument 'TEXT'"],
    [['search', ''], 'TEXT has 0 bytes: expected 1 to 256.'],
    [['search', 'é'.repeat(129)], 'TEXT has 258 bytes: expected 1 to 256.'],
    [['search', 'x', '--limit', '0'], '--limit is "0": expected a whole number, 1 to 1000000.'],
    [['search', 'x', '--tree', 'y'], 'TRAJECTORY is "y": expected the id of a trajectory'],
    [['search', 'x', '--tree', MAIN_LINE, '--task', 'y'], "'--tree <ID>' cannot be used with option '--task <ID>'"],
    [['tail'], "missing required argument 'TRAJECTORY'"],
    [['tail', `${MAIN_LINE}@`], 'expected a step number or a tag after @'],
    [['tail', MAIN_LINE, '-n', 'x'], '-n is "x": expected a whole number, 0 or more.'],
    [['tail', MAIN_LINE, '--from', '-3'], '--from is "-3": expected a whole number, 0 or more.'],
    [['tail', `${MAIN_LINE}@3`, '-n', '4'], '-n and @ both set the first step: use only one of them.'],
    [['tail', MAIN_LINE, '--from', '3', '-n', '4'], '-n and --from both set the first step: use only one of them.'],
    [['tree', '--limit', '0'], '--limit is "0": expected a whole number, 1 to 1000.'],
    [['demo', '--seed', 'abc'], '--seed is "abc": expected a whole number, 0 to 4294967295.'],
    [['tree', '--address', 'x:1', '--database', 'y'], 'cannot be used with option'],
    [['tree', '--address', 'http://'], '--address: address is "http://": expected host:port'],
    [['tree', '--database', 'mysql://x'], '--database begins with "mysql://": expected sqlite:PATH'],
    [['tree', '--database', 'sqlite:/nowhere/a.db'], 'the file /nowhere/a.db does not exist'],
    [['tree', '--colour'], "unknown option '--colour'"],
    [['frob'], "unknown command 'frob'"],
  ])('refuses %j with a one-line error and exit code 2', async (args, words) => {
    const { code, stdout, stderr } = await runCli(args);
    expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
    expect(stderr).toContain(words);
    expect(stderr.trim().split('\n')).toHaveLength(1);
  });

  it.each([['tree'], ['tail', MAIN_LINE], ['search', 'x'], ['demo'], ['runs'], ['run', 'x'], ['watch', MAIN_LINE]])(
    '%s without a server prints how to start one',
    async (...args) => {
      const address = `127.0.0.1:${await closedPort()}`;
      const { code, stderr } = await runCli([...args, '--address', address]);
      expect(code).toBe(1);
      expect(stderr).toBe(
        `No server answers at ${address} (--address). Start one with \`npm run -s anabranch -- serve\`, ` +
          'or open a database without a server: --database sqlite:.anabranch/data.db\n',
      );
    },
  );

  it('reports that another program listens at the address', async () => {
    const other = http.createServer((_, response) => void response.writeHead(404).end()).listen(0, '127.0.0.1');
    await new Promise((resolve) => other.once('listening', resolve));
    const { port } = other.address() as net.AddressInfo;
    const { code, stderr } = await runCli(['tree', '--address', `127.0.0.1:${port}`]);
    other.close();
    expect(code).toBe(1);
    expect(stderr).toMatch(/at 127\.0\.0\.1:\d+ \(--address\)/);
    expect(stderr.trim().split('\n')).toHaveLength(1);
  });
});

describe('the command line with a server', () => {
  let server: TestServer;
  beforeAll(async () => {
    server = await startTestServer();
    const client = connectClient({ address: server.url });
    await plantTree(client);
    client.close();
  });
  afterAll(() => server?.stop());

  it.each([
    [['tree', treeId(404)], `Trajectory ${treeId(404)} does not exist`, 'tree` lists what exists.'],
    [['tree', 'main line'], 'No run has the name "main line"', 'runs` lists the runs.'],
    [['run', treeId(404)], treeId(404), 'runs` lists what exists.'],
    [['watch', 'x', '-e', 'nowhere'], 'nowhere', 'runs` lists what exists.'],
    [['runs', '-e', 'nowhere'], 'nowhere', 'runs` lists what exists.'],
    [['runs', '--page', 'x'], 'page_token', '(INVALID_PAGE_TOKEN)'],
    [['tail', `${MAIN_LINE}@nope`], 'nope', '(TAG_NOT_FOUND)'],
    [['tail', `${MAIN_LINE}@9999`], '9999', '(RANGE_BEYOND_END)'],
  ])('explains that %j was not found, with exit code 1', async (args, what, next) => {
    const { code, stderr } = await runCli([...args, '--address', server.url]);
    expect(code).toBe(1);
    expect(stderr).toContain(what);
    expect(stderr).toContain(next);
    expect(stderr.trim().split('\n')).toHaveLength(1);
  });

  it('--database on a file that a server uses names that server', async () => {
    const { code, stderr } = await runCli(['tree', '--database', server.database.url]);
    expect(code).toBe(1);
    expect(stderr).toContain(String(process.pid));
    expect(stderr.trim().split('\n')).toHaveLength(1);
  });
});

describe('--database', () => {
  it('reads a database without a server, and releases it afterwards', async () => {
    await using database = await createMigratedDatabase('sqlite');
    const server = await startTestServer({ database });
    const client = connectClient({ address: server.url });
    await plantTree(client);
    client.close();
    await server.stop();
    for (let i = 0; i < 2; i++) {
      const { code, stdout } = await runCli(['tree', '--database', database.url]);
      expect({ code, stdout }).toMatchObject({ code: 0, stdout: expect.stringContaining(MAIN_LINE) });
    }
    const { stdout } = await runCli(['tail', MAIN_LINE, '-n', '1', '--database', database.url]);
    expect(stdout).toContain('bend 30');
  });
});
