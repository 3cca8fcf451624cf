/**
 * Builds one frozen Config from flags, the environment and the `.env` file.
 *
 * CONFIG_TABLE below is the only list of names, defaults and bounds. A test keeps `docs/configuration.md` equal to it,
 * and `serve --help` is made from it. An invalid value fails with its name, the value and what was expected; it never
 * becomes a default.
 */
import { readFileSync } from 'node:fs';
import { isIPv4, isIPv6 } from 'node:net';
import { join, resolve } from 'node:path';
import { parseEnv } from 'node:util';
import { z } from 'zod';

export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export const LOG_FORMATS = ['pretty', 'json'] as const;

export type DatabaseConfig =
  /** `path` is absolute. */
  | { readonly engine: 'sqlite'; readonly path: string }
  /** `url` always begins with `postgres://`, and URL can parse it. It can hold a password: print `describeDatabase`. */
  | { readonly engine: 'postgres'; readonly url: string };

export interface Config {
  readonly listen: { readonly host: string; readonly port: number };
  readonly insecure: boolean;
  /** Host names in the form that URL uses. Loopback names are always allowed. No effect beyond loopback. */
  readonly allowedHosts: readonly string[];
  /** Origins in the form that browsers send. */
  readonly allowedOrigins: readonly string[];
  readonly maxConnections: number;
  readonly database: DatabaseConfig;
  /** Name of the setting that chose the database, for messages: `--database`, `DATABASE_URL (.env)`, `the default`. */
  readonly databaseChosenBy: string;
  readonly poolSize: number;
  readonly namedStatements: boolean;
  readonly stateTtlHours: number;
  readonly drainSeconds: number;
  readonly logLevel: (typeof LOG_LEVELS)[number];
  readonly logFormat: (typeof LOG_FORMATS)[number];
  /** Warnings for the operator, ready to print. They contain no secrets. */
  readonly warnings: readonly string[];
}

/** Flags by name, such as commander's options. Names that are not in CONFIG_TABLE are ignored. */
export type ConfigFlags = Readonly<Record<string, unknown>>;

export interface ConfigSources {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly flags: ConfigFlags;
  /** Directory of `.env`, and base of relative SQLite paths. */
  readonly cwd: string;
  /** Reads a text file. Returns undefined if the file does not exist. */
  readonly readFile?: (path: string) => string | undefined;
  /** Returns how many files the process may have open at once. Undefined if unknown. */
  readonly fileLimit?: () => number | undefined;
}

/** A setting is invalid. The message is for the person who set it. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
}

export interface ConfigRow {
  /** Environment variable. */
  readonly name: string;
  /** Command-line flag with a placeholder of its value. It overrides every variable. */
  readonly flag?: string;
  /** Default value as text. Undefined: no default. */
  readonly default?: string;
  /** Allowed values; completes "expected …". */
  readonly expected: string;
  readonly doc: string;
  /** Smallest and largest allowed whole number. */
  readonly bounds?: readonly [number, number];
  /** Never printed, not even if it is invalid. */
  readonly secret?: true;
  /** Several values: the flag can be repeated, and the variable separates values by commas. */
  readonly list?: true;
}

const whole = (from: number, to: number) =>
  ({ expected: `a whole number from ${from} to ${to}`, bounds: [from, to] }) as const;
const oneOf = (values: readonly string[]) => `one of ${values.join(', ')}`;
const YES_OR_NO = 'true or false (or 1, 0, yes, no)';
const SQLITE_FILE = 'the path of a file';

const MAX_CONNECTIONS = 10_000;
/** Files that are not connections within the bound: reserve connections, the database, the log, and Node's own files. */
const OTHER_FILES = 200;

const TABLE = {
  listen: {
    name: 'ANABRANCH_LISTEN',
    flag: '--listen HOST:PORT',
    default: '127.0.0.1:50051',
    expected: 'HOST:PORT such as 127.0.0.1:50051 or [::1]:50051, with a port from 0 to 65535 (0: any free one)',
    doc: 'Address to listen on, for gRPC, gRPC-Web, Connect and plain HTTP/1.1. An address beyond loopback also requires `--insecure`.',
  },
  insecure: {
    name: 'ANABRANCH_INSECURE',
    flag: '--insecure',
    default: 'false',
    expected: YES_OR_NO,
    doc: 'Allow listening beyond loopback, although there is neither authentication nor TLS yet: everybody who reaches the port has full access.',
  },
  allowedHosts: {
    name: 'ANABRANCH_ALLOWED_HOSTS',
    flag: '--allowed-host HOST',
    list: true,
    expected: 'a host name or an address without scheme and port, such as anabranch.example, 10.0.0.7 or [fd00::7]',
    doc: 'Host name that requests may use (their `Host`), in addition to loopback names. The flag can be repeated; the variable separates names by commas. A server that listens on loopback answers 421 to any other name. Beyond loopback the server answers to every name.',
  },
  allowedOrigins: {
    name: 'ANABRANCH_ALLOWED_ORIGINS',
    flag: '--allowed-origin ORIGIN',
    list: true,
    expected:
      'SCHEME://HOST or SCHEME://HOST:PORT without a path, such as https://app.example or http://localhost:5173',
    doc: 'Origin of web pages that may call the server from a browser (CORS). The flag can be repeated; the variable separates origins by commas. Other origins, except the server’s own, get 403.',
  },
  maxConnections: {
    name: 'ANABRANCH_MAX_CONNECTIONS',
    flag: '--max-connections N',
    default: String(MAX_CONNECTIONS),
    ...whole(1, 1_000_000),
    doc: `Maximum number of connections. At the bound, each new connection closes the one that has been idle longest. The default is lower if the process may open fewer files: the limit of open files (\`ulimit -n\`) minus ${OTHER_FILES}.`,
  },
  database: {
    name: 'DATABASE_URL',
    flag: '--database URL',
    default: 'sqlite:.anabranch/data.db',
    expected:
      'sqlite:PATH, sqlite:///PATH or postgres://USER:PASSWORD@HOST:PORT/DATABASE (also postgresql://, postgresql+psycopg2://)',
    doc: 'The database. A relative SQLite path starts from the working directory (as in SQLAlchemy, `sqlite:///a.db` is relative and `sqlite:////a.db` absolute); the file and its folder are created if needed.',
    secret: true,
  },
  postgresHost: {
    name: 'POSTGRES_HOST',
    default: '127.0.0.1',
    expected: 'a host name, an address or the folder of a Unix socket',
    doc: 'Host of Postgres. Used if `DATABASE_URL` is unset, and this or `POSTGRES_DB` is set.',
  },
  postgresPort: {
    name: 'POSTGRES_PORT',
    default: '5432',
    ...whole(1, 65535),
    doc: 'Port of `POSTGRES_HOST`.',
  },
  postgresDb: {
    name: 'POSTGRES_DB',
    default: 'the user’s name',
    expected: 'the name of a database',
    doc: 'Database on `POSTGRES_HOST`.',
  },
  postgresUser: {
    name: 'POSTGRES_USER',
    default: 'postgres',
    expected: 'the name of a role',
    doc: 'Role on `POSTGRES_HOST`.',
  },
  postgresPassword: {
    name: 'POSTGRES_PASSWORD',
    expected: 'a password',
    doc: 'Password of the role. Unset: no password is sent.',
    secret: true,
  },
  fleDbType: {
    name: 'FLE_DB_TYPE',
    expected: 'sqlite or postgres',
    doc: 'As in the Factorio Learning Environment (FLE); the last in the order. `sqlite` requires nothing else; `postgres` requires all five `SKILLS_DB_…`. Unset: `SQLITE_DB_FILE` or `SKILLS_DB_HOST` decides.',
  },
  sqliteDbFile: {
    name: 'SQLITE_DB_FILE',
    default: '.anabranch/data.db',
    expected: SQLITE_FILE,
    doc: 'SQLite file for `FLE_DB_TYPE=sqlite`. Use a file for Anabranch alone, not one that FLE writes.',
  },
  skillsDbHost: {
    name: 'SKILLS_DB_HOST',
    expected: 'a host name, an address or the folder of a Unix socket',
    doc: 'Postgres for `FLE_DB_TYPE=postgres`.',
  },
  skillsDbPort: { name: 'SKILLS_DB_PORT', ...whole(1, 65535), doc: 'Port of `SKILLS_DB_HOST`.' },
  skillsDbName: { name: 'SKILLS_DB_NAME', expected: 'the name of a database', doc: 'Database on `SKILLS_DB_HOST`.' },
  skillsDbUser: { name: 'SKILLS_DB_USER', expected: 'the name of a role', doc: 'Role on `SKILLS_DB_HOST`.' },
  skillsDbPassword: { name: 'SKILLS_DB_PASSWORD', expected: 'a password', doc: 'Password of the role.', secret: true },
  poolSize: {
    name: 'ANABRANCH_POOL_SIZE',
    flag: '--pool-size N',
    default: '10',
    ...whole(2, 500),
    doc: 'Maximum number of connections to Postgres. SQLite ignores it.',
  },
  namedStatements: {
    name: 'ANABRANCH_NAMED_STATEMENTS',
    flag: '--named-statements BOOLEAN',
    default: 'true',
    expected: YES_OR_NO,
    doc: 'Use named prepared statements in Postgres. Set false behind a pooler that does not support them, such as pgbouncer before 1.21 in transaction mode. SQLite ignores it.',
  },
  stateTtlHours: {
    name: 'ANABRANCH_STATE_TTL_HOURS',
    flag: '--state-ttl-hours HOURS',
    default: '24',
    ...whole(1, 8760),
    doc: 'Hours that a state without references is kept after it was last put or requested.',
  },
  drainSeconds: {
    name: 'ANABRANCH_DRAIN_SECONDS',
    flag: '--drain-seconds SECONDS',
    default: '25',
    ...whole(0, 30),
    doc: 'Seconds that a shutdown waits for open calls before it cancels them.',
  },
  logLevel: {
    name: 'ANABRANCH_LOG_LEVEL',
    flag: '--log-level LEVEL',
    default: 'info',
    expected: oneOf(LOG_LEVELS),
    doc: 'Minimum severity of log lines. Payloads are never logged.',
  },
  logFormat: {
    name: 'ANABRANCH_LOG_FORMAT',
    flag: '--log-format FORMAT',
    default: 'pretty',
    expected: oneOf(LOG_FORMATS),
    doc: 'Format of log lines: text for people, or JSON for programs.',
  },
} as const satisfies Record<string, ConfigRow>;

type Key = keyof typeof TABLE;
type NumberKey = { [K in Key]: (typeof TABLE)[K] extends { bounds: unknown } ? K : never }[Key];

/** Every setting, in the order of the documentation. */
export const CONFIG_TABLE: readonly ConfigRow[] = Object.values(TABLE);

/** Passwords of published examples. They are accepted on loopback only. */
const PUBLISHED_PASSWORDS = new Set(['fle123', 'training_password', 'anabranch']);

/**
 * Loads and checks the configuration. Flags override variables, and variables of the process override those of `.env`.
 * For the database, the first of these that is set decides alone: `--database`, `DATABASE_URL`, `POSTGRES_…`, FLE's
 * names, the default. An empty variable counts as unset, and hides the same one in `.env`. Errors: ConfigError.
 */
export function loadConfig(sources: ConfigSources): Config {
  const values = new Values(sources);
  const listen = parseListen(values);
  const insecure = values.bool('insecure');
  const { maxConnections, warnings: connectionWarnings } = parseMaxConnections(values, sources.fileLimit?.());
  const { database, password, chosenBy, warnings } = chooseDatabase(values, sources.cwd);
  if (!isLoopback(listen.host)) {
    if (!insecure) {
      throw values.error(
        'listen',
        'an address on loopback (127.0.0.1, [::1], localhost), or also --insecure (ANABRANCH_INSECURE=true): there is no authentication yet, so everybody who reaches the port has full access',
      );
    }
    if (password !== undefined && PUBLISHED_PASSWORDS.has(password)) {
      throw new ConfigError(
        'The database password is from a published example, which is rejected beyond loopback: set another password.',
      );
    }
  }
  return deepFreeze({
    listen,
    insecure,
    allowedHosts: values.list('allowedHosts', parseHost),
    allowedOrigins: values.list('allowedOrigins', parseOrigin),
    maxConnections,
    database,
    databaseChosenBy: chosenBy,
    poolSize: values.whole('poolSize'),
    namedStatements: values.bool('namedStatements'),
    stateTtlHours: values.whole('stateTtlHours'),
    drainSeconds: values.whole('drainSeconds'),
    logLevel: values.choice('logLevel', LOG_LEVELS),
    logFormat: values.choice('logFormat', LOG_FORMATS),
    warnings: [...warnings, ...connectionWarnings, ...unusedHosts(values, listen.host)],
  });
}

/** Describes a database without its secrets: `SQLite /data/a.db`, `Postgres postgres://ann@db.example:5432/main`. */
export function describeDatabase(config: Pick<Config, 'database'>): string {
  const { database } = config;
  return database.engine === 'sqlite' ? `SQLite ${database.path}` : `Postgres ${scrubUrl(database.url)}`;
}

/** Removes the password from a database URL, and its query except `host`. Also works on text that is not a valid URL. */
export function scrubUrl(text: string): string {
  const [base = '', query = ''] = splitOnce(text, '?');
  const host = new URLSearchParams(query).get('host');
  return base.replace(/(:\/\/[^:/?#]*):.*@/su, '$1@') + (host === null ? '' : `?host=${host}`);
}

/** The values of all settings, with the flag or variable that set them. */
class Values {
  readonly #ofProcess: Readonly<Record<string, string | undefined>>;
  readonly #env: Readonly<Record<string, string | undefined>>;
  readonly #flags: ConfigFlags;

  constructor({ env, flags, cwd, readFile = readTextFile }: ConfigSources) {
    this.#ofProcess = env;
    this.#env = { ...readDotEnv(join(cwd, '.env'), readFile), ...env };
    this.#flags = flags;
  }

  flag(key: Key): string | undefined {
    const value = this.#flags[flagKey(TABLE[key])];
    return value === undefined || value === null ? undefined : String(value);
  }

  env(key: Key): string | undefined {
    return this.#env[TABLE[key].name] || undefined;
  }

  /** Returns the variable's name, marked if the `.env` file set it. */
  origin(key: Key): string {
    const { name } = TABLE[key];
    return this.#ofProcess[name] === undefined ? `${name} (.env)` : name;
  }

  /** Returns the text of the flag, else of the variable, else the default. */
  text(key: Key): string {
    const row: ConfigRow = TABLE[key];
    return this.flag(key) ?? this.env(key) ?? row.default ?? '';
  }

  whole(key: NumberKey): number {
    const [from, to] = TABLE[key].bounds;
    const digits = z.string().regex(/^\d+$/u);
    return this.#parse(key, digits.transform(Number).pipe(z.int().min(from).max(to)));
  }

  bool(key: Key): boolean {
    return this.#parse(key, z.stringbool({ truthy: ['true', '1', 'yes'], falsy: ['false', '0', 'no'] }));
  }

  choice<const T extends readonly string[]>(key: Key, values: T): T[number] {
    return this.#parse(key, z.enum(values));
  }

  isSet(key: Key): boolean {
    return (this.flag(key) ?? this.env(key)) !== undefined;
  }

  /** Parses a list. `parse` returns undefined for an invalid value. */
  list(key: Key, parse: (text: string) => string | undefined): string[] {
    const texts = this.text(key).split(',');
    return texts.flatMap((text) => {
      if (text.trim() === '') return [];
      const value = parse(text.trim());
      if (value === undefined)
        throw new ConfigError(`${this.nameOf(key)} is "${text.trim()}": expected ${TABLE[key].expected}.`);
      return [value];
    });
  }

  /** Returns the name of the flag or variable that set the value. */
  nameOf(key: Key): string {
    const row: ConfigRow = TABLE[key];
    return this.flag(key) === undefined ? row.name : (row.flag?.split(' ')[0] ?? row.name);
  }

  /** Returns `--listen is "0.0.0.0": expected …`. The value of a secret is left out. */
  error(key: Key, expected: string = TABLE[key].expected): ConfigError {
    const row: ConfigRow = TABLE[key];
    const name = this.nameOf(key);
    if (key === 'database') return new ConfigError(`${name} is "${scrubUrl(this.text(key))}": expected ${expected}.`);
    return new ConfigError(`${name} is ${row.secret ? 'invalid' : `"${this.text(key)}"`}: expected ${expected}.`);
  }

  #parse<T>(key: Key, schema: z.ZodType<T>): T {
    const result = schema.safeParse(this.text(key).trim());
    if (!result.success) throw this.error(key);
    return result.data;
  }
}

function parseListen(values: Values): Config['listen'] {
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([\w.-]+)):(\d{1,5})$/u.exec(values.text('listen').trim());
  const host = match?.[1] ?? match?.[2];
  const port = Number(match?.[3]);
  if (host === undefined || port > 65535 || (match?.[1] !== undefined && !isIPv6(host))) throw values.error('listen');
  return { host, port };
}

/** Returns the name in the form that URL uses, so that names can be compared. */
function parseHost(text: string): string | undefined {
  if (!/^(?:[\w.-]+|\[[0-9a-f:.]+\])$/iu.test(text)) return undefined;
  return URL.parse(`http://${text}`)?.hostname.replace(/\.$/u, '') || undefined;
}

/** Returns the origin in the form that browsers send: in lower case, and without the scheme's default port. */
function parseOrigin(text: string): string | undefined {
  if (!/^[a-z][a-z0-9+.-]*:\/\/(?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d+)?$/iu.test(text)) return undefined;
  const url = URL.parse(text.toLowerCase());
  return url === null ? undefined : `${url.protocol}//${url.host}`;
}

function parseMaxConnections(
  values: Values,
  fileLimit: number = Number.POSITIVE_INFINITY,
): Pick<Config, 'maxConnections' | 'warnings'> {
  const requested = values.whole('maxConnections');
  const possible = Math.max(1, fileLimit - OTHER_FILES);
  if (requested <= possible) return { maxConnections: requested, warnings: [] };
  if (!values.isSet('maxConnections')) return { maxConnections: possible, warnings: [] };
  const warning = `${values.nameOf('maxConnections')} is ${requested}, but the process may open only ${fileLimit} files: raise the limit of open files to ${requested + OTHER_FILES} (ulimit -n).`;
  return { maxConnections: requested, warnings: [warning] };
}

function unusedHosts(values: Values, host: string): string[] {
  if (!values.isSet('allowedHosts') || isLoopback(host)) return [];
  return [
    `${values.nameOf('allowedHosts')} has no effect beyond loopback: requests to any host name are answered there.`,
  ];
}

export function isLoopback(host: string): boolean {
  return host === 'localhost' || host === '::1' || (isIPv4(host) && host.startsWith('127.'));
}

interface FoundDatabase {
  readonly database: DatabaseConfig;
  readonly password?: string | undefined;
}

interface ChosenDatabase extends FoundDatabase {
  readonly chosenBy: string;
  readonly warnings: readonly string[];
}

const POSTGRES_PARTS = ['postgresHost', 'postgresPort', 'postgresDb', 'postgresUser', 'postgresPassword'] as const;
const FLE_POSTGRES_PARTS = [
  'skillsDbHost',
  'skillsDbPort',
  'skillsDbName',
  'skillsDbUser',
  'skillsDbPassword',
] as const;

/** Chooses the database by the first setting that is set. Parts of Postgres that are set but not used cause a warning. */
function chooseDatabase(values: Values, cwd: string): ChosenDatabase {
  if (values.flag('database') !== undefined) {
    const found = databaseFromUrl(values, cwd);
    const warning =
      '--database holds a password, which every user of this machine can see in the list of processes: set DATABASE_URL instead.';
    return { ...found, chosenBy: '--database', warnings: found.password === undefined ? [] : [warning] };
  }
  const firstOf = (...keys: readonly Key[]) => keys.find((key) => values.env(key) !== undefined);
  const url = firstOf('database');
  if (url !== undefined) return chosen(values, values.origin(url), databaseFromUrl(values, cwd), []);
  const part = firstOf('postgresHost', 'postgresDb');
  if (part !== undefined) return chosen(values, values.origin(part), postgresByParts(values), POSTGRES_PARTS);
  const fle = firstOf('fleDbType', 'sqliteDbFile', 'skillsDbHost');
  if (fle !== undefined) {
    const found = fleDatabase(values, cwd);
    return chosen(values, values.origin(fle), found, found.database.engine === 'postgres' ? FLE_POSTGRES_PARTS : []);
  }
  return chosen(values, 'the default', databaseFromUrl(values, cwd), []);
}

function chosen(values: Values, chosenBy: string, found: FoundDatabase, used: readonly Key[]): ChosenDatabase {
  const unused = [...POSTGRES_PARTS, ...FLE_POSTGRES_PARTS].filter(
    (key) => values.env(key) !== undefined && !used.includes(key),
  );
  if (unused.length === 0) return { ...found, chosenBy, warnings: [] };
  const names = unused.map((key) => values.origin(key)).join(', ');
  const warning = `${names} ${unused.length === 1 ? 'is' : 'are'} set but not used: the database was chosen by ${chosenBy}. Unset what is not used, or see docs/configuration.md for the order in which settings choose the database.`;
  return { ...found, chosenBy, warnings: [warning] };
}

function databaseFromUrl(values: Values, cwd: string): FoundDatabase {
  const text = values.text('database').trim();
  if (text.startsWith('sqlite:')) {
    // As in SQLAlchemy: three slashes begin a relative path, and a fourth slash makes it absolute.
    const path = text.slice(text.startsWith('sqlite:///') ? 'sqlite:///'.length : 'sqlite:'.length);
    return { database: sqliteFile(values, 'database', path, cwd) };
  }
  // URL requires a host after credentials, Postgres does not: `?host=` can name the folder of a socket, and
  // overrides the host.
  const url = text.replace(/^postgres(?:ql)?(?:\+\w+)?:\/\//u, 'postgres://').replace('@/', '@localhost/');
  const parsed = URL.parse(url);
  if (!url.startsWith('postgres://') || parsed === null) throw values.error('database');
  if (parsed.pathname.length < 2) throw values.error('database', 'the name of a database after HOST:PORT/');
  const password = decode(parsed.password) || (parsed.searchParams.get('password') ?? undefined);
  if (password !== undefined && decode(parsed.username) === '')
    throw values.error('database', 'a USER before the password');
  return { database: { engine: 'postgres', url }, password };

  function decode(text: string): string {
    try {
      return decodeURIComponent(text);
    } catch {
      throw values.error('database', 'user and password percent-encoded (% itself as %25)');
    }
  }
}

function sqliteFile(values: Values, key: Key, path: string, cwd: string): DatabaseConfig {
  if (path.includes(':memory:'))
    throw values.error(key, 'the path of a file: a database in memory would lose acked steps');
  if (path === '' || path.endsWith('/') || path.startsWith('//') || /[?\0]/u.test(path)) {
    throw values.error(key, `${SQLITE_FILE}, as in sqlite:.anabranch/data.db`);
  }
  return { engine: 'sqlite', path: resolve(cwd, path) };
}

function postgresByParts(values: Values): FoundDatabase {
  const user = values.text('postgresUser');
  return postgresFromParts({
    host: values.text('postgresHost'),
    port: values.whole('postgresPort'),
    name: values.env('postgresDb') ?? user,
    user,
    password: values.env('postgresPassword'),
  });
}

function fleDatabase(values: Values, cwd: string): FoundDatabase {
  const type = values.env('fleDbType') ?? (values.env('sqliteDbFile') ? 'sqlite' : 'postgres');
  if (type === 'sqlite') {
    return { database: sqliteFile(values, 'sqliteDbFile', values.text('sqliteDbFile'), cwd) };
  }
  if (type !== 'postgres' && type !== 'postgresql') throw values.error('fleDbType');
  const missing = FLE_POSTGRES_PARTS.filter((key) => values.env(key) === undefined).map((key) => TABLE[key].name);
  if (missing.length > 0) {
    throw new ConfigError(
      `${missing.join(', ')} ${missing.length === 1 ? 'is' : 'are'} not set: expected all five SKILLS_DB_… variables, because FLE's variables choose Postgres.`,
    );
  }
  return postgresFromParts({
    host: values.text('skillsDbHost'),
    port: values.whole('skillsDbPort'),
    name: values.text('skillsDbName'),
    user: values.text('skillsDbUser'),
    password: values.env('skillsDbPassword'),
  });
}

interface PostgresParts {
  readonly host: string;
  readonly port: number;
  readonly name: string;
  readonly user: string;
  readonly password: string | undefined;
}

function postgresFromParts({ host, port, name, user, password }: PostgresParts): FoundDatabase {
  const credentials = encodeURIComponent(user) + (password === undefined ? '' : `:${encodeURIComponent(password)}`);
  const bare = host.includes(':') && !host.startsWith('[') ? `[${host}]` : host;
  const url = host.startsWith('/')
    ? `postgres://${credentials}@localhost/${encodeURIComponent(name)}?host=${encodeURIComponent(host)}&port=${port}`
    : `postgres://${credentials}@${bare}:${port}/${encodeURIComponent(name)}`;
  return { database: { engine: 'postgres', url }, password };
}

function readDotEnv(path: string, readFile: (path: string) => string | undefined): NodeJS.Dict<string> {
  try {
    return parseEnv(readFile(path) ?? '');
  } catch (error) {
    throw new ConfigError(`${path} cannot be read (${reasonOf(error)}): expected a readable .env file, or none.`, {
      cause: error,
    });
  }
}

function readTextFile(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw error;
  }
}

function reasonOf(error: unknown): string {
  if (error instanceof Error) return 'code' in error ? String(error.code) : error.message;
  return String(error);
}

/** Returns the name that commander gives a flag: `--log-level LEVEL` → `logLevel`. */
function flagKey(row: ConfigRow): string {
  const long = row.flag?.split(' ')[0]?.slice(2) ?? '';
  return long.replace(/-(\w)/gu, (_, letter: string) => letter.toUpperCase());
}

function splitOnce(text: string, separator: string): [string, string] {
  const at = text.indexOf(separator);
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)];
}

function deepFreeze<T extends object>(value: T): T {
  for (const inner of Object.values(value)) if (typeof inner === 'object' && inner !== null) deepFreeze(inner);
  return Object.freeze(value);
}
