import { resolve } from 'node:path';
import { mayHoldPassword, withHostList } from './scrub_url.ts';
import { type Key, SQLITE_FILE, TABLE } from './table.ts';
import { ConfigError, type Values } from './values.ts';

export type DatabaseConfig =
  /** `path` is absolute. */
  | { readonly engine: 'sqlite'; readonly path: string }
  /**
   * `url` always begins with `postgres://`, and URL can parse it. It lists several hosts in its query (`host`, `port`).
   * It can hold a password: print `describeDatabase`.
   */
  | {
      readonly engine: 'postgres';
      readonly url: string;
      /** The same database without a pooler. As secret as `url`. */
      readonly directUrl?: string;
    };

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

/** Commands that take the database from another flag explain it otherwise. */
export const PASSWORD_IN_FLAG = passwordIn('--database', 'DATABASE_URL');

function passwordIn(flag: string, variable: string): string {
  return `${flag} holds a password, which every user of this machine can see in the list of processes: set ${variable} instead.`;
}

/**
 * Chooses the database by the first setting that is set. Parts of Postgres that are set but not used cause a warning.
 */
export function chooseDatabase(values: Values, cwd: string): ChosenDatabase {
  const found = chooseMain(values, cwd);
  if (found.database.engine === 'sqlite' || !values.isSet('directDatabase')) return found;
  const warnings =
    values.flag('directDatabase') === undefined ? [] : [passwordIn('--direct-database', 'ANABRANCH_DIRECT_DATABASE')];
  const { url: directUrl, password } = postgresFromUrl(values, 'directDatabase');
  return {
    ...found,
    database: { ...found.database, directUrl },
    warnings: password === undefined ? found.warnings : [...found.warnings, ...warnings],
  };
}

function chooseMain(values: Values, cwd: string): ChosenDatabase {
  if (values.flag('database') !== undefined) {
    const found = databaseFromUrl(values, cwd);
    return { ...found, chosenBy: '--database', warnings: found.password === undefined ? [] : [PASSWORD_IN_FLAG] };
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
  const { url, password } = postgresFromUrl(values, 'database');
  return { database: { engine: 'postgres', url }, password };
}

/** Errors: ConfigError. */
function postgresFromUrl(
  values: Values,
  key: 'database' | 'directDatabase',
): { readonly url: string; readonly password: string | undefined } {
  const text = values.text(key).trim();
  // URL requires a host after credentials, Postgres does not: `?host=` can name the folder of a socket, and
  // overrides the host.
  // `pg` treats these modes of TLS as verify-full, and prints a warning of several lines for them.
  const url = withHostList(text)
    .replace(/^postgres(?:ql)?(?:\+\w+)?:\/\//u, 'postgres://')
    .replace('@/', '@localhost/')
    .replace(/([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)(?!.*uselibpqcompat)/u, '$1verify-full');
  const parsed = URL.parse(url);
  if (!url.startsWith('postgres://') || parsed === null) throw values.error(key);
  if (isSplitInPassword(parsed)) throw values.error(key, ENCODED);
  if (parsed.pathname.length < 2) throw values.error(key, 'the name of a database after HOST:PORT/');
  const [user, host, name] = [decode(parsed.username), decode(parsed.hostname), decode(parsed.pathname.slice(1))];
  const password = decode(parsed.password) || (parsed.searchParams.get('password') ?? undefined);
  if (password !== undefined && user === '') throw values.error(key, 'a USER before the password');
  // These are printed. Those of the query override the others.
  const query = (part: string) => parsed.searchParams.get(part) ?? '';
  const hosts = query('host').split(',');
  const isPrintable =
    ![user, query('user')].some((each) => each.includes(':')) &&
    [host, ...hosts].every(isHost) &&
    ![name, query('user'), query('host')].some(mayHoldPassword);
  if (!isPrintable) throw values.error(key, ENCODED);
  const ports = query('port').split(',');
  // `pg` waits forever for another one.
  if (query('port') !== '' && !ports.every((port) => Number(port) >= 1 && Number(port) <= 65_535))
    throw values.error(key, 'a port from 1 to 65535');
  if (hosts.length > 1 && (hosts.includes('') || ![1, hosts.length].includes(ports.length)))
    throw values.error(key, 'HOST:PORT,HOST:PORT, each with a name');
  if (!['read-write', 'primary', ''].includes(query('target_session_attrs')))
    throw values.error(key, 'target_session_attrs=read-write, because the server uses the host that accepts writes');
  return { url, password };

  function decode(text: string): string {
    try {
      return decodeURIComponent(text);
    } catch {
      throw values.error(key, 'user and password percent-encoded (% itself as %25)');
    }
  }
}

const ENCODED =
  'postgres://USER:PASSWORD@HOST:PORT/DATABASE with each part percent-encoded (@ as %40, : as %3A, / as %2F, ? as %3F, # as %23)';

/** Whether the URL would end in the middle of a password with `/`, `?` or `#`: then an `@` follows. */
function isSplitInPassword({ pathname, search, hash }: URL): boolean {
  return hash !== '' || pathname.includes('/', 1) || `${pathname}${search}`.includes('@');
}

/** A name, an address (also in brackets), or the folder of a socket. */
function isHost(text: string): boolean {
  return /^[\p{L}\p{N}._-]*$|^\[?[\da-f:.]+\]?$|^\/[^:@]*$/iu.test(text);
}

function sqliteFile(values: Values, key: Key, path: string, cwd: string): DatabaseConfig {
  if (path.includes(':memory:'))
    throw values.error(key, 'the path of a file: a database in memory would lose acked steps');
  if (mayHoldPassword(path)) throw values.error(key, `${SQLITE_FILE}, not of a server`);
  if (path === '' || path.endsWith('/') || path.startsWith('//') || /[?\0]/u.test(path)) {
    throw values.error(key, `${SQLITE_FILE}, as in sqlite:.anabranch/data.db`);
  }
  return { engine: 'sqlite', path: resolve(cwd, path) };
}

function postgresByParts(values: Values): FoundDatabase {
  const user = nameOf(values, 'postgresUser');
  return postgresFromParts({
    host: hostOf(values, 'postgresHost'),
    port: values.whole('postgresPort'),
    name: values.env('postgresDb') === undefined ? user : nameOf(values, 'postgresDb'),
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
    host: hostOf(values, 'skillsDbHost'),
    port: values.whole('skillsDbPort'),
    name: nameOf(values, 'skillsDbName'),
    user: nameOf(values, 'skillsDbUser'),
    password: values.env('skillsDbPassword'),
  });
}

function hostOf(values: Values, key: Key): string {
  const host = values.text(key);
  if (!isHost(host)) throw values.error(key);
  return host;
}

function nameOf(values: Values, key: Key): string {
  const name = values.text(key);
  if (mayHoldPassword(name)) throw values.error(key);
  return name;
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
