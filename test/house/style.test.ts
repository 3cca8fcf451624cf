import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { ROOT, sources } from './source.ts';

const src = [...sources('src'), ...sources('integrations/src')];
const folders = ['test', 'integrations/test', 'examples', 'integrations/examples', 'bench', 'page'];
const all = [...src, ...folders.flatMap(sources)];

function offenders(files: typeof all, pattern: RegExp): string[] {
  return files.filter(({ code }) => pattern.test(code)).map(({ path }) => path);
}

describe('the style of the sources', () => {
  it('have no files for miscellaneous code: a file is named after its subject', () => {
    const drawer = /(^|[/_.-])(utils?|common|misc)([/_.-]|$)|\/(helpers?|managers?)(\/|\.ts$)/i;
    const drawers = all.filter(({ path }) => drawer.test(path));
    expect(drawers.map(({ path }) => path)).toEqual([]);
  });

  it('have no default exports, which only the configurations of vitest must have', () => {
    const others = all.filter(({ path }) => !path.endsWith('/vitest.config.ts'));
    expect(offenders(others, /^export default\b|\bas default\b/m)).toEqual([]);
  });

  it('have no barrels: only the entries of the package re-export', () => {
    const barrel = /^export\s+(type\s+)?(\{[^}]*\}|\*(\s+as\s+\w+)?)\s+from\b/m;
    const entries = ['src/client/index.ts', 'src/client/web/index.ts'];
    const integrations = ['openai_agents', 'claude_agent_sdk', 'langgraph'].map(
      (name) => `integrations/src/${name}/index.ts`,
    );
    expect(offenders(src, barrel).toSorted()).toEqual([...integrations, ...entries].toSorted());
  });

  it('keep no state in modules: clock, ids, logger and store are arguments', () => {
    const argued = [
      // A buffer that one synchronous call fills and reads, kept to avoid an allocation for every step: no call sees
      // the data of another.
      'src/domain/step_digest.ts',
      // It is the process, which knows whether it has failed.
      'src/main.ts',
    ];
    expect(offenders(src, /^(export )?(let|var)\s/m).filter((path) => !argued.includes(path))).toEqual([]);
  });

  it('name no engine in the shared store: differences are methods of Engine, named after what they do', () => {
    const shared = src.filter(({ path }) => /^src\/store\/(sql|contract)\//.test(path));
    expect(shared.length).toBeGreaterThan(50);
    expect(offenders(shared, /\b(sqlite|postgres)\b|\bengine\.name\b/i)).toEqual([]);
  });

  it('have comments of at most 120 characters a line, also in protos and in the Python client', () => {
    const others = ['proto/anabranch/v1', 'clients/python'].flatMap((folder) =>
      readdirSync(path.join(ROOT, folder), { recursive: true, encoding: 'utf8' })
        .filter((name) => /\.(proto|py)$/.test(name) && !name.startsWith('src/anabranch/v1'))
        .map((name) => ({ path: `${folder}/${name}`, text: readFileSync(path.join(ROOT, folder, name), 'utf8') })),
    );
    expect(others.length).toBeGreaterThan(40);
    const long = [...all, ...others].flatMap(({ path: file, text }) =>
      text
        .split('\n')
        .map((line, i) => ({ place: `${file}:${i + 1}`, line }))
        .filter(
          ({ line }) => line.length > 120 && /^\s*(\/?\*|\/\/|#)/.test(line) && !/biome-ignore|https?:/.test(line),
        ),
    );
    expect(long.map(({ place }) => place)).toEqual([]);
  });

  it('leave standard output to the programs', () => {
    const programs = /^src\/(cli|demo)\/|^src\/main\.ts$/;
    expect(offenders(src, /\bconsole\./).filter((path) => !programs.test(path))).toEqual([]);
  });

  it('name the engine in titles of tests that have one, by which npm run test:postgres finds them', () => {
    const tests = [...sources('test'), ...sources('integrations/test')].filter(
      ({ path }) => path.endsWith('.test.ts') && !path.startsWith('test/store/'),
    );
    const titles = tests.flatMap(({ code }) =>
      [...code.matchAll(/(?:\(ENGINES\)|\(ON_POSTGRES\))[^'"`]*(['"`])(.*?)\1/gs)].map(([, , title = '']) => title),
    );
    expect(titles.length).toBeGreaterThan(50);
    expect(titles.filter((title) => !/\bon (%s|postgres\b)/i.test(title))).toEqual([]);
  });

  it('skip no test, and run none exclusively', () => {
    const tests = [...sources('test'), ...sources('integrations/test')].filter(
      ({ path }) => path !== 'test/house/style.test.ts',
    );
    expect(offenders(tests, /\b(it|test|describe)(\.\w+)*\.(skip|only|todo|fails)\b/)).toEqual([]);
  });
});
