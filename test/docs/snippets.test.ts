import { describe, expect, it } from 'vitest';
import { pointedAt, programOf, readSnippets, snippetsOf } from './snippets.ts';

const DOCUMENT = [
  'text',
  '<!-- snippet: sh-one -->',
  '```sh',
  'curl http://127.0.0.1:50051/healthz',
  '```',
  '```sh',
  'not marked',
  '```',
  '<!-- snippet: python-one -->',
  '```python',
  'x = 1',
  '',
  'y = 2',
  '```',
  '<!-- snippet: sh-two -->',
  '```sh',
  'echo two',
  '```',
].join('\n');

describe('the snippets of a document', () => {
  it('are the marked blocks, and only those, unchanged', () => {
    const found = snippetsOf(DOCUMENT);
    expect(found.map(({ name, group, fence, line }) => ({ name, group, fence, line }))).toEqual([
      { name: 'sh-one', group: 'sh', fence: 'sh', line: 4 },
      { name: 'python-one', group: 'python', fence: 'python', line: 11 },
      { name: 'sh-two', group: 'sh', fence: 'sh', line: 17 },
    ]);
    expect(found[1]?.code).toBe('x = 1\n\ny = 2\n');
  });

  it('of one language are one program', () => {
    const program = programOf(snippetsOf(DOCUMENT), 'sh');
    expect(program).toBe('curl http://127.0.0.1:50051/healthz\n\necho two\n');
    expect(pointedAt(program, '127.0.0.1:1')).toBe('curl http://127.0.0.1:1/healthz\n\necho two\n');
  });

  it('of one group in several languages are one program in each', () => {
    const found = snippetsOf(
      '<!-- snippet: runs-ts -->\n```ts\nx\n```\n<!-- snippet: runs-python -->\n```python\ny\n```',
    );
    expect(programOf(found, 'runs', 'python')).toBe('y\n');
    expect(() => programOf(found, 'runs')).toThrow('several languages');
  });

  it('cause an error if a marker is misspelt', () => {
    expect(() => snippetsOf('<!-- snippet: a -->\n\n```sh\nx\n```')).toThrow('no fenced block follows');
    expect(() => snippetsOf('<!-- snippet: a -->\n```sh\nx\n')).toThrow('no fenced block follows');
    expect(() => snippetsOf('<!-- snippet: a -->\n```sh\n```\n<!-- snippet: a -->\n```sh\n```')).toThrow('twice');
    expect(() => programOf(snippetsOf(DOCUMENT), 'go')).toThrow('no snippet of go');
    expect(() => pointedAt('echo', '127.0.0.1:1')).toThrow('never mentions');
  });
});

describe('README.md', () => {
  it('shows one write, one read and one branch in TypeScript and curl', () => {
    const names = readSnippets().map((each) => each.name);
    for (const language of ['ts', 'curl']) {
      for (const act of ['write', 'read', 'branch']) expect(names).toContain(`${language}-${act}`);
    }
  });

  it('leads to runs and rollouts in TypeScript', () => {
    const names = readSnippets('docs/training.md').map((each) => each.name);
    expect(names).toEqual(expect.arrayContaining(['runs-ts', 'rollouts-ts']));
  });

  it('FM8: shows how a raw client continues after a restart, and the offset between actions and observations', () => {
    const names = readSnippets('docs/python-stubs.md').map((each) => each.name);
    expect(names).toEqual(expect.arrayContaining(['python-restart', 'python-shift']));
  });
});
