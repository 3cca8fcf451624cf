/**
 * Which room may import which: the dependency table of the sources, as data. Imports lead towards `domain`; only the
 * composition root `src/server.ts` sees both ends. A room is a folder or a file of `src/`, or the page; the longest
 * match determines the room of a file.
 */
export interface Room {
  /** Rooms it may import from, besides itself. */
  readonly rooms: readonly string[];
  /** Packages and Node modules it may import. A trailing `/*` stands for every module below. */
  readonly packages: readonly string[];
}

const CONNECT = ['@bufbuild/protobuf', '@bufbuild/protobuf/*', '@connectrpc/connect', '@connectrpc/connect/*'];
const STORE = ['src/store/contract', 'src/domain'];
/** Rooms of the store's SQL. Each may import from those before it. */
const KIT = [...STORE, 'src/store/sql/kit'];
const LOG = [...KIT, 'src/store/sql/log', 'src/store/sql/log/search'];
const RECORDS = [...LOG, 'src/store/sql/records'];
const UPKEEP = [...RECORDS, 'src/store/sql/upkeep', 'src/store/sql/upkeep/archive/reading', 'src/store/spool.ts'];
/** What the engines know of the store's SQL. */
const SHARED_SQL = [...UPKEEP, 'src/store/sql', 'src/store/migrations'];
/** Command lines write, read files, start processes and draw; they are programs around the client. */
const PROGRAM = ['commander', 'picocolors', 'cli-progress', 'node:*'];

export const ROOMS: Readonly<Record<string, Room>> = {
  // Places for which callers wait in turn, whatever the places are.
  'src/queue': { rooms: [], packages: [] },
  'src/domain': { rooms: ['src/domain/numbers'], packages: ['node:buffer', 'node:crypto', 'node:zlib'] },
  // Numbers in contents, which the server, the page and the command line read alike.
  'src/domain/numbers': { rooms: [], packages: [] },

  'src/store/contract': { rooms: ['src/domain'], packages: [] },
  'src/store/copy.ts': { rooms: STORE, packages: [] },
  // A temporary file, whatever the engine of the store.
  'src/store/spool.ts': { rooms: ['src/domain'], packages: ['node:sqlite'] },
  'src/store/migrations': {
    rooms: KIT,
    packages: ['kysely', 'kysely/migration', 'node:crypto', 'node:timers/promises'],
  },
  'src/store/sql': { rooms: UPKEEP, packages: ['kysely'] },
  'src/store/sql/kit': { rooms: [...STORE, 'src/queue'], packages: ['kysely', 'node:crypto', 'node:zlib'] },
  'src/store/sql/log': { rooms: LOG, packages: ['kysely', 'node:crypto', 'node:zlib'] },
  // Searches steps on a thread.
  'src/store/sql/log/search': {
    rooms: [...LOG, 'src/queue'],
    packages: ['kysely', 'node:events', 'node:worker_threads'],
  },
  'src/store/sql/records': { rooms: RECORDS, packages: ['kysely', 'node:crypto'] },
  'src/store/sql/upkeep': { rooms: UPKEEP, packages: ['kysely', 'node:crypto'] },
  // The host of Postgres and its history, questions and requests by connections beside the pool, and explanations of
  // its refusals.
  'src/store/postgres_access': { rooms: [], packages: ['pg'] },
  // Reads the bytes of archives on a thread.
  'src/store/sql/upkeep/archive/reading': {
    rooms: [...UPKEEP, 'src/archive'],
    packages: ['node:worker_threads'],
  },
  'src/store/postgres': {
    rooms: [...SHARED_SQL, 'src/queue', 'src/store/postgres_access'],
    packages: ['kysely', 'pg', 'node:crypto', 'node:net'],
  },
  // Whether a process may use an SQLite file: whose it is, its lock, its other names, and whether it is still there.
  'src/store/file_guard': {
    rooms: STORE,
    packages: [
      'node:fs',
      'node:fs/promises',
      'node:os',
      'node:path',
      'node:sqlite',
      'node:timers/promises',
      'node:url',
    ],
  },
  'src/store/sqlite': {
    rooms: [...SHARED_SQL, 'src/queue', 'src/store/file_guard'],
    packages: ['kysely', 'node:fs', 'node:os', 'node:sqlite', 'node:worker_threads'],
  },
  // Work on the file of a running server as a whole, by connections of its own.
  'src/store/sqlite_file': {
    rooms: ['src/domain', 'src/store/contract', 'src/store/file_guard', 'src/store/sqlite'],
    packages: ['node:crypto', 'node:fs', 'node:fs/promises', 'node:path', 'node:sqlite', 'node:timers/promises'],
  },
  // Work on the schema in Postgres as a whole.
  'src/store/postgres_schema': {
    rooms: ['src/store/contract', 'src/store/postgres', 'src/store/postgres_access'],
    packages: ['node:timers/promises', 'pg'],
  },
  'src/store/open.ts': {
    rooms: [...SHARED_SQL, 'src/store/postgres', 'src/store/sqlite'],
    packages: [],
  },

  // Long-lived parts, which know neither wire nor engine.
  'src/stream': { rooms: [...STORE, 'src/queue'], packages: ['node:events', 'node:worker_threads'] },
  // The methods of the services, a folder a noun, with what they share in `request`.
  'src/service': {
    rooms: [...STORE, 'src/domain/numbers', 'src/stream', 'src/archive', 'gen'],
    packages: ['@bufbuild/protobuf', '@bufbuild/protobuf/*'],
  },
  // The bytes of archives.
  'src/archive': {
    rooms: ['src/domain'],
    packages: ['node:buffer', 'node:crypto', 'node:stream', 'node:stream/promises', 'node:zlib'],
  },
  'src/rpc': {
    rooms: [
      'src/domain',
      'src/listen/client_certificate.ts',
      'src/listen/envelope.ts',
      'src/listen/safe_headers.ts',
      'src/listen/unsent.ts',
      'src/service',
      'src/stream',
      'gen',
    ],
    packages: [
      ...CONNECT,
      '@connectrpc/connect-node',
      '@bufbuild/protovalidate',
      '@bufbuild/protovalidate/*',
      'node:async_hooks',
      'node:crypto',
      'node:events',
      'node:http',
      'node:http2',
      'node:net',
    ],
  },
  // The format of envelopes, for whoever reads a body.
  'src/listen/envelope.ts': { rooms: [], packages: [] },
  // What a client has shown in its TLS handshake, for whoever decides what it proves.
  'src/listen/client_certificate.ts': { rooms: ['src/domain'], packages: ['node:net', 'node:tls'] },
  // What every response of the port has, for whoever writes one.
  'src/listen/safe_headers.ts': { rooms: [], packages: [] },
  'src/listen/unsent.ts': { rooms: ['src/listen', 'src/queue'], packages: ['node:http2'] },
  'src/listen': {
    rooms: [
      'src/listen/client_certificate.ts',
      'src/listen/envelope.ts',
      'src/listen/safe_headers.ts',
      'src/queue',
      'src/watched_files.ts',
    ],
    packages: [
      'node:crypto',
      'node:fs',
      'node:http',
      'node:http2',
      'node:net',
      'node:path',
      'node:sqlite',
      'node:stream',
      'node:tls',
      'node:v8',
    ],
  },
  // Which URLs may be fetched, for the settings and for what fetches.
  'src/config/fetchable.ts': { rooms: [], packages: [] },
  'src/config': {
    rooms: ['src/config/fetchable.ts'],
    packages: ['zod', 'node:fs', 'node:net', 'node:path', 'node:util'],
  },

  'src/client': {
    rooms: ['gen'],
    packages: [
      ...CONNECT,
      '@opentelemetry/api',
      'node:crypto',
      'node:fs',
      'node:fs/promises',
      'node:http2',
      'node:net',
      'node:process',
      'node:tls',
    ],
  },
  // What the savers and sessions of frameworks share.
  'integrations/src': { rooms: ['src/client', 'gen'], packages: CONNECT },
  'integrations/src/langgraph': {
    rooms: ['integrations/src', 'src/client', 'gen'],
    packages: [...CONNECT, '@langchain/langgraph-checkpoint', '@langchain/core/*', 'node:crypto', 'uuid'],
  },
  // The packages of the other frameworks are imported for their types only.
  'integrations/src/openai_agents': {
    rooms: ['integrations/src', 'src/client', 'gen'],
    packages: ['@openai/agents', 'node:crypto', 'uuid'],
  },
  'integrations/src/claude_agent_sdk': {
    rooms: ['integrations/src', 'src/client', 'gen'],
    packages: [...CONNECT, '@anthropic-ai/claude-agent-sdk', 'node:crypto', 'uuid'],
  },
  // For browsers: no room and no package that needs Node.
  'src/client/web': { rooms: ['src/client', 'gen'], packages: [...CONNECT, '@connectrpc/connect-web'] },
  // The page: a user of the client, of those modules that need no Node, and of nothing else of the server.
  'page/src': {
    rooms: ['src/client', 'src/client/web', 'src/domain/numbers', 'gen'],
    packages: [
      '@bufbuild/protobuf',
      '@bufbuild/protobuf/wire',
      '@bufbuild/protobuf/wkt',
      '@connectrpc/connect',
      '@msgpack/msgpack',
      'preact',
      'preact/hooks',
      'rfc6902',
    ],
  },
  // The page in a file: it answers its own calls.
  'page/src/file': {
    rooms: ['page/src', 'src/client/web', 'src/domain/numbers', 'gen'],
    packages: [...CONNECT, 'preact'],
  },
  // A command of the command line, which draws as the others do.
  'src/demo': { rooms: ['src/client', 'src/cli', 'src/config', 'gen'], packages: ['@bufbuild/protobuf', ...PROGRAM] },
  // Files for analysis, written from what the client reads.
  'src/tables': {
    rooms: ['src/client', 'src/domain/numbers', 'gen'],
    packages: [
      '@bufbuild/protobuf',
      '@bufbuild/protobuf/*',
      'hyparquet-writer',
      'node:buffer',
      'node:fs/promises',
      'node:sqlite',
    ],
  },
  'src/cli': {
    rooms: [
      // What the page draws, by functions that need no browser.
      'page/src',
      // The built page, to be written into files.
      'src/page.ts',
      'src/client',
      'src/config',
      'src/demo',
      'src/domain/numbers',
      'src/tables',
      'src/observe',
      'src/server.ts',
      'src/start_error.ts',
      'src/version.ts',
      'gen',
    ],
    packages: [...CONNECT, ...PROGRAM, 'pino', 'pino-pretty'],
  },

  // Who shows a token or a certificate, by files and by the keys of an identity provider.
  'src/identity': {
    rooms: ['src/config', 'src/config/fetchable.ts', 'src/domain', 'src/watched_files.ts'],
    packages: ['jose', 'yaml', 'zod', 'node:fs/promises', 'node:http', 'node:https'],
  },
  'src/watched_files.ts': { rooms: [], packages: ['node:crypto', 'node:fs/promises'] },

  // The built page, as files.
  'src/page.ts': {
    rooms: ['src/listen', 'src/listen/unsent.ts'],
    packages: ['node:crypto', 'node:fs', 'node:path', 'node:zlib'],
  },
  // What parts of the server report, in the formats of those who watch it.
  'src/observe': {
    rooms: ['src/domain', 'src/store/contract', 'src/stream'],
    packages: ['@opentelemetry/*', 'node:timers/promises', 'prom-client'],
  },
  'src/start_error.ts': { rooms: [], packages: [] },
  'src/admin_key.ts': {
    rooms: ['src/domain', 'src/start_error.ts', 'src/store/contract'],
    packages: ['node:fs/promises'],
  },
  'src/version.ts': { rooms: [], packages: ['node:fs'] },
  'src/server.ts': {
    rooms: [
      'src/admin_key.ts',
      'src/config',
      'src/domain',
      'src/identity',
      'src/listen',
      'src/observe',
      'src/page.ts',
      'src/rpc',
      'src/start_error.ts',
      'src/store/contract',
      'src/store/copy.ts',
      'src/store/file_guard',
      'src/store/open.ts',
      'src/store/postgres_schema',
      'src/store/sqlite_file',
      'src/stream',
      'src/version.ts',
      'gen',
    ],
    packages: ['pino', 'uuid', 'node:*'],
  },
  'src/external_memory.ts': { rooms: [], packages: ['node:v8'] },
  'src/initial_heap.ts': { rooms: [], packages: ['node:os', 'node:v8'] },
  'src/main.ts': { rooms: ['src/cli', 'src/external_memory.ts', 'src/initial_heap.ts'], packages: ['node:process'] },
};
