import { builtinModules } from 'node:module';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { ROOMS } from './rooms.ts';
import { importsOf, type SourceFile, sources, withoutComments } from './source.ts';

const files = [...sources('src'), ...sources('page/src'), ...sources('integrations/src')];

/** The room of a file, or undefined where the table knows none. */
function roomOf(file: string): string | undefined {
  if (file.startsWith('gen/es/')) return 'gen';
  return Object.keys(ROOMS)
    .filter((room) => file === room || file.startsWith(`${room}/`))
    .sort((a, b) => b.length - a.length)[0];
}

function mayUse(packages: readonly string[], wanted: string): boolean {
  return packages.some((allowed) =>
    allowed.endsWith('*') ? wanted.startsWith(allowed.slice(0, -1)) : wanted === allowed,
  );
}

/** The reason why a file may not import something; undefined if it may. */
function objection(file: string, wanted: string): string | undefined {
  const from = roomOf(file);
  const room = from === undefined ? undefined : ROOMS[from];
  if (room === undefined) return 'is in no room of test/house/rooms.ts';
  if (wanted === '?') return 'computes what it imports';
  if (!wanted.startsWith('.')) {
    if (!wanted.startsWith('node:') && builtinModules.includes(wanted)) return `imports ${wanted} without node:`;
    return mayUse(room.packages, wanted) ? undefined : `may not use the package ${wanted}`;
  }
  const target = path.posix.normalize(path.posix.join(path.posix.dirname(file), wanted));
  const to = roomOf(target);
  if (to !== 'gen' && !/\.(tsx?|css)$/.test(wanted)) return `imports ${wanted}, which does not end in .ts`;
  if (to === from || (to !== undefined && room.rooms.includes(to))) return undefined;
  return `may not know ${target}`;
}

/** Returns the files, packages and Node modules that are loaded when this file is run. Types are erased. */
function loadedBy(start: string): { files: Set<string>; packages: Set<string> } {
  const codeOf = new Map(files.map(({ path: file, code }) => [file, code]));
  const loaded = new Set([start]);
  const packages = new Set<string>();
  for (const file of loaded) {
    const code = (codeOf.get(file) ?? '')
      .replace(/^\s*(import|export) type\b[^;]*;/gm, '')
      .replace(/\bawait import\([^)]*\)/g, '');
    for (const wanted of importsOf(code)) {
      if (wanted.startsWith('.')) loaded.add(path.posix.normalize(path.posix.join(path.posix.dirname(file), wanted)));
      else packages.add(wanted);
    }
  }
  return { files: loaded, packages };
}

/** A parameter or variable named `process` is not the global. */
function usesProcess({ code }: SourceFile): boolean {
  if (/\bnode:process\b/.test(code)) return true;
  const ownName = /[(,]\s*process\s*[:,)]|\b(const|let)\s+process\b/.test(code);
  return !ownName && /(?<![\w.$'"`-])process\s*[.[?]/.test(code);
}

describe('the rooms of the sources', () => {
  it('import only what the dependency table allows', () => {
    const objections = files.flatMap((file) =>
      importsOf(file.code)
        .map((wanted) => objection(file.path, wanted))
        .filter((text) => text !== undefined)
        .map((text) => `${file.path} ${text}`),
    );
    expect(files.length).toBeGreaterThan(10);
    expect(objections).toEqual([]);
  });

  it('leave the process to src/main.ts, which passes on arguments, environment and signals and sets the exit code', () => {
    // A program that uses the client gives its environment. A lock file contains the process that holds the database,
    // for people to find it.
    const argued = ['src/client/connection.ts', 'src/main.ts', 'src/store/file_guard/lock.ts'];
    expect(files.filter(usesProcess).map((file) => file.path)).toEqual(argued);
  });

  it('keep packages out of the read threads of SQLite, each of which loads its modules again', () => {
    const loaded = [...loadedBy('src/store/sqlite/read_thread.ts').packages];
    expect(loaded).toContain('node:sqlite');
    expect(loaded.filter((wanted) => !wanted.startsWith('node:'))).toEqual([]);
  });

  it('keep the server out of commands for a remote server, so that these start fast', () => {
    const loaded = loadedBy('src/cli/program.ts').files;
    expect(loaded).toContain('src/cli/tree.ts');
    expect([...loaded].filter((file) => /^src\/(server\.ts|store|rpc|app|service|listen)\b/.test(file))).toEqual([]);
  });

  it('limit the programs in examples to what a user of the package has: its entries and the generated code', () => {
    const entry = /^src\/client\/index\.ts$|^integrations\/src\/\w+\/index\.ts$/;
    const offenders = [...sources('examples'), ...sources('integrations/examples')].flatMap((file) =>
      importsOf(file.code)
        .filter((wanted) => wanted.startsWith('.'))
        .map((wanted) => path.posix.normalize(path.posix.join(path.posix.dirname(file.path), wanted)))
        .filter((target) => /^(src|integrations\/src)\//.test(target) && !entry.test(target))
        .map((target) => `${file.path} may not know ${target}`),
    );
    expect(offenders).toEqual([]);
  });
});

describe('the import check itself', () => {
  it.each([
    ["import a from 'x';", ['x']],
    ["import type { A } from 'x';", ['x']],
    ["import {\n  a,\n  b,\n} from 'x';\nimport 'y';", ['x', 'y']],
    ["export { a } from 'x';\nexport * from 'y';\nexport type { B } from 'z';", ['x', 'y', 'z']],
    ["const a = await import('x');\ntype B = import('y').B;", ['x', 'y']],
    ['const a = await import(name);', ['?']],
    ["const a = createRequire(here)('x');", ['?']],
    ["// import a from 'x';\n/* import 'y' */ const s = \"import('//z')\";", ['//z']],
    ["export const from = 'x';\nexport function f() {}\nconst t = 'from';", []],
  ])('reads the imports of %j', (text, expected) => {
    expect(importsOf(withoutComments(text))).toEqual(expected);
  });

  it.each([
    ['src/domain/step.ts', 'node:fs'],
    ['src/domain/step.ts', '../stream/app.ts'],
    ['src/stream/maintenance.ts', '../store/sql/step/steps.ts'],
    ['src/stream/maintenance.ts', '../../gen/es/anabranch/v1/step_pb.js'],
    ['src/store/sqlite/open.ts', '../postgres/pool.ts'],
    ['src/store/sqlite/open.ts', 'pg'],
    ['src/rpc/routes.ts', '../store/contract/store.ts'],
    ['src/client/writer.ts', '../domain/step.ts'],
    ['src/listen/port.ts', '../domain/errors.ts'],
    ['src/cli/tree.ts', '../stream/app.ts'],
    ['src/utils/x.ts', './y.ts'],
    ['src/domain/step.ts', './ids.js'],
    ['src/config/config.ts', 'fs'],
  ])('reports %s importing %s', (file, wanted) => {
    expect(objection(file, wanted)).toBeDefined();
  });
});
