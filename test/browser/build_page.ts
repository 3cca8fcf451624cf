/** Builds the page once, before the first test: tests run beside each other, and all read the same files. */
import { execFile } from 'node:child_process';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';

export async function setup(): Promise<void> {
  await promisify(execFile)(process.execPath, [path.resolve(import.meta.dirname, '../../page/build.ts')]);
}
