import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Role } from '../../gen/es/anabranch/v1/access_pb.js';
import { TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import type { Store } from '../../src/store/contract/store.ts';
import { type OutsideSql, outsideSql } from '../store/sql.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { textsOf } from '../support/message_fields.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { asAdmin } from './keys.ts';
import { isRead } from './rpcs/drive.ts';
import { CHOSEN, NAMES, QUIET, TENANT_METHODS, Tenancy } from './tenancy.ts';

describe.each(ENGINES)('N1: two tenants, on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  let sql: OutsideSql;
  let tenancy: Tenancy;

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    const { secret } = await asAdmin(database, (admin) =>
      admin.createKey({ name: 'tenant', role: Role.WRITE, namespaces: ['*'] }),
    );
    server = await startTestServer({ database, settings: { ...QUIET, authenticated: true } });
    sql = await outsideSql(database);
    tenancy = new Tenancy(server, sql, secret);
  });
  afterAll(async () => {
    await sql?.close();
    await server?.stop();
    await database?.drop();
  });

  it.each(TENANT_METHODS)('$name tells and changes nothing of another tenant', (method) => tenancy.checkMethod(method));

  it.each(TENANT_METHODS.filter(isRead))('$name counts nothing of another tenant', (method) =>
    tenancy.checkCounts(method),
  );

  it('every text of a request has named something of the other tenant, or has been the same in both', () => {
    const { tried, common } = tenancy;
    const texts = TENANT_METHODS.flatMap(({ input }) => [...textsOf(input)]);
    expect(texts.filter((field) => NAMES.test(field) && !CHOSEN.test(field) && !tried.has(field))).toEqual([]);
    expect(texts.filter((field) => !tried.has(field) && !common.has(field))).toEqual([]);
  });
});

/** Deliberate mistakes: the proofs must fail over each of them. */
const MISTAKES: Readonly<Record<string, (store: Store) => Partial<Store>>> = {
  'a query without its namespace': (store) => ({
    getTrajectory: async (_, id) => {
      for (const namespace of await store.listNamespaces()) {
        const found = await store.getTrajectory(namespace, id);
        if (found !== undefined) return found;
      }
      return undefined;
    },
  }),
  'a cache without its namespace': (store) => {
    const cache = new Map<string, ReturnType<Store['getTrajectory']>>();
    return {
      getTrajectory: (namespace, id) => {
        const known = cache.get(id) ?? store.getTrajectory(namespace, id);
        cache.set(id, known);
        return known;
      },
    };
  },
  'another error for an id of another tenant': (store) => ({
    getTrajectory: async (namespace, id) => {
      for (const other of await store.listNamespaces())
        if (other !== namespace && (await store.getTrajectory(other, id)) !== undefined) throw new Error('not yours');
      return store.getTrajectory(namespace, id);
    },
  }),
  'a list over all namespaces': (store) => ({
    listTrajectories: async (_, __, page) => {
      const namespaces = await store.listNamespaces();
      return (await Promise.all(namespaces.map((each) => store.listTrajectories(each, {}, page)))).flat();
    },
  }),
};

describe.each(Object.entries(MISTAKES))('negative control: %s', (_name, mistake) => {
  it('is found', async () => {
    const database = await createMigratedDatabase('sqlite');
    await using server = await startTestServer({
      database,
      settings: QUIET,
      wrap: (store) => wrappedStore(store, mistake(store)),
    });
    const sql = await outsideSql(database);
    const tenancy = new Tenancy(server, sql, 'none');
    const checks = async () => {
      await tenancy.checkMethod(TrajectoryService.method.getTrajectory);
      await tenancy.checkCounts(TrajectoryService.method.listTrajectories);
    };
    await expect(checks()).rejects.toThrow(/expected/);
    await sql.close();
    await server.stop();
    await database.drop();
  });
});
