import { link, open, rm } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { mayHoldPassword } from '../config/scrub_url.ts';
import { type CliContext, CliError, UsageError } from './context.ts';

/** Returns the path of a file that the command line names. Refuses a database URL, which may hold a password. */
export function fileOf({ cwd }: CliContext, text: string): string {
  if (!mayHoldPassword(text)) return resolve(cwd, text);
  throw new UsageError(
    'FILE looks like a database URL (not shown: it may hold a password): expected the path of a file.',
  );
}

/**
 * Creates a file that appears under its name when it is complete and on disk. Refuses to replace a file. `write` gets
 * the path of a file that does not exist yet, next to the named one.
 */
export async function createFile<T>(path: string, write: (part: string) => Promise<T>): Promise<T> {
  const target = resolve(path);
  const part = `${target}.part`;
  await reserve(target, path);
  await reserve(part, part);
  try {
    const result = await write(part);
    await sync(part);
    await link(part, target);
    await sync(dirname(target));
    return result;
  } catch (error) {
    // For example, the disk is full.
    throw typeof (error as NodeJS.ErrnoException).syscall === 'string' ? explained(error, path) : error;
  } finally {
    await rm(part, { force: true });
  }
}

/** Fails if a file of this name exists or cannot be created. */
async function reserve(path: string, shown: string): Promise<void> {
  try {
    await (await open(path, 'wx')).close();
  } catch (error) {
    throw explained(error, shown);
  }
  await rm(path);
}

function explained(error: unknown, path: string): CliError {
  const { code, message } = error as NodeJS.ErrnoException;
  const why = code === 'EEXIST' ? 'it exists already, and is not replaced. Name another file, or remove it' : message;
  return new CliError(`${path} cannot be created: ${why}.`, { cause: error });
}

async function sync(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}
