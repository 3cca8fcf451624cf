import { readFileSync } from 'node:fs';
import path from 'node:path';
import process from 'node:process';
import { describe, expect, it } from 'vitest';
import { run } from '../../test/languages/run.ts';
import { serving } from './served.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const INTEGRATIONS = path.join(ROOT, 'integrations');
const DOCUMENT = readFileSync(path.join(ROOT, 'docs/integrations.md'), 'utf8');
const PROGRAMS = [...DOCUMENT.matchAll(/^```ts\n(.+?)^```/gms)].map(([, program = '']) => program);

describe('the examples of integrations', () => {
  const served = serving('sqlite');

  /** Runs an example like a reader: in a process of its own. */
  async function runExample(name: string): Promise<string[]> {
    const printed = await run(process.execPath, [path.join(INTEGRATIONS, 'examples', name), served.url]);
    return printed.split('\n').slice(0, -1);
  }

  it('langgraph waits for an answer, continues in another process, and answers otherwise on a branch', async () => {
    const lines = await runExample('langgraph.ts');
    expect(lines.slice(0, 3)).toEqual([
      'waits for tool: Tidy up. | Shall I delete the file?',
      'yes: Tidy up. | Shall I delete the file? | Deleted.',
      'no: Tidy up. | Shall I delete the file? | I left it alone.',
    ]);
    expect(lines.slice(3).map((line) => line.replace(/\S+:/, 'ID:'))).toEqual([
      'trajectory ID: root, end 4',
      'trajectory ID: branch at 1, end 4',
    ]);
  });

  it('openai-agents continues a session, forks it and removes its last item', async () => {
    expect(await runExample('openai-agents.ts')).toEqual([
      'first: It rains in Oslo.',
      'second: Take an umbrella.',
      'fork: Stay at home.',
      '6 items, 4 of which the fork shares',
      'after popItem: 5 items',
    ]);
  });

  it('claude-agent-sdk reads a session by the functions of the SDK, and forks it', async () => {
    const lines = await runExample('claude-agent-sdk.ts');
    expect(lines.slice(0, 4)).toEqual([
      'user: What is a branch?',
      'assistant: A trajectory that shares steps with another one.',
      'user: Thanks.',
      'fork has 2 messages',
    ]);
  });
});

describe('docs/integrations.md', () => {
  const served = serving('sqlite');

  it.each(PROGRAMS)('has programs that print what they say: %#', async (program) => {
    const sourceOf = (name: string) =>
      path.join(ROOT, name === 'client' ? 'src' : 'integrations/src', name.replaceAll('-', '_'), 'index.ts');
    const text = program.replaceAll(/'anabranch\/(.+?)'/g, (_, name) => `'${sourceOf(name)}'`);
    const env = { ANABRANCH_ADDRESS: new URL(served.url).host };
    const printed = await run(process.execPath, ['--input-type=module-typescript', '-e', text], {
      cwd: INTEGRATIONS,
      env,
    });
    expect(printed.split('\n').slice(0, -1)).toEqual(program.match(/(?<=^console.log.+; \/\/ ).+/gm));
  });

  it('names the versions that are tried', () => {
    const { dependencies } = JSON.parse(readFileSync(path.join(INTEGRATIONS, 'package.json'), 'utf8'));
    const rows = [...DOCUMENT.matchAll(/\| `anabranch\/\S+` \| `(\S+)` \| ([\d.]+)/g)];
    expect(rows.map(([, name = '', version]) => version === dependencies[name])).toEqual([true, true, true]);
  });
});
