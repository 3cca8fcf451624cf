import { describe, expect, it } from 'vitest';
import { sources } from './source.ts';

const src = sources('src');
const all = [...src, ...sources('test'), ...sources('examples'), ...sources('bench')];

function offenders(files: typeof all, pattern: RegExp): string[] {
  return files.filter(({ code }) => pattern.test(code)).map(({ path }) => path);
}

describe('the manners of the house', () => {
  it('have no drawers for odds and ends: a file is named for what it is about', () => {
    const drawer = /(^|[/_.-])(utils?|common|misc)([/_.-]|$)|\/(helpers?|managers?)(\/|\.ts$)/i;
    const drawers = all.filter(({ path }) => drawer.test(path));
    expect(drawers.map(({ path }) => path)).toEqual([]);
  });

  it('have no default exports', () => {
    expect(offenders(all, /^export default\b|\bas default\b/m)).toEqual([]);
  });

  it('have no barrels: only the public surface of the client passes on what others export', () => {
    const barrel = /^export\s+(type\s+)?(\{[^}]*\}|\*(\s+as\s+\w+)?)\s+from\b/m;
    expect(offenders(src, barrel)).toEqual(['src/client/index.ts', 'src/client/web/index.ts']);
  });

  it('keep no state in modules: clock, ids, logger and store are arguments', () => {
    const argued = [
      // A buffer that one synchronous call fills and reads, kept to spare a fresh one for every step: no call sees another's.
      'src/domain/step_digest.ts',
      // It is the process, and knows whether it has failed.
      'src/main.ts',
    ];
    expect(offenders(src, /^(export )?(let|var)\s/m).filter((path) => !argued.includes(path))).toEqual([]);
  });

  it('name no engine in the store that both share: what differs is a method of Engine, named for what it does', () => {
    const shared = src.filter(({ path }) => /^src\/store\/(sql|contract)\//.test(path));
    expect(shared.length).toBeGreaterThan(50);
    expect(offenders(shared, /\b(sqlite|postgres)\b|\bengine\.name\b/i)).toEqual([]);
  });

  it('leave standard output to the programs', () => {
    const programs = /^src\/(cli|demo)\/|^src\/main\.ts$/;
    expect(offenders(src, /\bconsole\./).filter((path) => !programs.test(path))).toEqual([]);
  });

  it('skip, mark and single out no test', () => {
    const tests = sources('test').filter(({ path }) => path !== 'test/house/style.test.ts');
    expect(offenders(tests, /\b(it|test|describe)(\.\w+)*\.(skip|only|todo|fails)\b/)).toEqual([]);
  });
});
