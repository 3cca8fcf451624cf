import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { describeDatabase, loadConfig } from '../../src/config/config.ts';
import { CONFIG_TABLE } from '../../src/config/table.ts';
import { ConfigError, type ConfigFlags } from '../../src/config/values.ts';

type Env = Record<string, string | undefined>;

function load(env: Env = {}, flags: ConfigFlags = {}, dotEnv?: string) {
  return loadConfig({ env, flags, cwd: '/srv/ann', readFile: () => dotEnv });
}

function refusal(env: Env, flags: ConfigFlags = {}): string {
  try {
    load(env, flags);
  } catch (error) {
    expect(error).toBeInstanceOf(ConfigError);
    return (error as ConfigError).message;
  }
  throw new Error('nothing was refused');
}

const FLE_POSTGRES = {
  FLE_DB_TYPE: 'postgres',
  SKILLS_DB_HOST: 'db.example',
  SKILLS_DB_PORT: '5433',
  SKILLS_DB_NAME: 'fle_database',
  SKILLS_DB_USER: 'fle_user',
  SKILLS_DB_PASSWORD: 'p@ss:w/rd',
};

/** FLE on SQLite, with remains of its Postgres settings. */
function sqliteWith(...parts: readonly (keyof typeof FLE_POSTGRES)[]): Env {
  return { FLE_DB_TYPE: 'sqlite', ...Object.fromEntries(parts.map((part) => [part, FLE_POSTGRES[part]])) };
}

describe('--page', () => {
  it('offers operations on loopback only, unless it is set', () => {
    const beyond = { ANABRANCH_LISTEN: '0.0.0.0:1', ANABRANCH_INSECURE: 'true' };
    expect([load().page, load(beyond).page, load({ ...beyond, ANABRANCH_PAGE: 'write' }).page]).toEqual([
      'write',
      'read',
      'write',
    ]);
    expect(load({}, { page: 'off' }).page).toBe('off');
    expect(refusal({ ANABRANCH_PAGE: 'on' })).toContain('one of off, read, write');
  });
});

describe('configuration without any setting', () => {
  it('F-01: is an SQLite file in the working directory, on loopback', () => {
    expect(load()).toEqual({
      listen: { host: '127.0.0.1', port: 50051 },
      tls: undefined,
      insecure: false,
      authenticated: false,
      identity: undefined,
      adminKeyFile: undefined,
      allowedHosts: [],
      allowedOrigins: [],
      page: 'write',
      retentionPolicies: true,
      maxConnections: 10_000,
      database: { engine: 'sqlite', path: '/srv/ann/.anabranch/data.db' },
      databaseChosenBy: 'the default',
      poolSize: 10,
      namedStatements: true,
      noMigrate: false,
      stateTtlHours: 24,
      stateCacheMib: 64,
      drainSeconds: 25,
      lameDuckSeconds: 0,
      logLevel: 'info',
      logFormat: undefined,
      warnings: [],
    });
  });

  it('cannot be changed after it was read', () => {
    const config = load();
    for (const part of [config, config.listen, config.database, config.allowedHosts, config.warnings])
      expect(Object.isFrozen(part)).toBe(true);
  });

  it('uses the defaults listed in its table', () => {
    for (const row of CONFIG_TABLE) {
      if (row.default === undefined || row.name.startsWith('POSTGRES_')) continue;
      const { databaseChosenBy: _, ...config } = load({ [row.name]: row.default });
      expect(load(), row.name).toMatchObject(config);
    }
  });
});

describe('precedence', () => {
  const everything = {
    DATABASE_URL: 'sqlite:url.db',
    POSTGRES_HOST: 'parts',
    POSTGRES_DB: 'parts',
    ...FLE_POSTGRES,
    SQLITE_DB_FILE: 'fle.db',
  };

  it('is flag, DATABASE_URL, POSTGRES_…, the variables of FLE, default', () => {
    expect(load(everything, { database: 'sqlite:flag.db' }).database).toEqual({
      engine: 'sqlite',
      path: '/srv/ann/flag.db',
    });
    expect(load(everything).database).toEqual({ engine: 'sqlite', path: '/srv/ann/url.db' });
    const { DATABASE_URL: _url, ...withoutUrl } = everything;
    expect(load(withoutUrl).database).toEqual({ engine: 'postgres', url: 'postgres://postgres@parts:5432/parts' });
    const { POSTGRES_HOST: _host, POSTGRES_DB: _db, ...onlyFle } = withoutUrl;
    expect(load(onlyFle).database).toMatchObject({ engine: 'postgres', url: expect.stringContaining('fle_database') });
  });

  it('a flag wins over its variable', () => {
    const config = load({ ANABRANCH_LISTEN: '127.0.0.1:1', ANABRANCH_LOG_LEVEL: 'warn' }, { listen: 'localhost:2' });
    expect(config.listen).toEqual({ host: 'localhost', port: 2 });
    expect(config.logLevel).toBe('warn');
  });

  it('a variable of the process wins over the same one in .env', () => {
    const dotEnv = 'DATABASE_URL="sqlite:dot.db"\nANABRANCH_LOG_FORMAT=json\n';
    expect(load({ DATABASE_URL: 'sqlite:real.db' }, {}, dotEnv)).toMatchObject({
      database: { path: '/srv/ann/real.db' },
      logFormat: 'json',
    });
    expect(load({}, {}, dotEnv).database).toEqual({ engine: 'sqlite', path: '/srv/ann/dot.db' });
  });

  it('an empty variable counts as unset, and hides one in .env', () => {
    expect(load({ DATABASE_URL: '', ANABRANCH_LISTEN: '' })).toEqual(load());
    expect(load({ DATABASE_URL: '' }, {}, 'DATABASE_URL=sqlite:dot.db')).toEqual(load());
  });

  it('ignores flags of commands that are not settings', () => {
    expect(load({}, { json: true, address: 'x', database: undefined })).toEqual(load());
  });
});

describe('the database', () => {
  it.each([
    ['sqlite:data.db', '/srv/ann/data.db'],
    ['sqlite:/var/lib/a.db', '/var/lib/a.db'],
    ['sqlite:///data.db', '/srv/ann/data.db'],
    ['sqlite:///./sub/data.db', '/srv/ann/sub/data.db'],
    ['sqlite:////var/lib/a.db', '/var/lib/a.db'],
    ['sqlite:a folder/ä.db', '/srv/ann/a folder/ä.db'],
  ])('%s is the file %s', (url, path) => {
    expect(load({ DATABASE_URL: url }).database).toEqual({ engine: 'sqlite', path });
  });

  it.each([
    ['postgres://u:p@h:5/d', 'postgres://u:p@h:5/d'],
    ['postgresql://u:p@h/d?sslmode=require', 'postgres://u:p@h/d?sslmode=verify-full'],
    ['postgresql+psycopg2://u:p%40x@h:5/d', 'postgres://u:p%40x@h:5/d'],
    ['postgresql+asyncpg://h/d', 'postgres://h/d'],
    ['postgres://u@/d?host=/run/postgresql', 'postgres://u@localhost/d?host=/run/postgresql'],
    ['postgres:///d?host=/run/postgresql', 'postgres:///d?host=/run/postgresql'],
    ['postgres://u@%2Frun%2Fpg/d', 'postgres://u@%2Frun%2Fpg/d'],
    ['postgresql://u:p@a:1,b/d', 'postgres://u:p@localhost/d?host=a%2Cb&port=1%2C5432'],
    ['postgres://[::1]:5,b:6/d?a=1', 'postgres://localhost/d?a=1&host=%3A%3A1%2Cb&port=5%2C6'],
    ['postgres://u@localhost/d?host=a,b&port=5', 'postgres://u@localhost/d?host=a,b&port=5'],
  ])('%s is Postgres, by a valid URL', (given, url) => {
    expect(URL.canParse(url)).toBe(true);
    expect(load({ DATABASE_URL: given }).database).toEqual({ engine: 'postgres', url });
  });

  it.each([
    '',
    'data.db',
    'mysql://h/d',
    'sqlite:',
    'sqlite://data.db',
    'sqlite::memory:',
    'sqlite:folder/',
    'sqlite:a.db?mode=ro',
    'postgres://h:5432',
    'postgres://h:99999/d',
    'postgres://u:p%zz@h/d',
    'postgres://u@h/d?port=99999',
    'postgres://u@h/d?port=x',
    'postgres://u@a:1,b:99999/d',
    'postgres://u@a:1,:2/d',
    'postgres://u@a:1,b:x/d',
    'postgres://u@/d?host=a,b,c&port=1,2',
    'postgres://u@a,b/d?target_session_attrs=standby',
    'postgres:h/d',
  ])('"%s" is refused, with --database or DATABASE_URL and the expected form in the error', (url) => {
    const told = /(begins with "[a-z]+:(\/\/)?"|is (empty|not a database URL \(not shown: it may hold a password\)))/u
      .source;
    expect(refusal({}, { database: url })).toMatch(new RegExp(`^--database ${told}: expected .+`, 'u'));
    if (url !== '')
      expect(refusal({ DATABASE_URL: url })).toMatch(new RegExp(`^DATABASE_URL ${told}: expected .+`, 'u'));
  });

  it('checks certificates in all modes of TLS but no-verify, as the driver does', () => {
    const urlOf = (query: string) => load({ DATABASE_URL: `postgres://u@h/d?${query}` }).database;
    for (const mode of ['prefer', 'require', 'verify-ca', 'verify-full'])
      expect(urlOf(`sslmode=${mode}&a=1`)).toMatchObject({ url: 'postgres://u@h/d?sslmode=verify-full&a=1' });
    for (const query of ['sslmode=no-verify', 'sslmode=require&uselibpqcompat=true'])
      expect(urlOf(query)).toMatchObject({ url: `postgres://u@h/d?${query}` });
  });

  it('C-23: is built from POSTGRES_… with special characters encoded', () => {
    const env = { POSTGRES_HOST: 'h', POSTGRES_DB: 'a b', POSTGRES_USER: 'ä', POSTGRES_PASSWORD: 'p@:/?#%' };
    expect(load(env).database).toEqual({
      engine: 'postgres',
      url: 'postgres://%C3%A4:p%40%3A%2F%3F%23%25@h:5432/a%20b',
    });
    expect(load({ POSTGRES_DB: 'd' }).database).toMatchObject({ url: 'postgres://postgres@127.0.0.1:5432/d' });
    expect(load({ POSTGRES_HOST: 'h', POSTGRES_USER: 'u' }).database).toMatchObject({ url: 'postgres://u@h:5432/u' });
    expect(load({ POSTGRES_HOST: '::1', POSTGRES_DB: 'd' }).database).toMatchObject({
      url: 'postgres://postgres@[::1]:5432/d',
    });
    expect(load({ POSTGRES_HOST: '/run/pg', POSTGRES_DB: 'd' }).database).toMatchObject({
      url: 'postgres://postgres@localhost/d?host=%2Frun%2Fpg&port=5432',
    });
    expect(refusal({ POSTGRES_HOST: 'h', POSTGRES_PORT: '5432a' })).toBe(
      'POSTGRES_PORT is "5432a": expected a whole number from 1 to 65535.',
    );
  });

  it('is SQLite if only the password of some container is set', () => {
    expect(load({ POSTGRES_PASSWORD: 'x', POSTGRES_USER: 'y' }).database).toEqual(load().database);
  });

  it.each([
    ['--database', { DATABASE_URL: 'sqlite:url.db' }, { database: 'sqlite:flag.db' }],
    ['DATABASE_URL', { DATABASE_URL: 'sqlite:url.db', SQLITE_DB_FILE: 'f.db' }, {}],
    ['POSTGRES_HOST', { POSTGRES_HOST: 'h', POSTGRES_DB: 'd', POSTGRES_PASSWORD: 'p', SQLITE_DB_FILE: 'f.db' }, {}],
    ['POSTGRES_DB', { POSTGRES_DB: 'd', POSTGRES_PORT: '5433', POSTGRES_USER: 'u' }, {}],
    ['FLE_DB_TYPE', FLE_POSTGRES, {}],
    ['FLE_DB_TYPE', { FLE_DB_TYPE: 'sqlite', SQLITE_DB_FILE: 'f.db' }, {}],
    ['SQLITE_DB_FILE', { SQLITE_DB_FILE: 'f.db' }, {}],
    ['SKILLS_DB_HOST', { ...FLE_POSTGRES, FLE_DB_TYPE: undefined }, {}],
    ['the default', { DATABASE_URL: '' }, {}],
  ])('says that %s chose it, without a warning if all parts are used', (chosenBy, env, flags) => {
    expect(load(env, flags)).toMatchObject({ databaseChosenBy: chosenBy, warnings: [] });
  });

  it('says that a variable of .env chose it', () => {
    const dotEnv = 'SQLITE_DB_FILE=f.db\nPOSTGRES_PASSWORD=s3cret\n';
    const { databaseChosenBy, warnings } = load({}, {}, dotEnv);
    expect(databaseChosenBy).toBe('SQLITE_DB_FILE (.env)');
    expect(warnings).toEqual([
      expect.stringMatching(
        /^POSTGRES_PASSWORD \(\.env\) is set but not used: the database was chosen by SQLITE_DB_FILE \(/u,
      ),
    ]);
    expect(load({ SQLITE_DB_FILE: 'g.db' }, {}, dotEnv).databaseChosenBy).toBe('SQLITE_DB_FILE');
  });

  it.each([
    ['POSTGRES_PASSWORD is', 'the default', { POSTGRES_PASSWORD: 's3cret' }],
    ['POSTGRES_PORT, POSTGRES_USER are', 'the default', { POSTGRES_USER: 'u', POSTGRES_PORT: '5433' }],
    ['POSTGRES_HOST is', 'DATABASE_URL', { DATABASE_URL: 'sqlite:url.db', POSTGRES_HOST: 'h' }],
    ['POSTGRES_PASSWORD is', 'FLE_DB_TYPE', { ...FLE_POSTGRES, POSTGRES_PASSWORD: 's3cret' }],
    ['SKILLS_DB_HOST, SKILLS_DB_PORT are', 'FLE_DB_TYPE', sqliteWith('SKILLS_DB_HOST', 'SKILLS_DB_PORT')],
    ['SKILLS_DB_PASSWORD is', 'POSTGRES_DB', { POSTGRES_DB: 'd', SKILLS_DB_PASSWORD: 's3cret' }],
    ['SKILLS_DB_NAME is', 'the default', { SKILLS_DB_NAME: 'fle' }],
  ])('warns that %s set but not used because %s chose it, and prints no value', (set, chosenBy, env) => {
    const { databaseChosenBy, warnings } = load(env);
    expect(databaseChosenBy).toBe(chosenBy);
    expect(warnings).toEqual([
      expect.stringContaining(`${set} set but not used: the database was chosen by ${chosenBy}.`),
    ]);
    expect(warnings.join()).not.toContain('s3cret');
  });

  it('F-01, F-02, F-03: understands the variables of FLE', () => {
    expect(load({ FLE_DB_TYPE: 'sqlite' }).database).toEqual(load().database);
    expect(load({ FLE_DB_TYPE: 'sqlite', SQLITE_DB_FILE: 'f.db' }).database).toEqual({
      engine: 'sqlite',
      path: '/srv/ann/f.db',
    });
    expect(load({ SQLITE_DB_FILE: '/f.db' }).database).toEqual({ engine: 'sqlite', path: '/f.db' });
    const postgres = { engine: 'postgres', url: 'postgres://fle_user:p%40ss%3Aw%2Frd@db.example:5433/fle_database' };
    expect(load(FLE_POSTGRES).database).toEqual(postgres);
    expect(load({ ...FLE_POSTGRES, FLE_DB_TYPE: undefined }).database).toEqual(postgres);
    expect(load({ ...FLE_POSTGRES, FLE_DB_TYPE: 'sqlite' }).database).toEqual(load().database);
  });

  it('F-02: names the missing variables of FLE, and refuses an unknown type', () => {
    const { SKILLS_DB_PORT: _port, SKILLS_DB_USER: _user, ...rest } = FLE_POSTGRES;
    expect(refusal(rest)).toMatch(/^SKILLS_DB_PORT, SKILLS_DB_USER are not set: expected all five/u);
    expect(refusal({ FLE_DB_TYPE: 'mysql' })).toBe('FLE_DB_TYPE is "mysql": expected sqlite or postgres.');
  });
});

describe('listening', () => {
  it.each([
    ['127.0.0.1:0', '127.0.0.1', 0],
    ['127.8.9.1:65535', '127.8.9.1', 65535],
    ['[::1]:50051', '::1', 50051],
    ['localhost:50051', 'localhost', 50051],
  ])('on loopback (%s) needs no other setting', (text, host, port) => {
    expect(load({ ANABRANCH_LISTEN: text }).listen).toEqual({ host, port });
  });

  it.each(['0.0.0.0:50051', '[::]:50051', '192.168.0.4:50051', 'agents.example:443', '127.example:1'])(
    'A13: beyond loopback (%s) needs TLS and credentials, or --insecure, which warns',
    (text) => {
      expect(refusal({}, { listen: text })).toBe(`--listen is "${text}", which other machines can reach.
Such an address needs TLS (add --tls-cert FILE and --tls-key FILE, or --disable-tls behind a proxy that terminates it).
Or listen on 127.0.0.1:PORT or unix:PATH, or add --insecure (ANABRANCH_INSECURE=true) to do without.`);
      const files = { tlsCert: 'a.crt', tlsKey: 'a.key' };
      expect(refusal({ ANABRANCH_LISTEN: text, ANABRANCH_AUTH: 'off' }, files)).toContain(
        'Such an address needs credentials (leave out --auth off).',
      );
      expect(load({ ANABRANCH_LISTEN: text }, files)).toMatchObject({ authenticated: true, warnings: [] });
      const proxied = load({ ANABRANCH_LISTEN: text, ANABRANCH_DISABLE_TLS: 'true' });
      expect(proxied).toMatchObject({ tls: undefined, authenticated: true, warnings: [] });
      const everything = 'everybody who reaches the port can read, change and delete everything';
      expect(load({}, { listen: text, insecure: true })).toMatchObject({
        insecure: true,
        authenticated: false,
        warnings: [
          `--insecure allows ${text}, which other machines can reach: without TLS, whoever is on the way can read and change the traffic; without credentials, ${everything}.`,
        ],
      });
      expect(load({ ANABRANCH_LISTEN: text, ANABRANCH_INSECURE: 'true' }, files).warnings).toEqual([
        `ANABRANCH_INSECURE allows ${text}, which other machines can reach: without credentials, ${everything}.`,
      ]);
    },
  );

  it('N2: on loopback, callers need a key only with --auth required', () => {
    expect(load().authenticated).toBe(false);
    const keyFile = { ANABRANCH_ADMIN_KEY_FILE: 'keys/admin' };
    expect(load({ ANABRANCH_AUTH: 'required', ...keyFile })).toMatchObject({
      authenticated: true,
      adminKeyFile: '/srv/ann/keys/admin',
    });
    expect(refusal(keyFile)).toBe(
      'ANABRANCH_ADMIN_KEY_FILE is set, but callers need no key here: add --auth required, or leave it out.',
    );
    expect(refusal({ ANABRANCH_AUTH: 'on' })).toContain('expected one of required, off');
  });

  it.each([
    ['unix:/run/anabranch/sock', '/run/anabranch/sock'],
    ['unix:///run/anabranch/sock', '/run/anabranch/sock'],
    ['unix:sock', '/srv/ann/sock'],
    [`unix:/${'a'.repeat(106)}`, `/${'a'.repeat(106)}`],
  ])('A13: on the Unix socket %s needs no other setting', (text, socket) => {
    expect(load({ ANABRANCH_LISTEN: text })).toMatchObject({ listen: { socket }, page: 'write', warnings: [] });
  });

  it.each([
    [`unix:/${'a'.repeat(107)}`, 'expected the path of a socket of at most 107 bytes, got 108.'],
    [`unix:${'ä'.repeat(50)}`, 'expected the path of a socket of at most 107 bytes, got 109.'],
    ['unix:', 'or unix:PATH such as'],
    ['unix:/run/', 'or unix:PATH such as'],
    ['unix://run/sock', 'or unix:PATH such as'],
    ['unix:a\0b', 'or unix:PATH such as'],
  ])('on the Unix socket %j is refused', (text, expected) => {
    expect(refusal({}, { listen: text })).toContain(expected);
  });

  it.each([
    '50051',
    ':50051',
    '127.0.0.1',
    '127.0.0.1:',
    '127.0.0.1:65536',
    '::1:50051',
    '[:::]:1',
    'a b:1',
    '*:1',
    'http://h:1',
  ])('on "%s" is refused, with the expected form in the error', (text) => {
    expect(refusal({ ANABRANCH_LISTEN: text })).toBe(
      `ANABRANCH_LISTEN is "${text}": expected HOST:PORT such as 127.0.0.1:50051 or [::1]:50051, with a port from 0 to 65535 (0: any free one), or unix:PATH such as unix:/run/anabranch/sock.`,
    );
  });
});

describe('TLS', () => {
  it('A12: takes a certificate and its key, by flags or variables, from the working directory', () => {
    const tls = { certFile: '/srv/ann/tls.crt', keyFile: '/etc/tls.key' };
    expect(load({ ANABRANCH_TLS_CERT: 'tls.crt', ANABRANCH_TLS_KEY: '/etc/tls.key' }).tls).toEqual(tls);
    expect(load({}, { tlsCert: 'tls.crt', tlsKey: '/etc/tls.key' }).tls).toEqual(tls);
  });

  it('refuses one without the other, and TLS on a Unix socket', () => {
    expect(refusal({}, { tlsCert: 'a' })).toBe('--tls-cert is set without --tls-key: expected both, or neither.');
    expect(refusal({ ANABRANCH_TLS_KEY: 'a' })).toBe(
      'ANABRANCH_TLS_KEY is set without --tls-cert: expected both, or neither.',
    );
    expect(refusal({ ANABRANCH_TLS_KEY: 'a' }, { tlsCert: 'b', listen: 'unix:/s' })).toBe(
      '--listen is a Unix socket, which needs no TLS: unset --tls-cert and ANABRANCH_TLS_KEY.',
    );
  });

  it('N2: settings that contradict each other are all named at once', () => {
    const flags = { disableTls: true, tlsCert: 'a', listen: 'unix:/s', auth: 'off', adminKeyFile: 'k' };
    expect(refusal({}, flags).split('\n')).toEqual([
      '--tls-cert is set without --tls-key: expected both, or neither.',
      '--listen is a Unix socket, which needs no TLS: unset --tls-cert.',
      '--disable-tls leaves TLS to a proxy, but --tls-cert would serve it: unset one of them.',
      '--admin-key-file is set, but callers need no key here: add --auth required, or leave it out.',
    ]);
    expect(refusal({ ANABRANCH_TLS_KEY: 'a', ANABRANCH_DISABLE_TLS: '1' }, { tlsCert: 'b' })).toBe(
      'ANABRANCH_DISABLE_TLS leaves TLS to a proxy, but --tls-cert and ANABRANCH_TLS_KEY would serve it: unset one of them.',
    );
  });
});

describe('N2: tokens and client certificates', () => {
  const needed = { auth: 'required', principals: 'principals.yaml' };
  const tls = { tlsCert: 'tls.crt', tlsKey: 'tls.key' };

  it('need a mapping, whose path and those of other files are absolute', () => {
    const files = { jwtCa: 'ca.crt', jwtTokenFile: '/run/token' };
    expect(load({}, { ...needed, ...files, jwtIssuer: 'https://idp.example' }).identity).toEqual({
      jwt: {
        issuer: 'https://idp.example',
        audience: 'anabranch',
        keys: undefined,
        caFile: '/srv/ann/ca.crt',
        tokenFile: '/run/token',
      },
      clientCertificates: false,
      mappingFile: '/srv/ann/principals.yaml',
    });
    const config = load({}, { ...needed, ...tls, clientCa: 'clients.crt' });
    expect(config.tls?.clientCaFile).toBe('/srv/ann/clients.crt');
    expect(config.identity).toMatchObject({ jwt: undefined, clientCertificates: true });
  });

  it.each([
    ['keys.json', { file: '/srv/ann/keys.json' }],
    ['https://idp.example/keys', { url: 'https://idp.example/keys' }],
    ['http://127.0.0.1:8080/keys', { url: 'http://127.0.0.1:8080/keys' }],
  ])('keys come from %s', (jwtJwks, keys) => {
    expect(load({}, { ...needed, jwtIssuer: 'any text', jwtJwks }).identity?.jwt).toMatchObject({ keys });
  });

  it.each([
    [{ jwtIssuer: 'http://idp.example' }, '--jwt-issuer is "http://idp.example": expected the claim iss'],
    [{ jwtIssuer: 'kubernetes/serviceaccount' }, '--jwt-issuer is "kubernetes/serviceaccount": expected the claim iss'],
    [
      { jwtIssuer: 'x', jwtJwks: 'http://idp.example/keys' },
      '--jwt-jwks is "http://idp.example/keys": expected https://',
    ],
    [{ jwtIssuer: 'x', jwtJwks: 'file:///keys' }, '--jwt-jwks is "file:///keys": expected https://'],
    [{ jwtIssuer: 'x', jwtJwks: 'https://a:b@idp.example' }, '--jwt-jwks is invalid: expected https://'],
  ])('%j is refused', (flags, message) => {
    expect(refusal({}, { ...needed, ...flags })).toContain(message);
  });

  it('that contradict each other, or lack what they need, are all named at once', () => {
    expect(refusal({ ANABRANCH_JWT_ISSUER: 'https://idp.example' }, { clientCa: 'a' }).split('\n')).toEqual([
      'ANABRANCH_JWT_ISSUER is set, but callers need no credential here: add --auth required, or leave it out.',
      'ANABRANCH_JWT_ISSUER is set, but nobody has a role by it: add --principals FILE.',
      '--client-ca is set, but callers need no credential here: add --auth required, or leave it out.',
      '--client-ca is set, but nobody has a role by it: add --principals FILE.',
      '--client-ca needs TLS: add --tls-cert FILE and --tls-key FILE.',
    ]);
    const orphans = { jwtJwks: 'keys.json', jwtAudience: 'b', jwtCa: 'c', jwtTokenFile: 'd' };
    expect(refusal({}, { ...needed, ...orphans }).split('\n')).toEqual([
      '--principals is set without --jwt-issuer and --client-ca: add one of them, or leave it out.',
      ...['--jwt-jwks', '--jwt-audience', '--jwt-ca', '--jwt-token-file'].map(
        (flag) => `${flag} is set without --jwt-issuer: add it, or leave ${flag} out.`,
      ),
    ]);
    expect(refusal({}, { ...needed, ...orphans, jwtIssuer: 'x' }).split('\n')).toEqual(
      ['--jwt-ca', '--jwt-token-file'].map(
        (flag) => `${flag} is set, but --jwt-jwks is a file, which is not fetched: leave one of them out.`,
      ),
    );
  });
});

describe('allowed host names of requests, and allowed origins of web pages', () => {
  it('may be several: flags repeat, variables are separated by commas, and flags win', () => {
    const env = { ANABRANCH_ALLOWED_HOSTS: 'a.example, b.example,', ANABRANCH_ALLOWED_ORIGINS: 'https://a.example' };
    expect(load(env)).toMatchObject({
      allowedHosts: ['a.example', 'b.example'],
      allowedOrigins: ['https://a.example'],
    });
    const flags = { allowedHost: ['c.example', 'd.example'], allowedOrigin: ['http://c:1', 'http://d:2'] };
    expect(load(env, flags)).toMatchObject({
      allowedHosts: ['c.example', 'd.example'],
      allowedOrigins: ['http://c:1', 'http://d:2'],
    });
  });

  it.each([
    ['Anabranch.Example', 'anabranch.example'],
    ['anabranch.example.', 'anabranch.example'],
    ['my_service.default.svc', 'my_service.default.svc'],
    ['10.0.0.7', '10.0.0.7'],
    ['[FD00:0::7]', '[fd00::7]'],
  ])('the host %s is compared as %s', (text, host) => {
    expect(load({ ANABRANCH_ALLOWED_HOSTS: text }).allowedHosts).toEqual([host]);
  });

  it.each([
    ['https://App.Example', 'https://app.example'],
    ['https://app.example:443', 'https://app.example'],
    ['http://app.example:443', 'http://app.example:443'],
    ['http://localhost:5173', 'http://localhost:5173'],
    ['http://[::1]:5173', 'http://[::1]:5173'],
    ['chrome-extension://abcdef', 'chrome-extension://abcdef'],
  ])('the origin %s is %s, as browsers write it', (text, origin) => {
    expect(load({ ANABRANCH_ALLOWED_ORIGINS: text }).allowedOrigins).toEqual([origin]);
  });

  it.each([
    '*',
    '*.example',
    'http://a.example',
    'a.example:443',
    'a.example/x',
    'a b',
    'user@a.example',
    '::1',
    '[::1',
    '999.1.1.1',
    'ä.example',
  ])('the host "%s" is refused, and of several the error names the invalid one', (host) => {
    const wanted =
      'expected a host name or an address without scheme and port, such as anabranch.example, 10.0.0.7 or [fd00::7].';
    expect(refusal({}, { allowedHost: ['a.example', host] })).toBe(`--allowed-host is "${host}": ${wanted}`);
    expect(refusal({ ANABRANCH_ALLOWED_HOSTS: `${host},b` })).toBe(`ANABRANCH_ALLOWED_HOSTS is "${host}": ${wanted}`);
  });

  it.each([
    '*',
    'null',
    'app.example',
    'https://',
    'https://app.example/',
    'https://app.example/x',
    'https://*.example',
    'https://app.example:99999',
    'https://app.example?x',
    'file:///x',
  ])('the origin "%s" is refused', (origin) => {
    expect(refusal({}, { allowedOrigin: [origin] })).toBe(
      `--allowed-origin is "${origin}": expected SCHEME://HOST or SCHEME://HOST:PORT without a path, such as https://app.example or http://localhost:5173.`,
    );
  });

  it.each(['https://u@app.example', 'https://u:p@app.example'])(
    'an origin with credentials is refused without being shown: %s',
    (origin) => {
      expect(refusal({}, { allowedOrigin: [origin] })).toMatch(/^--allowed-origin is invalid: expected SCHEME/u);
    },
  );

  it('have no effect beyond loopback, and cause a warning there', () => {
    const flags = { allowedHost: ['a.example'] };
    expect(load({}, flags).warnings).toEqual([]);
    expect(load({}, { ...flags, listen: '0.0.0.0:1', insecure: true }).warnings).toEqual([
      expect.stringContaining('--insecure allows 0.0.0.0:1'),
      '--allowed-host has no effect beyond loopback: requests to any host name are answered there.',
    ]);
  });
});

describe('A4: the limit on connections', () => {
  const bound = (fileLimit: number | undefined, env: Env = {}) =>
    loadConfig({ env, flags: {}, cwd: '/', readFile: () => undefined, fileLimit: () => fileLimit });

  it.each([
    [undefined, 10_000],
    [1_000_000, 10_000],
    [10_201, 10_000],
    [10_199, 9_999],
    [1024, 824],
    [256, 56],
    [100, 1],
  ])('with %s files is %s by default', (fileLimit, connections) => {
    expect(bound(fileLimit)).toMatchObject({ maxConnections: connections, warnings: [] });
  });

  it('applies if it is set, with a warning if there are too few file descriptors', () => {
    expect(bound(1024, { ANABRANCH_MAX_CONNECTIONS: '824' })).toMatchObject({ maxConnections: 824, warnings: [] });
    expect(bound(1024, { ANABRANCH_MAX_CONNECTIONS: '5000' })).toMatchObject({
      maxConnections: 5000,
      warnings: [
        'ANABRANCH_MAX_CONNECTIONS is 5000, but the process may open only 1024 files: raise the limit of open files to 5200 (ulimit -n).',
      ],
    });
  });
});

describe('plain settings', () => {
  it.each([
    ['ANABRANCH_MAX_CONNECTIONS', 'max-connections', ['0', '1000001', 'many']],
    ['ANABRANCH_POOL_SIZE', 'pool-size', ['1', '501', '-1', '2.5', 'ten', '1e2', '0x10']],
    ['ANABRANCH_STATE_TTL_HOURS', 'state-ttl-hours', ['0', '8761', 'day']],
    ['ANABRANCH_STATE_CACHE_MIB', 'state-cache-mib', ['-1', '65537', '64 MiB']],
    ['ANABRANCH_DRAIN_SECONDS', 'drain-seconds', ['31', '-1', '1s']],
    ['ANABRANCH_EXIT_WHEN_UNUSED', 'exit-when-unused', ['86401', '-1', 'never']],
    ['ANABRANCH_LOG_LEVEL', 'log-level', ['INFO', 'verbose']],
    ['ANABRANCH_LOG_FORMAT', 'log-format', ['text']],
    ['ANABRANCH_INSECURE', 'insecure', ['maybe', '2']],
    ['ANABRANCH_NAMED_STATEMENTS', 'named-statements', ['on?']],
  ])('%s is refused with the expected form', (name, flag, wrong) => {
    const row = CONFIG_TABLE.find((each) => each.name === name);
    const key = flag.replace(/-(\w)/gu, (_, letter: string) => letter.toUpperCase());
    for (const value of wrong) {
      expect(refusal({ [name]: value })).toBe(`${name} is "${value}": expected ${row?.expected}.`);
      expect(refusal({}, { [key]: value })).toBe(`--${flag} is "${value}": expected ${row?.expected}.`);
    }
  });

  it('are used as they are set', () => {
    const env = {
      ANABRANCH_POOL_SIZE: ' 500 ',
      ANABRANCH_NAMED_STATEMENTS: 'no',
      ANABRANCH_STATE_TTL_HOURS: '1',
      ANABRANCH_STATE_CACHE_MIB: '0',
      ANABRANCH_DRAIN_SECONDS: '0',
      ANABRANCH_EXIT_WHEN_UNUSED: '10',
      ANABRANCH_LOG_LEVEL: 'silent',
      ANABRANCH_LOG_FORMAT: 'json',
    };
    expect(load(env)).toMatchObject({
      poolSize: 500,
      namedStatements: false,
      stateTtlHours: 1,
      stateCacheMib: 0,
      drainSeconds: 0,
      exitWhenUnused: 10,
      logLevel: 'silent',
      logFormat: 'json',
    });
  });
});

describe('secrets', () => {
  const canary = 'c4n4ry';

  it('appear in no description and in no error', () => {
    for (const url of [
      `postgres://u:${canary}@h:5432/d`,
      `postgres://u:${canary}%40@h:5432/d?password=${canary}&host=/run`,
      `postgres://u@h/d?password=${canary}`,
    ]) {
      const config = load({ DATABASE_URL: url });
      expect(describeDatabase(config)).not.toContain(canary);
      expect(describeDatabase(config)).toMatch(/^Postgres postgres:\/\/u@h(:5432)?\/d/u);
      expect(JSON.stringify(load({}, { database: url }).warnings)).not.toContain(canary);
    }
    for (const url of [
      `mysql://u:${canary}@h/d`,
      `postgres://u:${canary}@h:x/d`,
      `postgres://u:a@${canary}@h:x/d`,
      `postgres://u:${canary}@h`,
    ]) {
      expect(refusal({ DATABASE_URL: url })).not.toContain(canary);
      expect(refusal({}, { database: url })).not.toContain(canary);
    }
  });

  it('cause a warning if they are among the arguments, which every process can read', () => {
    expect(load({}, { database: 'postgres://u:p@h/d' }).warnings).toEqual([
      expect.stringContaining('set DATABASE_URL'),
    ]);
    expect(load({ DATABASE_URL: 'postgres://u:p@h/d' }).warnings).toEqual([]);
    expect(load({}, { database: 'postgres://u@h/d' }).warnings).toEqual([]);
  });

  it.each(['fle123', 'training_password', 'anabranch'])(
    'from published examples (%s) are refused beyond loopback',
    (password) => {
      const env = { POSTGRES_HOST: 'h', POSTGRES_PASSWORD: password };
      expect(load(env).listen).toMatchObject({ host: '127.0.0.1' });
      expect(refusal(env, { listen: '0.0.0.0:1', insecure: true })).toMatch(/published example/u);
      expect(
        refusal({ DATABASE_URL: `postgres://u:${password}@h/d` }, { listen: '0.0.0.0:1', insecure: true }),
      ).not.toContain(password);
    },
  );

  it('do not include the file name of SQLite', () => {
    expect(describeDatabase(load())).toBe('SQLite /srv/ann/.anabranch/data.db');
  });
});

describe('.env', () => {
  it('is read from the working directory if it exists', () => {
    const folder = mkdtempSync(join(tmpdir(), 'anabranch-env-'));
    try {
      expect(loadConfig({ env: {}, flags: {}, cwd: folder }).logLevel).toBe('info');
      writeFileSync(join(folder, '.env'), '# a comment\nANABRANCH_LOG_LEVEL="debug"\n');
      expect(loadConfig({ env: {}, flags: {}, cwd: folder }).logLevel).toBe('debug');
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('is refused by its path if it cannot be read', () => {
    const unreadable = () => {
      throw Object.assign(new Error('denied'), { code: 'EACCES' });
    };
    expect(() => loadConfig({ env: {}, flags: {}, cwd: '/srv/ann', readFile: unreadable })).toThrow(
      '/srv/ann/.env cannot be read (EACCES): expected a readable .env file, or none.',
    );
  });
});
