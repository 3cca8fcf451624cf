import { existsSync, readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import { ROOMS } from '../house/rooms.ts';

const ROOT = resolve(import.meta.dirname, '../..');
const document = read('CONTRIBUTING.md');

it('docs/architecture.md names every room of the sources, or a folder that contains it', () => {
  const architecture = read('docs/architecture.md');
  const missing = Object.keys(ROOMS).filter((room) => {
    const parts = room.split('/');
    return !parts.some((_, i) => i > 0 && architecture.includes(`\`${parts.slice(0, i + 1).join('/')}\``));
  });
  expect(missing).toEqual([]);
});

describe('CONTRIBUTING.md', () => {
  it('names only files that exist', () => {
    const named = [...document.matchAll(/`([\w./-]+\.(?:ts|js|json|md|proto|binpb|txt|yaml|yml))`/gu)];
    expect(named.length).toBeGreaterThan(20);
    expect(named.map(([, path = '']) => path).filter((path) => !existsSync(resolve(ROOT, path)))).toEqual([]);
  });

  it('names only npm scripts that exist', () => {
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> };
    const named = [...document.matchAll(/npm run ([\w:]+)/gu)].map(([, name = '']) => name);
    expect(named.filter((name) => !(name in scripts))).toEqual([]);
  });

  it('lists the steps of .ci/run, in order', () => {
    const steps = [...read('.ci/run').matchAll(/^(?:after=\$! )?(?:step|start) '([^']+)'/gmu)].map(
      ([, heading]) => heading,
    );
    const listed = [...sectionOf('Continuous integration').matchAll(/^\| (.+?) \|/gmu)]
      .map(([, heading]) => heading)
      .slice(1);
    expect(steps.length).toBeGreaterThan(5);
    expect(listed).toEqual(steps);
  });
});

function sectionOf(title: string): string {
  return document.split(/^## /mu).find((section) => section.startsWith(`${title}\n`)) ?? '';
}

function read(path: string): string {
  return readFileSync(resolve(ROOT, path), 'utf8');
}
