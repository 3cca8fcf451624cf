/** A disk of a few megabytes that can be filled, and freed again. */
import { execFile } from 'node:child_process';
import { chmod, mkdtemp, rm, statfs, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { startJanitor } from '../../support/janitor.ts';

const run = promisify(execFile);
const MIB = 1024 * 1024;

export interface SmallDisk {
  /** Its mount point, writable for everyone. */
  readonly dir: string;
  /** Bytes that are free now. */
  free(): Promise<number>;
  /** Frees the reserve. */
  makeRoom(): Promise<void>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * Creates a disk of this many MiB, `kept` of them used by a file that `makeRoom` removes. Needs root on Linux, and the
 * error says so.
 */
export async function mountSmallDisk(megabytes: number, kept: number): Promise<SmallDisk> {
  const dir = await mkdtemp(path.join(os.tmpdir(), 'anabranch-disk-'));
  await run('mount', ['-t', 'tmpfs', '-o', `size=${megabytes}m`, 'tmpfs', dir]).catch(async (cause: Error) => {
    await rm(dir, { recursive: true });
    throw new Error(
      `A tmpfs is needed to fill a disk, and cannot be mounted: run the tests of faults as root on Linux`,
      {
        cause,
      },
    );
  });
  const janitor = startJanitor('umount --lazy "$1"; rmdir "$1"', [dir]);
  await chmod(dir, 0o777);
  const ballast = path.join(dir, 'ballast');
  await writeFile(ballast, Buffer.alloc(kept * MIB));
  return {
    dir,
    free: async () => {
      const { bavail, bsize } = await statfs(dir);
      return bavail * bsize;
    },
    makeRoom: () => rm(ballast),
    [Symbol.asyncDispose]: () => janitor.dismiss(),
  };
}
