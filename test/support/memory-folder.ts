import { statfs } from 'node:fs/promises';
import process from 'node:process';

const MEMORY = '/dev/shm';
const LEAST_BYTES = 4 * 2 ** 30;

/**
 * Puts temporary files into memory, for tests that promise nothing about a disk: on a disk they wait for its syncs.
 * Leaves the folder unchanged if TMPDIR names one, or if the system has no such memory or less than 4 GiB of it is
 * free.
 */
export async function setup(): Promise<void> {
  if (process.env.TMPDIR === undefined && (await hasRoom())) process.env.TMPDIR = MEMORY;
}

async function hasRoom(): Promise<boolean> {
  try {
    const { bavail, bsize } = await statfs(MEMORY);
    return bavail * bsize >= LEAST_BYTES;
  } catch {
    return false;
  }
}
