import { createInterface } from 'node:readline/promises';
import { type CliContext, UsageError } from './context.ts';

/** Asks whether to delete `what`. Errors: UsageError if nobody can be asked. */
export async function confirmed({ stdin, stdout, signal }: CliContext, what: string): Promise<boolean> {
  if (stdin?.isTTY !== true) {
    throw new UsageError(`This deletes ${what}, so it asks for confirmation, and stdin is no terminal: pass --yes.`);
  }
  const question = createInterface({ input: stdin, output: stdout });
  try {
    const answer = await question.question(`Delete ${what}? Type "yes": `, { signal });
    return answer.trim() === 'yes';
  } finally {
    question.close();
  }
}
