export const LOG_LEVELS = ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'] as const;
export const LOG_FORMATS = ['pretty', 'json'] as const;
export const AUTH_MODES = ['required', 'off'] as const;
export const PAGE_MODES = ['off', 'read', 'write'] as const;

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
export const SQLITE_FILE = 'the path of a file';

const MAX_CONNECTIONS = 10_000;
/**
 * Files that are not connections within the bound: reserve connections, the database, the log, and Node's own files.
 */
export const OTHER_FILES = 200;

export const TABLE = {
  listen: {
    name: 'ANABRANCH_LISTEN',
    flag: '--listen ADDRESS',
    default: '127.0.0.1:50051',
    expected:
      'HOST:PORT such as 127.0.0.1:50051 or [::1]:50051, with a port from 0 to 65535 (0: any free one), or unix:PATH such as unix:/run/anabranch/sock',
    doc: 'Address to listen on, for gRPC, gRPC-Web, Connect and plain HTTP/1.1. Loopback and Unix sockets need no other setting. An address that other machines can reach needs TLS and credentials, or `--insecure`. A Unix socket has mode 0600, in a folder of mode 0700.',
  },
  metricsListen: {
    name: 'ANABRANCH_METRICS_LISTEN',
    flag: '--metrics-listen ADDRESS',
    expected: 'HOST:PORT such as 127.0.0.1:9464, or a port, which is one of 127.0.0.1',
    doc: 'Another address, which serves only `GET /metrics` in the text format of Prometheus, by plain HTTP and without credentials. The main port serves it too, to credentials for all namespaces.',
  },
  tlsCert: {
    name: 'ANABRANCH_TLS_CERT',
    flag: '--tls-cert FILE',
    expected: 'the path of a file',
    doc: 'Certificate for TLS 1.2 and 1.3 in PEM format, followed by the certificates of its issuers. Requires `--tls-key`. The port then accepts only TLS. Both files are read again every 5 seconds, so that a renewed certificate needs no restart.',
  },
  tlsKey: {
    name: 'ANABRANCH_TLS_KEY',
    flag: '--tls-key FILE',
    expected: 'the path of a file',
    doc: 'Private key of the certificate in PEM format, without a passphrase.',
  },
  disableTls: {
    name: 'ANABRANCH_DISABLE_TLS',
    flag: '--disable-tls',
    default: 'false',
    expected: YES_OR_NO,
    doc: 'Allow an address that other machines can reach without TLS, behind a proxy or a mesh that terminates it. Credentials are required. Browsers then need `--allowed-origin`.',
  },
  auth: {
    name: 'ANABRANCH_AUTH',
    flag: '--auth MODE',
    default: 'off',
    expected: oneOf(AUTH_MODES),
    doc: '`required`: every call needs a credential: an API key (`anabranch keys create`), a token or a client certificate. The default is `required` for an address that other machines can reach, unless `--insecure` allows it without.',
  },
  adminKeyFile: {
    name: 'ANABRANCH_ADMIN_KEY_FILE',
    flag: '--admin-key-file FILE',
    expected: 'the path of a file',
    doc: 'File with an API key that the server accepts with the role ADMIN. If the file does not exist, the server creates a key and writes it there, with mode 0600.',
  },
  clientCa: {
    name: 'ANABRANCH_CLIENT_CA',
    flag: '--client-ca FILE',
    expected: 'the path of a file',
    doc: 'Certificates of authorities in PEM format. Clients are asked for a certificate in the TLS handshake, and one of these authorities is a credential (mTLS). Requires `--tls-cert` and `--principals`. Read again with the certificate.',
  },
  jwtIssuer: {
    name: 'ANABRANCH_JWT_ISSUER',
    flag: '--jwt-issuer URL',
    expected: 'the claim iss of its tokens: an https:// URL, or any text with --jwt-jwks',
    doc: 'Issuer whose signed tokens (JWT) are credentials, such as an OpenID Connect provider or a Kubernetes cluster. Requires `--principals`.',
  },
  jwtAudience: {
    name: 'ANABRANCH_JWT_AUDIENCE',
    flag: '--jwt-audience TEXT',
    default: 'anabranch',
    expected: 'the claim aud of tokens for this server',
    doc: 'Audience of the tokens. Those for others are refused.',
  },
  jwtJwks: {
    name: 'ANABRANCH_JWT_JWKS',
    flag: '--jwt-jwks URL_OR_FILE',
    expected: 'https:// and the address of a set of keys (http:// on loopback only), or the path of a file with one',
    doc: 'Public keys of the issuer (JWKS). The default is the address that the issuer tells at `/.well-known/openid-configuration`. Keys are fetched again every 5 minutes, and at most once a minute for a key that a token names. The last ones serve for 24 hours. A file is read again every 5 seconds.',
  },
  jwtCa: {
    name: 'ANABRANCH_JWT_CA',
    flag: '--jwt-ca FILE',
    expected: 'the path of a file',
    doc: 'Certificates of the authorities to trust when keys are fetched, in PEM format. The default is those of Node.',
  },
  jwtTokenFile: {
    name: 'ANABRANCH_JWT_TOKEN_FILE',
    flag: '--jwt-token-file FILE',
    expected: 'the path of a file',
    doc: 'File with a token that is sent when keys are fetched, read for each fetch. A Kubernetes API server wants one.',
  },
  principals: {
    name: 'ANABRANCH_PRINCIPALS',
    flag: '--principals FILE',
    expected: 'the path of a file',
    doc: 'YAML file that gives the subjects of tokens and client certificates their roles and namespaces (see docs/security.md). Read again every 5 seconds.',
  },
  insecure: {
    name: 'ANABRANCH_INSECURE',
    flag: '--insecure',
    default: 'false',
    expected: YES_OR_NO,
    doc: 'Allow an address that other machines can reach without TLS and without credentials: everybody who reaches the port has full access. Each start logs a warning.',
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
  page: {
    name: 'ANABRANCH_PAGE',
    flag: '--page MODE',
    default: 'write',
    expected: oneOf(PAGE_MODES),
    doc: 'The page for browsers, at `/`. `read` hides its operations, but every client can still call the RPCs; `off` serves no page. Beyond loopback, the default is `read`.',
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
    doc: 'The database. A relative SQLite path starts from the working directory (as in SQLAlchemy, `sqlite:///a.db` is relative and `sqlite:////a.db` absolute); the file and its folder are created if needed. Of several hosts of Postgres (`HOST:PORT,HOST:PORT`), the one that accepts writes is used.',
    secret: true,
  },
  directDatabase: {
    name: 'ANABRANCH_DIRECT_DATABASE',
    flag: '--direct-database URL',
    expected: 'postgres://USER:PASSWORD@HOST:PORT/DATABASE (also postgresql://, postgresql+psycopg2://)',
    doc: 'The same Postgres database without the pooler, if the database is behind one such as pgbouncer. Used for LISTEN and migrations. Without it, an instance behind a pooler finds writes of other instances by polling. SQLite ignores it.',
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
    doc: 'Maximum number of connections to Postgres, besides two for appends. SQLite ignores it.',
  },
  namedStatements: {
    name: 'ANABRANCH_NAMED_STATEMENTS',
    flag: '--named-statements BOOLEAN',
    default: 'true',
    expected: YES_OR_NO,
    doc: 'Use named prepared statements in Postgres. Set false behind a pooler that does not support them, such as pgbouncer before 1.21 in transaction mode. SQLite ignores it.',
  },
  noMigrate: {
    name: 'ANABRANCH_NO_MIGRATE',
    flag: '--no-migrate',
    default: 'false',
    expected: YES_OR_NO,
    doc: 'Do not migrate the schema: wait until `anabranch migrate` has done so. Meanwhile `GET /livez` returns 200, and everything else 503. Requires Postgres.',
  },
  stateTtlHours: {
    name: 'ANABRANCH_STATE_TTL_HOURS',
    flag: '--state-ttl-hours HOURS',
    default: '24',
    ...whole(1, 8760),
    doc: 'Hours that a state without references is kept after it was last put or requested.',
  },
  stateCacheMib: {
    name: 'ANABRANCH_STATE_CACHE_MIB',
    flag: '--state-cache-mib MIB',
    default: '64',
    ...whole(0, 65536),
    doc: 'Memory for the last states of trajectories that are written to, in MiB. The next state of each is stored as changes of its last one. With 0, every state is stored whole.',
  },
  retentionPolicies: {
    name: 'ANABRANCH_RETENTION_POLICIES',
    flag: '--retention-policies BOOLEAN',
    default: 'true',
    expected: YES_OR_NO,
    doc: 'Apply stored retention policies that are due. Set false on instances that leave this to others of the same database.',
  },
  drainSeconds: {
    name: 'ANABRANCH_DRAIN_SECONDS',
    flag: '--drain-seconds SECONDS',
    default: '25',
    ...whole(0, 30),
    doc: 'Seconds that a shutdown waits for open calls before it cancels them.',
  },
  lameDuckSeconds: {
    name: 'ANABRANCH_LAME_DUCK',
    flag: '--lame-duck SECONDS',
    ...whole(0, 300),
    doc: 'Seconds that the server accepts calls after SIGTERM, while `/readyz` and `grpc.health.v1` say that it is not ready. The default is 5 for an address that other machines can reach, and 0 for others.',
  },
  exitWhenUnused: {
    name: 'ANABRANCH_EXIT_WHEN_UNUSED',
    flag: '--exit-when-unused SECONDS',
    default: '0',
    ...whole(0, 86_400),
    doc: 'Seconds without a connected client after which the server stops, counted from its start and from the last disconnect. With 0, it never does.',
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
    expected: oneOf(LOG_FORMATS),
    doc: 'Format of log lines: text for people, or JSON for programs. The default is `pretty` on a terminal, and `json` elsewhere.',
  },
} as const satisfies Record<string, ConfigRow>;

export type Key = keyof typeof TABLE;
export type NumberKey = { [K in Key]: (typeof TABLE)[K] extends { bounds: unknown } ? K : never }[Key];

/** Every setting, in the order of the documentation. */
export const CONFIG_TABLE: readonly ConfigRow[] = Object.values(TABLE);
