import { isIPv4, isIPv6 } from 'node:net';
import { resolve } from 'node:path';
import { AUTH_MODES } from './table.ts';
import { ConfigError, type Values } from './values.ts';

/** Where the server listens, and what protects it there. */
export interface ListenConfig {
  /** A host and a port, or the absolute path of a Unix socket. */
  readonly listen: { readonly host: string; readonly port: number } | { readonly socket: string };
  /** Absolute paths of the certificate and its key. Undefined: no TLS. */
  readonly tls: { readonly certFile: string; readonly keyFile: string } | undefined;
  readonly insecure: boolean;
  /** Whether callers need an API key. */
  readonly authenticated: boolean;
  /** Absolute path of the file with the first key. */
  readonly adminKeyFile: string | undefined;
}

/** Bytes that the address of a Unix socket has room for in Linux. */
const SOCKET_PATH_BYTES = 107;

/**
 * Reads where to listen. An address that other machines can reach needs protection, or `--insecure`. Errors:
 * ConfigError.
 */
export function parseListening(values: Values, cwd: string): ListenConfig & { readonly warnings: readonly string[] } {
  const listen = parseListen(values, cwd);
  const tls = parseTls(values, cwd);
  const insecure = values.bool('insecure');
  if ('socket' in listen && tls !== undefined) {
    throw new ConfigError(
      `${values.nameOf('listen')} is a Unix socket, which needs no TLS: unset ${values.nameOf('tlsCert')} and ${values.nameOf('tlsKey')}.`,
    );
  }
  const authenticated = values.isSet('auth')
    ? values.choice('auth', AUTH_MODES) === 'required'
    : !isLocal(listen) && !insecure;
  const adminKeyFile = parseAdminKeyFile(values, cwd, authenticated);
  const config = { listen, tls, insecure, authenticated, adminKeyFile };
  const missing = isLocal(listen)
    ? []
    : protections(config, values.bool('disableTls')).filter(({ present }) => !present);
  if (missing.length === 0) return { ...config, warnings: [] };
  if (!insecure) throw unprotected(values, missing);
  return { ...config, warnings: [insecureWarning(values, missing)] };
}

/** Whether only this machine can reach the address. */
export function isLocal(listen: ListenConfig['listen']): boolean {
  return 'socket' in listen || isLoopback(listen.host);
}

/**
 * Returns how clients on this machine name the address: `http://127.0.0.1:50051`, `https://127.0.0.1:50051` or
 * `unix:/run/anabranch/sock`. `port` is the one that was chosen, if it is configured as 0.
 */
export function urlOf({ listen, tls }: Pick<ListenConfig, 'listen' | 'tls'>, port: number): string {
  if ('socket' in listen) return `unix:${listen.socket}`;
  return `${tls === undefined ? 'http' : 'https'}://${reachableHost(listen.host)}:${port}`;
}

interface Protection {
  readonly name: string;
  readonly present: boolean;
  /** How to add it; completes "TLS: …". */
  readonly remedy: string;
  /** What is possible without it. */
  readonly danger: string;
}

/** All that an address needs which other machines can reach. */
function protections({ tls, authenticated }: ListenConfig, disableTls: boolean): readonly Protection[] {
  return [
    {
      name: 'TLS',
      present: tls !== undefined || disableTls,
      remedy: 'add --tls-cert FILE and --tls-key FILE, or --disable-tls behind a proxy that terminates it',
      danger: 'whoever is on the way can read and change the traffic',
    },
    {
      name: 'credentials',
      present: authenticated,
      remedy: 'leave out --auth off',
      danger: 'everybody who reaches the port can read, change and delete everything',
    },
  ];
}

/** Errors: ConfigError. */
function parseAdminKeyFile(values: Values, cwd: string, authenticated: boolean): string | undefined {
  const file = values.text('adminKeyFile');
  if (file === '') return undefined;
  if (authenticated) return resolve(cwd, file);
  throw new ConfigError(
    `${values.nameOf('adminKeyFile')} is set, but callers need no key here: add --auth required, or leave it out.`,
  );
}

function unprotected(values: Values, missing: readonly Protection[]): ConfigError {
  const remedies = missing.map(({ name, remedy }) => `${name} (${remedy})`).join(', ');
  return new ConfigError(
    `${values.nameOf('listen')} is "${values.text('listen')}", which other machines can reach.
Such an address needs ${remedies}.
Or listen on 127.0.0.1:PORT or unix:PATH, or add --insecure (ANABRANCH_INSECURE=true) to do without.`,
  );
}

function insecureWarning(values: Values, missing: readonly Protection[]): string {
  const dangers = missing.map(({ name, danger }) => `without ${name}, ${danger}`).join('; ');
  return `${values.nameOf('insecure')} allows ${values.text('listen')}, which other machines can reach: ${dangers}.`;
}

function parseListen(values: Values, cwd: string): ListenConfig['listen'] {
  const text = values.text('listen').trim();
  if (text.startsWith('unix:')) return { socket: parseSocket(values, text, cwd) };
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+)):(\d{1,5})$/u.exec(text);
  const host = match?.[1] ?? match?.[2];
  const port = Number(match?.[3]);
  if (host === undefined || port > 65535 || (match?.[1] !== undefined && !isIPv6(host))) throw values.error('listen');
  return { host, port };
}

/** As in gRPC: `unix:PATH`, or `unix:///PATH` with an absolute path. */
function parseSocket(values: Values, text: string, cwd: string): string {
  const path = text.slice(text.startsWith('unix:///') ? 'unix://'.length : 'unix:'.length);
  if (path === '' || path.endsWith('/') || path.startsWith('//') || path.includes('\0')) throw values.error('listen');
  const absolute = resolve(cwd, path);
  const bytes = Buffer.byteLength(absolute);
  if (bytes > SOCKET_PATH_BYTES)
    throw values.error('listen', `the path of a socket of at most ${SOCKET_PATH_BYTES} bytes, got ${bytes}`);
  return absolute;
}

function parseTls(values: Values, cwd: string): ListenConfig['tls'] {
  const [certFile, keyFile] = [values.text('tlsCert'), values.text('tlsKey')];
  if (certFile === '' && keyFile === '') return undefined;
  if (certFile === '' || keyFile === '') {
    const [present, absent] = certFile === '' ? (['tlsKey', 'tlsCert'] as const) : (['tlsCert', 'tlsKey'] as const);
    throw new ConfigError(
      `${values.nameOf(present)} is set without ${values.flagOf(absent)}: expected both, or neither.`,
    );
  }
  return { certFile: resolve(cwd, certFile), keyFile: resolve(cwd, keyFile) };
}

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIPv4(host) && host.startsWith('127.'));
}

/** A server that listens on every address can be reached on loopback. */
function reachableHost(host: string): string {
  if (host === '0.0.0.0') return '127.0.0.1';
  if (host === '::') return '[::1]';
  return host.includes(':') ? `[${host}]` : host;
}
