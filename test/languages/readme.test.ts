import { readFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { pointedAt, programOf, readSnippets } from '../docs/snippets.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { run } from './run.ts';
import { PYTHON, PYTHON_PATH } from './tools.ts';

const STUBS = 'docs/python-stubs.md';

let server: TestServer;
beforeAll(async () => {
  server = await startTestServer({ engine: 'sqlite' });
});
afterAll(() => server.stop());

function program(document: string, group: string): string {
  return pointedAt(programOf(readSnippets(document), group), `${server.host}:${server.port}`);
}

function runPython(code: string): Promise<string> {
  return run(PYTHON, ['-'], { stdin: code, env: { PYTHONPATH: PYTHON_PATH, PYTHONUTF8: '1' } });
}

describe('docs/python-stubs.md', () => {
  it('its Python writes, reads, branches and restarts as it says', async () => {
    const printed = await runPython(program(STUBS, 'python'));
    expect(printed).toContain('durable: every step below 4');
    expect(printed).toContain("['[0]', '[1]', '[2]', '[3]']");
    expect(printed).toContain("b'x=2'");
    expect(printed).toContain('next_step_number: 5');
  });

  it('its Python creates a run, logs metrics, branches and watches as it says', async () => {
    const printed = await runPython(program(STUBS, 'runs'));
    expect(printed.trim().split('\n')).toEqual(["{'optimizer': {'lr': 0.5, 'momentum': 0.9}}", 'second 100.0']);
  });

  it('its Python creates, claims, plays and reads rollouts as it says', async () => {
    const printed = await runPython(program(STUBS, 'rollouts'));
    expect(printed.trim().split('\n')).toEqual(['guess-7 0 2', 'guess-7 1 2', '1 0.5']);
  });

  it('names only Python package versions that gen/python accepts', () => {
    const [, lowest] = /protobuf>=([\d.]+)/u.exec(readFileSync(STUBS, 'utf8')) ?? [];
    const generated = readFileSync('gen/python/anabranch/v1/trajectory_pb2.py', 'utf8');
    expect(generated).toContain(`# Protobuf Python Version: ${lowest}`);
  });
});

describe('README.md', () => {
  it('its curl, and the stream of docs/clients.md, write, read and branch, and get the same result when repeated', async () => {
    for (const _ of ['first', 'again']) {
      const printed = await run('bash', ['-euo', 'pipefail', '-c', program('README.md', 'curl')]);
      expect(printed).toContain('"branchPoint":"0"');
      expect(printed).toContain('"nodes"');
    }
    const streamed = await run('bash', ['-euo', 'pipefail', '-c', program('docs/clients.md', 'curl')]);
    expect(streamed).toMatch(/"steps":\[.+"text":"right".+\{\}$/su);
  });
});
