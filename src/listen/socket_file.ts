import { chmodSync, lstatSync, mkdirSync, statSync, unlinkSync } from 'node:fs';
import net from 'node:net';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';

/** SQLite's result code of a locked file. */
const BUSY = 5;

/**
 * Listens on a Unix socket that only its user can reach: mode 0600, in a folder of mode 0700, which is created if it is
 * missing. Replaces the socket of a server that was killed. A lock beside the socket, which ends with its process,
 * decides between servers that start at the same time. Returns a function that releases the lock. Closing the server
 * removes the socket, so that must happen before.
 */
export async function listenOnSocket(
  server: net.Server,
  path: string,
  begin: (options: net.ListenOptions) => Promise<void>,
): Promise<() => void> {
  makePrivateFolder(dirname(path));
  const lock = takeLock(path);
  try {
    await removeDeadSocket(path);
    await begin({ path });
    chmodSync(path, 0o600);
    return () => lock.close();
  } catch (error) {
    server.close();
    lock.close();
    throw error;
  }
}

function makePrivateFolder(folder: string): void {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const mode = statSync(folder).mode & 0o777;
  if ((mode & 0o077) === 0) return;
  throw new Error(
    `other users may enter the folder ${folder} (mode ${mode.toString(8).padStart(4, '0')}). Choose a folder of its own, which is created with mode 0700, or run chmod 700 ${folder}.`,
  );
}

function takeLock(path: string): DatabaseSync {
  const lock = new DatabaseSync(`${path}.lock`, { timeout: 0 });
  try {
    lock.exec('begin exclusive');
    return lock;
  } catch (error) {
    lock.close();
    throw (error as { errcode?: number }).errcode === BUSY ? inUse() : error;
  }
}

async function removeDeadSocket(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (found === undefined) return;
  if (!found.isSocket()) throw new Error('the file exists and is not a socket. Remove it, or choose another path.');
  if (await isServed(path)) throw inUse();
  unlinkSync(path);
}

function isServed(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect({ path });
    const settle = (served: boolean) => {
      socket.destroy();
      resolve(served);
    };
    socket.once('connect', () => settle(true));
    // Nobody listens on the socket of a process that has ended. Any other refusal comes from a process.
    socket.once('error', ({ code }: NodeJS.ErrnoException) => settle(code !== 'ECONNREFUSED' && code !== 'ENOENT'));
  });
}

function inUse(): Error {
  return new Error('another server uses the socket. Stop it, or choose another path.');
}
