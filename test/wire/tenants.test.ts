import { randomUUID } from 'node:crypto';
import { zstdDecompressSync } from 'node:zlib';
import type { DescMethod, Message } from '@bufbuild/protobuf';
import { toJsonString } from '@bufbuild/protobuf';
import { type ConnectError, createClient, type Interceptor, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { AdminService } from '../../gen/es/anabranch/v1/admin_service_pb.js';
import { BadRequestSchema, ErrorInfoSchema } from '../../gen/es/google/rpc/error_details_pb.js';
import { roleOf } from '../../src/rpc/gate.ts';
import { dumpNamespace, type OutsideSql, outsideSql } from '../store/sql.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { textsOf } from '../support/message_fields.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { sha256 } from '../support/steps.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { call, clientOf, framesOf, isRead, METHODS, newSceneOf, reasonOf, refusalOf } from './rpcs/drive.ts';
import { differences, withTexts } from './rpcs/spots.ts';
import { collect, putState } from './story.ts';

/** Methods of one namespace. Those of the installation need the role ADMIN: test/wire/access.test.ts. */
const TENANT_METHODS = METHODS.filter((method) => roleOf(method) !== 'ADMIN');

const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;
/** In the JSON of a message. */
const TIME = /\d{4}-\d\d-\d\dT[\d:.]+Z/g;
const DIGEST = /\b[0-9a-f]{64}\b/g;

/** Work in the background would send statements beside those of a call. */
const QUIET = {
  authenticated: true,
  keyCheckMs: 3_600_000,
  keyTrustMs: 7_200_000,
  maintenanceMs: 0,
  mergeIdleMs: 0,
  freeSpaceMs: 0,
  staleSweepMs: 0,
  leaseSweepMs: 0,
  retentionMs: 0,
};

const PATHS = [
  ['plain gRPC', createGrpcTransport],
  [
    'Connect',
    (options: Parameters<typeof createGrpcTransport>[0]) =>
      createConnectTransport({ ...options, httpVersion: '2', useBinaryFormat: true }),
  ],
] as const;

function isDigest(text: string): boolean {
  return text.length === 64 && text.match(DIGEST) !== null;
}

function idsIn(text: string): string[] {
  return [...text.matchAll(UUID), ...text.matchAll(DIGEST)].map(([id]) => id);
}

/** A text that names nothing, of the same kind. */
function fresh(text: string): string {
  return text.replace(UUID, () => randomUUID()).replace(DIGEST, () => sha256(randomUUID()));
}

/**
 * The frames with another text, and with fresh ids instead of those that are not in use: they name what the call makes,
 * and no call must repeat one.
 */
function changed(
  { input }: DescMethod,
  frames: readonly Message[],
  [ours, other]: readonly [string, string],
  isUsed: (id: string) => boolean,
): Message[] {
  const made = new Map<string, string>();
  return withTexts(input, frames, (text) => {
    if (text === ours) return other;
    const ids = text.match(UUID);
    if (ids === null || ids.some(isUsed)) return text;
    if (!made.has(text)) made.set(text, fresh(text));
    return made.get(text)!;
  });
}

/** Fields that hold ids, digests and tokens. */
const NAMES = /(_id|_ids|digests?|_token|_ids_state)$/;

/** Ids that programs choose for themselves: both tenants use the same. */
const CHOSEN = /\.(call_id|worker_id|writer_id|external_id|task_id)$/;

interface Outcome {
  readonly code: number | undefined;
  readonly reason: string | undefined;
  /** Of the error and its details. */
  readonly text: string;
  readonly answers: string;
  readonly statements: readonly string[];
}

describe.each(ENGINES)('two tenants, on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  let sql: OutsideSql;
  let secret: string;
  /** Fields that have named something of the other tenant alone, and those with one text in the requests of both. */
  const tried = new Set<string>();
  const common = new Set<string>();

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    await using open = await startTestServer({ database });
    const admin = createClient(AdminService, createGrpcTransport({ baseUrl: open.url }));
    secret = (await admin.createKey({ name: 'tenant', role: Role.WRITE, namespaces: ['*'] })).secret;
    await open.stop();
    server = await startTestServer({ database, settings: QUIET });
    sql = await outsideSql(database);
  });
  afterAll(async () => {
    await sql?.close();
    await server?.stop();
    await database?.drop();
  });

  /** Calls in one namespace. Those of a method have two for themselves. */
  const transportOf = (namespace: string, make: (typeof PATHS)[number][1] = createGrpcTransport): Transport => {
    const add: Interceptor = (next) => (request) => {
      request.header.set('authorization', `Bearer ${secret}`);
      request.header.set('anabranch-namespace', namespace);
      return next(request);
    };
    return make({ baseUrl: server.url, interceptors: [add] });
  };

  async function outcomeOf(transport: Transport, method: DescMethod, frames: readonly Message[]): Promise<Outcome> {
    await expect.poll(() => server.counts().handlers, { interval: 1 }).toBe(0);
    const statements = recordStatements();
    let answers: Message[] = [];
    const error = await refusalOf(
      call(transport, method, frames).then((all) => {
        answers = all;
      }),
    );
    const sent = statements.end();
    return {
      code: error?.code,
      reason: reasonOf(error),
      text: textOf(error),
      answers: answers.map((answer) => toJsonString(method.output, answer)).join('\n'),
      // What a call stores depends on what is stored. The subjects of a watch are read side by side.
      statements: error === undefined || method.name === 'Watch' ? [] : sent,
    };
  }

  /** Ids and digests in all that a tenant can export. */
  async function idsOf(transport: Transport): Promise<Set<string>> {
    const parts = await collect(createClient(AdminService, transport).exportArchive({}));
    return new Set(idsIn(zstdDecompressSync(Buffer.concat(parts.map(({ chunk }) => chunk))).toString('latin1')));
  }

  it.each(TENANT_METHODS)('N1: $name tells and changes nothing of another tenant', async (method) => {
    const requestsOf = async (transport: Transport) => framesOf(method, await newSceneOf(method, clientOf(transport)));
    const called = method.name.toLowerCase();
    const owner = transportOf(`owner-${called}`);
    const foreignState = await putState(clientOf(owner), Buffer.from(randomUUID()));
    const requests = await requestsOf(owner);
    const before = await dumpNamespace(sql, `owner-${called}`);
    const foreignIds = (await idsOf(owner)).add(foreignState);
    for (const [i, [path, make]] of PATHS.entries()) {
      const stranger = transportOf(`stranger-${i}-${called}`, make);
      const ours = await requestsOf(stranger);
      const own = await idsOf(stranger);
      const told = (frames: readonly Message[]) => outcomeOf(stranger, method, frames);
      const leaks = ({ text, answers }: Outcome, sent: string) =>
        [...foreignIds].filter(
          (id) => !own.has(id) && !sent.includes(id) && (text.includes(id) || answers.includes(id)),
        );
      for (const [r, frames] of ours.entries()) {
        const digests = new Set<string>();
        withTexts(method.input, frames, (text, field) => {
          common.add(field);
          if (isDigest(text)) digests.add(text);
          return text;
        });
        // Both tenants have some states: the owner names one that only it has.
        const theirs = withTexts(method.input, requests[r]!, (text) => (digests.has(text) ? foreignState : text));
        for (const { fields, ours: text, theirs: foreign } of differences(method.input, frames, theirs)) {
          for (const field of fields) tried.add(field);
          const never = fresh(foreign);
          const got = await told(changed(method, frames, [text, foreign], (id) => own.has(id)));
          const expected = await told(changed(method, frames, [text, never], (id) => own.has(id)));
          expect(refusal(got, foreign), `${path}, ${fields[0]}: ${foreign}`).toEqual(refusal(expected, never));
          expect(leaks(got, foreign), `${path}, ${fields[0]}`).toEqual([]);
        }
        const sent = theirs.map((frame) => toJsonString(method.input, frame)).join('\n');
        expect(leaks(await told(theirs), sent), path).toEqual([]);
      }
    }
    expect(await dumpNamespace(sql, `owner-${called}`)).toBe(before);
  });

  const READS = TENANT_METHODS.filter(isRead);

  it.each(READS)('N1: $name counts nothing of another tenant', async (method) => {
    const called = `reads-${method.name.toLowerCase()}`;
    const mine = transportOf(called);
    const requests = await framesOf(method, await newSceneOf(method, clientOf(mine)));
    const answers = async () => {
      const outcomes: string[] = [];
      for (const frames of requests)
        outcomes.push(
          (await outcomeOf(mine, method, frames)).answers.replaceAll(TIME, '<time>').split('\n').sort().join('\n'),
        );
      return outcomes;
    };
    const alone = await answers();
    await newSceneOf(method, clientOf(transportOf(`beside-${called}`)));
    expect(await answers()).toEqual(alone);
  });

  it('every text of a request has named something of the other tenant, or has been the same in both', () => {
    const texts = TENANT_METHODS.flatMap(({ input }) => [...textsOf(input)]);
    expect(texts.filter((field) => NAMES.test(field) && !CHOSEN.test(field) && !tried.has(field))).toEqual([]);
    expect(texts.filter((field) => !tried.has(field) && !common.has(field))).toEqual([]);
  });
});

/** All that does not depend on which text a request had. */
function refusal({ answers: _, ...told }: Outcome, sent: string): object {
  return { ...told, text: told.text.replaceAll(sent, '<it>').replaceAll(UUID, '<id>') };
}

function textOf(error: ConnectError | undefined): string {
  if (error === undefined) return '';
  const details = [
    ...error.findDetails(ErrorInfoSchema).map((detail) => toJsonString(ErrorInfoSchema, detail)),
    ...error.findDetails(BadRequestSchema).map((detail) => toJsonString(BadRequestSchema, detail)),
  ];
  return [error.rawMessage, ...details].join('\n');
}

type Query = (this: pg.Client, ...args: unknown[]) => unknown;

/** Statements that connections begin with, and those that tell other servers behind a call. */
const BESIDE = /^set statement_timeout|^select pg_backend_pid|pg_notify/;

/** Records the statements that this process sends to Postgres, each once: calls send the same one side by side. */
function recordStatements(): { end(): string[] } {
  const prototype = pg.Client.prototype as unknown as { query: Query };
  const send = prototype.query;
  const sent: string[] = [];
  prototype.query = function (...args) {
    const [query] = args;
    sent.push(typeof query === 'string' ? query : String((query as { text?: unknown }).text));
    return send.apply(this, args);
  };
  return {
    end() {
      prototype.query = send;
      return [...new Set(sent)].filter((text) => !BESIDE.test(text));
    },
  };
}
