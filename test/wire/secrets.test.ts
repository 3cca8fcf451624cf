import { type DescMessage, type Message, ScalarType } from '@bufbuild/protobuf';
import type { Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { newSecret } from '../../src/domain/access.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { withHeaders } from './headers.ts';
import { asAdmin } from './keys.ts';
import { call, clientOf, framesOf, METHODS, newSceneOf, refusalOf } from './rpcs/drive.ts';
import { withValues } from './rpcs/spots.ts';

/** Nothing else has this text. It fits where a name is expected. */
const CANARY = 'c4n4ry';

/** Texts that the audit log has, as names of resources. */
const AUDITED = /\.(CreateKey|DeleteNamespace|SetRetentionPolicy|DeleteRetentionPolicy)Request\.(name|namespaces)$/;

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

describe.each(ENGINES)('N3: the log at its lowest level, on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  let secret: string;
  /** Of the database. SQLite has none. */
  let password: string;
  const log: string[] = [];

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    password = engine === 'postgres' ? new URL(database.url).password : CANARY;
    secret = (await asAdmin(database, (admin) => admin.createKey({ name: 'ann', role: Role.ADMIN }))).secret;
    server = await startTestServer({ database, settings: { authenticated: true }, onLog: (line) => log.push(line) });
  });
  afterAll(async () => {
    await server?.stop();
    await database?.drop();
  });

  const paths = (): Transport[] => {
    const headers = { authorization: `Bearer ${secret}`, 'user-agent': CANARY };
    const options = { baseUrl: server.url, interceptors: [withHeaders(headers)] };
    return [
      createGrpcTransport(options),
      createConnectTransport({ ...options, httpVersion: '2', useBinaryFormat: false }),
    ];
  };

  it.each(METHODS)('has no text, bytes or credential of $name', async (method) => {
    log.length = 0;
    for (const transport of paths()) {
      const scene = await newSceneOf(method, clientOf(transport));
      for (const frames of await framesOf(method, scene)) {
        await refusalOf(call(transport, method, frames));
        await refusalOf(call(transport, method, planted(method.input, frames, true)));
        await refusalOf(call(transport, method, planted(method.input, frames, false)));
      }
    }
    expect(log.length).toBeGreaterThan(0);
    const leaks = log.filter((line) =>
      [CANARY, secret, password, Buffer.from(CANARY).toString('base64')].some((text) => line.includes(text)),
    );
    expect(leaks).toEqual([]);
  });

  it.each(['GET /states/', 'GET /', 'POST /anabranch.v1.', 'GET /anabranch.v1.TrajectoryService/GetTree?message='])(
    'has no credential, path or header of %s',
    async (target) => {
      log.length = 0;
      const [method, path] = target.split(' ') as [string, string];
      const wrong = newSecret();
      for (const authorization of [`Bearer ${secret}`, `Bearer ${wrong}`, `Basic ${CANARY}`, CANARY]) {
        // N4: the log has the namespace.
        const headers = { authorization, 'anabranch-namespace': 'named', cookie: CANARY, 'x-a': CANARY };
        await fetch(`${server.url}${path}${CANARY}`, { method, headers });
      }
      const leaks = log.filter((line) => [CANARY, secret, wrong].some((text) => line.includes(text)));
      expect(leaks).toEqual([]);
    },
  );
});

/** The frames with the canary in every text and in all bytes. `keepsIds`: not in ids, so that more calls succeed. */
function planted(schema: DescMessage, frames: readonly Message[], keepsIds: boolean): Message[] {
  return withValues(schema, frames, ({ value, field, scalar }) => {
    if (scalar === ScalarType.BYTES) return Buffer.from(CANARY);
    if (typeof value !== 'string' || AUDITED.test(field)) return value;
    if (keepsIds && (UUID.test(value) || value === '')) return value;
    return /_json$/.test(field) || /^[{["]/.test(value)
      ? JSON.stringify({ [CANARY]: CANARY })
      : `${CANARY}${value}`.slice(0, 60);
  });
}
