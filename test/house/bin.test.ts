import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ROOT } from './source.ts';

const BIN = path.join(ROOT, 'bin/anabranch.js');
const manifest = JSON.parse(readFileSync(path.join(ROOT, 'package.json'), 'utf8')) as {
  version: string;
  engines: { node: string };
};

/** This Node, reporting another version. */
function claiming(version: string): string[] {
  const lie = `Object.defineProperty(process.versions, 'node', { value: ${JSON.stringify(version)} })`;
  return [process.execPath, '--import', `data:text/javascript,${encodeURIComponent(lie)}`];
}

/** Versions of Node that are too old, if the machine has any on its PATH. */
function oldOnPath(): { version: string; command: string[] }[] {
  const folders = [...new Set((process.env.PATH ?? '').split(path.delimiter))];
  return folders
    .map((folder) => path.join(folder, 'node'))
    .map((command) => ({ command: [command], version: versionOf(command) }))
    .filter(({ version }) => /^(1\d|20|22)\./.test(version));
}

function versionOf(command: string): string {
  try {
    return execFileSync(command, ['-p', 'process.versions.node'], { encoding: 'utf8', stdio: 'pipe' }).trim();
  } catch {
    return ''; // no Node in this folder
  }
}

let folder: string;
/** The command without the packages beside it. */
let alone: string;

beforeAll(() => {
  folder = mkdtempSync(path.join(os.tmpdir(), 'anabranch-bin-'));
  alone = path.join(folder, 'anabranch.js');
  copyFileSync(BIN, alone);
  writeFileSync(path.join(folder, 'package.json'), '{"type":"module"}');
});
afterAll(() => rmSync(folder, { recursive: true }));

/** Runs the command in another folder than its own. */
function run([command = '', ...before]: readonly string[], bin: string, ...args: string[]) {
  const options = { encoding: 'utf8', stdio: 'pipe', cwd: folder } as const;
  const { status, stdout, stderr } = spawnSync(command, [...before, bin, ...args], options);
  return { status, stdout, stderr };
}

const tooOld = ['18.0.0', '20.20.2', '24.16.9'].map((version) => ({ version, command: claiming(version) }));

describe('bin/anabranch.js', () => {
  it.each([tooOld[1]!, ...oldOnPath().slice(0, 1)])(
    'runs on the Node of the package if Node $version starts it',
    (old) => {
      const found = { status: 0, stdout: `${manifest.version}\n`, stderr: '' };
      expect(run(old.command, BIN, '--version')).toEqual(found);
    },
  );

  it('ends as the command does that it has started on another Node', () => {
    expect(run(claiming('20.0.0'), BIN, '--nonsense')).toMatchObject({ status: 2, stdout: '' });
  });

  it('serves until it gets SIGTERM, also if an old Node starts it', async () => {
    const [command = '', ...before] = claiming('20.0.0');
    const database = `sqlite:${path.join(folder, 'data.db')}`;
    const args = ['serve', '--json', '--listen', '127.0.0.1:0', '--database', database];
    const wrapper = spawn(command, [...before, BIN, ...args], { cwd: folder, stdio: ['ignore', 'pipe', 'ignore'] });
    const ended = once(wrapper, 'exit');
    const lines = createInterface(wrapper.stdout)[Symbol.asyncIterator]();
    expect(JSON.parse((await lines.next()).value ?? '')).toMatchObject({ event: 'ready' });
    wrapper.kill('SIGTERM');
    expect(await ended).toEqual([0, null]);
  });

  it.each(tooOld)('without this Node, prints on Node $version in one line that it is too old, and fails', (old) => {
    const { status, stdout, stderr } = run(old.command, alone, '--version');
    expect(status).toBe(1);
    expect(stdout).toBe('');
    expect(stderr).toMatch(/^anabranch needs Node 24\.17 or newer, and this is Node \S+ \(.+\)\. Get .+\n$/);
    expect(stderr).toContain(`this is Node ${old.version} `);
  });

  it.each(['24.17.0', '25.0.0', '26.10.0'])('starts on Node %s', (version) => {
    expect(run(claiming(version), BIN, '--version')).toEqual({
      status: 0,
      stdout: `${manifest.version}\n`,
      stderr: '',
    });
  });

  it('needs a newer Node than the package: "engines" also admits versions that run only the client', () => {
    expect(manifest.engines.node).toBe('>=20.3.0');
    expect(readFileSync(BIN, 'utf8')).toContain('const WANTED = [24, 17];');
  });
});
