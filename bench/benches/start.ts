import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { get } from 'node:http';
import path from 'node:path';
import process from 'node:process';
import { freePort } from '../../test/support/free_port.ts';
import { alternate, type Bench, figure } from '../bench.ts';

const MAIN = path.resolve(import.meta.dirname, '../../src/main.ts');
const POLL_MS = 2;

export const start: Bench = {
  names: ['start'],
  about: 's from the exec of the server to the first 200 of /healthz, on a new file',
  engines: ['sqlite'],
  async run(run) {
    const samples = await alternate(run, {
      start: async () => {
        const database = await run.resources.database('sqlite');
        const port = await freePort();
        const begun = performance.now();
        const args = [MAIN, 'serve', '--listen', `127.0.0.1:${port}`, '--database', database];
        const child = spawn(process.execPath, args, {
          stdio: 'ignore',
          cwd: path.dirname(database.slice('sqlite:'.length)),
        });
        const exited = once(child, 'exit');
        try {
          await healthy(port, exited);
          return (performance.now() - begun) / 1000;
        } finally {
          child.kill('SIGTERM');
          await exited;
        }
      },
    });
    return [figure(run, { bench: 'start', aim: '<= 1', unit: 's' }, samples.start)];
  },
};

async function healthy(port: number, exited: Promise<unknown>): Promise<void> {
  let ended = false;
  void exited.then(() => {
    ended = true;
  });
  while (!(await answersOk(port))) {
    if (ended) throw new Error('the server ended before it was healthy');
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function answersOk(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const request = get({ host: '127.0.0.1', port, path: '/healthz', agent: false }, (response) => {
      response.resume();
      resolve(response.statusCode === 200);
    });
    request.on('error', () => resolve(false));
  });
}
