import { execFileSync, spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import { describe, expect, it } from 'vitest';
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

function run([command = '', ...before]: readonly string[], ...args: string[]) {
  const { status, stdout, stderr } = spawnSync(command, [...before, BIN, ...args], { encoding: 'utf8', stdio: 'pipe' });
  return { status, stdout, stderr };
}

const tooOld = ['18.0.0', '20.20.2', '24.16.9'].map((version) => ({ version, command: claiming(version) }));

describe('bin/anabranch.js', () => {
  it.each([...tooOld, ...oldOnPath()])('prints on Node $version, in one line, that it is too old, and fails', (old) => {
    const { status, stdout, stderr } = run(old.command, '--version');
    expect(status).toBe(1);
    expect(stdout).toBe('');
    expect(stderr).toMatch(/^anabranch needs Node 24\.17 or newer, and this is Node \S+ \(.+\)\. Get .+\n$/);
    expect(stderr).toContain(`this is Node ${old.version} `);
  });

  it.each(['24.17.0', '25.0.0', '26.10.0'])('starts on Node %s', (version) => {
    expect(run(claiming(version), '--version')).toEqual({ status: 0, stdout: `${manifest.version}\n`, stderr: '' });
  });

  it('needs a newer Node than the package: "engines" also admits versions that run only the client', () => {
    expect(manifest.engines.node).toBe('>=20.3.0');
    expect(readFileSync(BIN, 'utf8')).toContain('const WANTED = [24, 17];');
  });
});
