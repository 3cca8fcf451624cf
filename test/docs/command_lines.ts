/** Checks command lines of this program without running them. */
import { expect } from 'vitest';
import { runCli } from '../cli/run_cli.ts';

/** Expects that a command and its flags exist, given as the words after `anabranch`. Values are not checked. */
export async function expectKnown(words: readonly string[]): Promise<void> {
  const first = words.findIndex((word) => word.startsWith('-'));
  const names = first === -1 ? words : words.slice(0, first);
  const command = await commandOf(names);
  const { code, stdout } = await runCli([...command, '--help'], { terminal: true, columns: 200 });
  expect(code, words.join(' ')).toBe(0);
  // Of an unknown command, the help is that of the program.
  expect(stdout).toContain(`Usage: ${['anabranch', ...command].join(' ')} `);
  const known = new Set([...stdout.matchAll(/(?<=[\s,])--?[a-z][\w-]*/gu)].map(([flag]) => flag));
  for (const [flag] of words.filter((word) => /^--?[a-z]/u.test(word)).map((word) => word.split('=', 1)))
    expect([...known], `anabranch ${words.join(' ')}`).toContain(flag);
}

/** The words that name a command, without its arguments. */
async function commandOf(words: readonly string[]): Promise<string[]> {
  const [command = '', second = ''] = words;
  if (command === '') return [];
  const { stdout } = await runCli([command, '--help'], { terminal: true, columns: 200 });
  const isOfGroup = second !== '' && new RegExp(`^  ${second}(?: |$)`, 'mu').test(stdout.split('\nCommands:')[1] ?? '');
  return isOfGroup ? [command, second] : [command];
}
