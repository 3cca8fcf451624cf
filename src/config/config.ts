/**
 * Builds one frozen Config from flags, the environment and the `.env` file.
 *
 * CONFIG_TABLE (`table.ts`) is the only list of names, defaults and bounds. A test keeps `docs/configuration.md` equal
 * to it, and `serve --help` is made from it. An invalid value fails with its name, the value and what was expected; it
 * never becomes a default.
 */
import { chooseDatabase, type DatabaseConfig } from './database.ts';
import { isLocal, type ListenConfig, parseListening } from './listening.ts';
import { scrubUrl } from './scrub_url.ts';
import { LOG_FORMATS, LOG_LEVELS, OTHER_FILES, PAGE_MODES } from './table.ts';
import { ConfigError, type ConfigSources, Values } from './values.ts';

export interface Config extends ListenConfig {
  /** Host names in the form that URL uses. Loopback names are always allowed. No effect beyond loopback. */
  readonly allowedHosts: readonly string[];
  /** Origins in the form that browsers send. */
  readonly allowedOrigins: readonly string[];
  readonly page: (typeof PAGE_MODES)[number];
  readonly maxConnections: number;
  readonly database: DatabaseConfig;
  /** Name of the setting that chose the database, for messages: `--database`, `DATABASE_URL (.env)`, `the default`. */
  readonly databaseChosenBy: string;
  readonly poolSize: number;
  readonly namedStatements: boolean;
  /** Whether the server waits until another process has migrated the schema. */
  readonly noMigrate: boolean;
  readonly stateTtlHours: number;
  readonly stateCacheMib: number;
  readonly retentionPolicies: boolean;
  readonly drainSeconds: number;
  readonly lameDuckSeconds: number;
  /** Seconds without a client after which the server stops. Undefined: it never does. */
  readonly exitWhenUnused: number | undefined;
  readonly logLevel: (typeof LOG_LEVELS)[number];
  /** Undefined: text on a terminal, JSON elsewhere. */
  readonly logFormat: (typeof LOG_FORMATS)[number] | undefined;
  /** Warnings for the operator, ready to print. They contain no secrets. */
  readonly warnings: readonly string[];
}

/** Load balancers ask every few seconds whether an instance is ready. */
const LAME_DUCK_SECONDS = 5;

/** Passwords of published examples. They are accepted on loopback only. */
const PUBLISHED_PASSWORDS = new Set(['fle123', 'training_password', 'anabranch']);

/**
 * Loads and checks the configuration. Flags override variables, and variables of the process override those of `.env`.
 * For the database, the first of these that is set decides alone: `--database`, `DATABASE_URL`, `POSTGRES_…`, FLE's
 * names, the default. An empty variable counts as unset, and hides the same one in `.env`. Errors: ConfigError.
 */
export function loadConfig(sources: ConfigSources): Config {
  const values = new Values(sources);
  const { warnings: listenWarnings, ...listening } = parseListening(values, sources.cwd);
  const isExposed = !isLocal(listening.listen);
  const { maxConnections, warnings: connectionWarnings } = parseMaxConnections(values, sources.fileLimit?.());
  const { database, password, chosenBy, warnings } = chooseDatabase(values, sources.cwd);
  if (isExposed && password !== undefined && PUBLISHED_PASSWORDS.has(password)) {
    throw new ConfigError(
      'The database password is from a published example, which is rejected beyond loopback: set another password.',
    );
  }
  return deepFreeze({
    ...listening,
    allowedHosts: values.list('allowedHosts', parseHost),
    allowedOrigins: values.list('allowedOrigins', parseOrigin),
    page: values.isSet('page') ? values.choice('page', PAGE_MODES) : isExposed ? 'read' : 'write',
    maxConnections,
    database,
    databaseChosenBy: chosenBy,
    poolSize: values.whole('poolSize'),
    namedStatements: values.bool('namedStatements'),
    noMigrate: parseNoMigrate(values, database),
    stateTtlHours: values.whole('stateTtlHours'),
    stateCacheMib: values.whole('stateCacheMib'),
    retentionPolicies: values.bool('retentionPolicies'),
    drainSeconds: values.whole('drainSeconds'),
    lameDuckSeconds: values.isSet('lameDuckSeconds')
      ? values.whole('lameDuckSeconds')
      : isExposed
        ? LAME_DUCK_SECONDS
        : 0,
    exitWhenUnused: values.whole('exitWhenUnused') || undefined,
    logLevel: values.choice('logLevel', LOG_LEVELS),
    logFormat: values.isSet('logFormat') ? values.choice('logFormat', LOG_FORMATS) : undefined,
    warnings: [...listenWarnings, ...warnings, ...connectionWarnings, ...unusedHosts(values, isExposed)],
  });
}

/** Describes a database without its secrets: `SQLite /data/a.db`, `Postgres postgres://ann@db.example:5432/main`. */
export function describeDatabase(config: Pick<Config, 'database'>): string {
  const { database } = config;
  return database.engine === 'sqlite' ? `SQLite ${database.path}` : `Postgres ${scrubUrl(database.url)}`;
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

function parseNoMigrate(values: Values, { engine }: DatabaseConfig): boolean {
  const noMigrate = values.bool('noMigrate');
  if (noMigrate && engine === 'sqlite') {
    throw new ConfigError(
      `${values.nameOf('noMigrate')} requires Postgres: only one process can use an SQLite file, so the server migrates it.`,
    );
  }
  return noMigrate;
}

function unusedHosts(values: Values, isExposed: boolean): string[] {
  if (!values.isSet('allowedHosts') || !isExposed) return [];
  return [
    `${values.nameOf('allowedHosts')} has no effect beyond loopback: requests to any host name are answered there.`,
  ];
}

function deepFreeze<T extends object>(value: T): T {
  for (const inner of Object.values(value)) if (typeof inner === 'object' && inner !== null) deepFreeze(inner);
  return Object.freeze(value);
}
