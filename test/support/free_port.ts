import { once } from 'node:events';
import { createServer } from 'node:net';
import process from 'node:process';

/** Below the ports that systems give to those who ask for any (from 32,768 on Linux). */
const [FIRST, END, EACH] = [10_000, 32_000, 100] as const;

let taken = 0;

/**
 * Returns a TCP port of 127.0.0.1 that nothing listens on, from a range of this process. The system gives it to nobody
 * who asks for any port, so it stays free while a program is to be away from it, and for its next start.
 */
export async function freePort(): Promise<number> {
  const first = FIRST + EACH * (process.pid % ((END - FIRST) / EACH));
  for (let tries = 0; tries < EACH; tries += 1) {
    const port = first + (taken % EACH);
    taken += 1;
    if (await canListen(port)) return port;
  }
  throw new Error(`No free TCP port from ${first} to ${first + EACH - 1} on 127.0.0.1`);
}

async function canListen(port: number): Promise<boolean> {
  const probe = createServer().listen(port, '127.0.0.1');
  try {
    await once(probe, 'listening');
  } catch {
    return false;
  }
  probe.close();
  await once(probe, 'close');
  return true;
}
