import type net from 'node:net';
import { listenOnSocket } from './socket_file.ts';

/** An address to listen on: a host and a port (0: any free one), or the absolute path of a Unix socket. */
export type ListenAddress = { readonly host: string; readonly port: number } | { readonly socket: string };

export interface Listening {
  /** Of a Unix socket: its path. */
  readonly host: string;
  /** Of a Unix socket: 0. */
  readonly port: number;
  /** Lets another server listen on the address. The server must be closed. */
  release(): void;
}

/** The port cannot listen. The message is for the person who chose the address or the certificate. */
export class ListenError extends Error {
  override readonly name = 'ListenError';
}

/** Resolves when connections are accepted. Errors: ListenError. */
export async function listenOn(server: net.Server, address: ListenAddress): Promise<Listening> {
  if ('socket' in address) {
    const path = address.socket;
    try {
      const release = await listenOnSocket(server, path, (options) => begin(server, options));
      return { host: path, port: 0, release };
    } catch (error) {
      throw new ListenError(`Cannot listen on unix:${path}: ${(error as Error).message}`, { cause: error });
    }
  }
  const { host, port } = address;
  try {
    await begin(server, { host, port });
  } catch (error) {
    const at = host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
    throw new ListenError(`Cannot listen on ${at}: ${causeOf(error as NodeJS.ErrnoException)}`, { cause: error });
  }
  return { host, port: (server.address() as net.AddressInfo).port, release: () => undefined };
}

function begin(server: net.Server, options: net.ListenOptions): Promise<void> {
  return new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen({ ...options, backlog: 1024 }, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

function causeOf({ code, message }: NodeJS.ErrnoException): string {
  switch (code) {
    case 'EADDRINUSE':
      return 'the port is in use. Stop the program that uses it, or choose another port with --listen HOST:PORT.';
    case 'EACCES':
      return 'not permitted. Choose a port above 1023 with --listen HOST:PORT.';
    case 'EADDRNOTAVAIL':
    case 'ENOTFOUND':
    case 'EAI_AGAIN':
      return 'this machine does not have that address. Choose another one with --listen HOST:PORT.';
    default:
      return message;
  }
}
