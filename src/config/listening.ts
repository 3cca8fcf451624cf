import { isIPv4, isIPv6 } from 'node:net';
import { resolve } from 'node:path';
import { type IdentityConfig, identityContradictions, parseIdentity } from './identity.ts';
import { AUTH_MODES } from './table.ts';
import { ConfigError, type Values } from './values.ts';

interface HostAndPort {
  readonly host: string;
  readonly port: number;
}

/** Where the server listens, and what protects it there. */
export interface ListenConfig {
  /** A host and a port, or the absolute path of a Unix socket. */
  readonly listen: HostAndPort | { readonly socket: string };
  /** Undefined: metrics are served on the main port only. */
  readonly metricsListen: HostAndPort | undefined;
  /** Absolute paths of the certificate, its key, and the authorities of client certificates. Undefined: no TLS. */
  readonly tls:
    | { readonly certFile: string; readonly keyFile: string; readonly clientCaFile: string | undefined }
    | undefined;
  readonly insecure: boolean;
  /** Whether callers need a credential. */
  readonly authenticated: boolean;
  /** What is accepted besides API keys. Undefined: nothing. */
  readonly identity: IdentityConfig | undefined;
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
  const insecure = values.bool('insecure');
  const authenticated = values.isSet('auth')
    ? values.choice('auth', AUTH_MODES) === 'required'
    : !isLocal(listen) && !insecure;
  const faults = [...contradictions(values, listen, authenticated), ...identityContradictions(values, authenticated)];
  if (faults.length > 0) throw new ConfigError(faults.join('\n'));
  const files = ['tlsCert', 'tlsKey', 'clientCa', 'adminKeyFile'] as const;
  const [certFile, keyFile, clientCaFile, adminKeyFile] = files.map((name) =>
    values.text(name) === '' ? undefined : resolve(cwd, values.text(name)),
  );
  const tls = certFile === undefined || keyFile === undefined ? undefined : { certFile, keyFile, clientCaFile };
  const metricsListen = parseMetricsListen(values);
  const config = {
    listen,
    metricsListen,
    tls,
    insecure,
    authenticated,
    identity: parseIdentity(values, cwd),
    adminKeyFile,
  };
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

/** Returns where a server with these settings is reached on this machine. Errors: ConfigError. */
export function addressOfServer(
  values: Values,
  cwd: string,
): { readonly url: string; readonly socket: string | undefined } {
  const listen = parseListen(values, cwd);
  if ('socket' in listen) return { url: `unix:${listen.socket}`, socket: listen.socket };
  const scheme = values.text('tlsCert') === '' ? 'http' : 'https';
  return { url: `${scheme}://${reachableHost(listen.host)}:${listen.port}`, socket: undefined };
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

/** Says of settings that exclude each other which these are, each with what to do: all that there are. */
function contradictions(values: Values, listen: ListenConfig['listen'], authenticated: boolean): string[] {
  const faults: string[] = [];
  const given = (['tlsCert', 'tlsKey'] as const).filter((name) => values.text(name) !== '');
  const files = given.map((name) => values.nameOf(name)).join(' and ');
  if (given.length === 1) {
    const absent = given[0] === 'tlsKey' ? 'tlsCert' : 'tlsKey';
    faults.push(`${files} is set without ${values.flagOf(absent)}: expected both, or neither.`);
  }
  if (given.length > 0 && 'socket' in listen) {
    faults.push(`${values.nameOf('listen')} is a Unix socket, which needs no TLS: unset ${files}.`);
  }
  if (given.length > 0 && values.bool('disableTls')) {
    faults.push(
      `${values.nameOf('disableTls')} leaves TLS to a proxy, but ${files} would serve it: unset one of them.`,
    );
  }
  if (values.text('adminKeyFile') !== '' && !authenticated) {
    faults.push(
      `${values.nameOf('adminKeyFile')} is set, but callers need no key here: add --auth required, or leave it out.`,
    );
  }
  return faults;
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
  return parseHostAndPort(values, 'listen', text);
}

function parseMetricsListen(values: Values): HostAndPort | undefined {
  const text = values.text('metricsListen').trim();
  if (text === '') return undefined;
  return parseHostAndPort(values, 'metricsListen', /^\d+$/.test(text) ? `127.0.0.1:${text}` : text);
}

function parseHostAndPort(values: Values, key: 'listen' | 'metricsListen', text: string): HostAndPort {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+)):(\d{1,5})$/u.exec(text);
  const host = match?.[1] ?? match?.[2];
  const port = Number(match?.[3]);
  if (host === undefined || port > 65535 || (match?.[1] !== undefined && !isIPv6(host))) throw values.error(key);
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

function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIPv4(host) && host.startsWith('127.'));
}

/** A server that listens on every address can be reached on loopback. */
function reachableHost(host: string): string {
  if (host === '0.0.0.0') return '127.0.0.1';
  if (host === '::') return '[::1]';
  return host.includes(':') ? `[${host}]` : host;
}
