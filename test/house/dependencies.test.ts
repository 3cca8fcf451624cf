import { lstatSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import { describe, expect, it } from 'vitest';
import { ROOT } from './source.ts';

const MIB = 1024 * 1024;
/** For the platform whose packages the table names. Other platforms may differ by a few MB. */
const MOST = process.platform === 'linux' && process.arch === 'x64' ? 522 : 622;

const document = readFileSync(path.join(ROOT, 'docs/dependencies.md'), 'utf8');
const table = [...document.matchAll(/^\| `([^`]+)` \| (\d+) \| .+ \|$/gm)].map((row) => ({
  name: row[1] ?? '',
  megabytes: Number(row[2]),
}));
const sizes = sizesOfPackages();

/** Space on disk of each package, with everything below it. Caches are not packages. */
function sizesOfPackages(): Map<string, number> {
  const modules = path.join(ROOT, 'node_modules');
  const names = readdirSync(modules).flatMap((name) => {
    if (name.startsWith('.')) return [];
    return name.startsWith('@') ? readdirSync(path.join(modules, name)).map((each) => `${name}/${each}`) : [name];
  });
  return new Map(names.map((name) => [name, spaceOf(path.join(modules, name)) / MIB]));
}

function spaceOf(place: string): number {
  const found = lstatSync(place);
  const own = found.blocks * 512;
  if (!found.isDirectory()) return own;
  return readdirSync(place).reduce((sum, name) => sum + spaceOf(path.join(place, name)), own);
}

/** The same package has another name on another platform. */
function withoutPlatform(name: string): string {
  return name.replace(/(bin-)?(linux|darwin)-(x64|arm64)(-gnu)?/, 'PLATFORM');
}

describe('node_modules', () => {
  it(`has at most ${MOST} MB`, () => {
    const total = [...sizes.values()].reduce((sum, size) => sum + size, 0);
    expect(total, 'see docs/dependencies.md; run "npm install"').toBeLessThanOrEqual(MOST);
  });

  it('has no package above 10 MB that docs/dependencies.md does not list with reason and size', () => {
    const large = [...sizes].filter(([, size]) => size > 10);
    const listed = new Map(table.map(({ name, megabytes }) => [withoutPlatform(name), megabytes]));
    expect(large.map(([name]) => withoutPlatform(name)).sort()).toEqual([...listed.keys()].sort());
    for (const [name, size] of large) {
      const stated = listed.get(withoutPlatform(name)) ?? 0;
      expect(Math.abs(size - stated), `${name} has ${size} MB, not ${stated}`).toBeLessThanOrEqual(stated * 0.2 + 1);
    }
  });
});
