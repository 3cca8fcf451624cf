/**
 * Runs many servers in one process, for tests of clients in other languages: each further one starts in a fifth of the
 * CPU time of a process. Reads requests from stdin, one JSON in a line, and answers each with a line:
 *
 *     {"serve": ["--listen", "127.0.0.1:0", …]}  starts `anabranch serve --json` with these arguments; answers its line
 *     {"cut": PORT}                              resets the connections of a server, then stops it
 */
import { subscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import process from 'node:process';
import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { run } from '../../src/cli/program.ts';
import { sharedValidator } from './shared_validator.ts';

interface Hosted {
  readonly stop: AbortController;
  readonly ended: Promise<number>;
}

const hosted = new Map<number, Hosted>();
const sockets = new Set<Socket>();

subscribe('net.server.socket', (message) => {
  const { socket } = message as { socket: Socket };
  sockets.add(socket);
  socket.once('close', () => sockets.delete(socket));
});

async function serve(args: readonly string[]): Promise<string> {
  const stop = new AbortController();
  const ready = Promise.withResolvers<string>();
  const ended = run(['serve', '--json', ...args], {
    env: {},
    cwd: '/',
    fileLimit: () => undefined,
    self: [],
    stdout: new Writable({ write: (line: Buffer, _, done) => done(void ready.resolve(String(line))) }),
    stderr: new Writable({ write: (text: Buffer, _, done) => void process.stderr.write(text, done) }),
    signal: stop.signal,
    validator: sharedValidator(),
  });
  void ended.then((code) => ready.reject(new Error(`the server ended with code ${code} before it was ready`)));
  const line = await ready.promise;
  hosted.set((JSON.parse(line) as { port: number }).port, { stop, ended });
  return line;
}

/** Clients see what they see when the process of a server is killed. */
async function cut(port: number): Promise<string> {
  const { stop, ended } = hosted.get(port)!;
  hosted.delete(port);
  stop.abort();
  for (const socket of sockets) if (socket.localPort === port) socket.resetAndDestroy();
  return `${await ended}\n`;
}

for await (const line of createInterface(process.stdin)) {
  const request = JSON.parse(line) as { serve: string[] } | { cut: number };
  process.stdout.write('serve' in request ? await serve(request.serve) : await cut(request.cut));
}
process.exit();
