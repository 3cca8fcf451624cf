import { execFile } from 'node:child_process';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { serving } from './served.ts';

const EXAMPLES = path.resolve(import.meta.dirname, '../examples');

describe('the examples of integrations', () => {
  const served = serving('sqlite');

  /** Runs an example like a reader: in a process of its own. */
  function runExample(name: string): Promise<string[]> {
    return new Promise((resolve, reject) => {
      execFile(process.execPath, [path.join(EXAMPLES, name), served.url], (error, stdout, stderr) => {
        if (error === null) resolve(stdout.split('\n').slice(0, -1));
        else reject(new Error(stderr));
      });
    });
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
