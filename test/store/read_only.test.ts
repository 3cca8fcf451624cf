import { randomUUID } from 'node:crypto';
import pg from 'pg';
import { type Logger, pino } from 'pino';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { Store } from '../../src/store/contract/store.ts';
import { openStore } from '../../src/store/open.ts';
import { createApp } from '../../src/stream/app.ts';
import { runCli } from '../cli/run_cli.ts';
import { createPostgresDatabase, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { type PostgresServer, startPostgres, startStandby } from '../support/postgres.ts';
import { makeStep, newState, stateRef, wordStep } from '../support/steps.ts';
import { openOn, refusedOpen } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { putState, refusalOf, Scene } from './scene.ts';

interface Line {
  readonly level: number;
  readonly msg: string;
}

function recordLog(): { readonly logger: Logger; readonly lines: Line[]; warnings(): string[]; changes(): string[] } {
  const lines: Line[] = [];
  const logger = pino({ level: 'debug' }, { write: (line) => void lines.push(JSON.parse(line)) });
  const messages = (level: number) => lines.filter((line) => line.level >= level).map(({ msg }) => msg);
  const changes = () => messages(30).flatMap((msg) => /is read-only|accepts writes again/.exec(msg)?.[0] ?? []);
  return { logger, lines, warnings: () => messages(40), changes };
}

const WAIT = { timeout: 15_000 };

/** Only Postgres has operators who set such defaults, and standbys. */
describe('a read-only database, on postgres', () => {
  let server: PostgresServer;
  let database: TestDatabase;
  let name: string;
  let admin: pg.Client;
  const tell = async (...statements: readonly string[]) => {
    for (const statement of statements) await admin.query(statement);
  };
  /** Ends the sessions of the store: defaults of databases and roles hold for new ones. */
  const endSessions = () =>
    tell(`select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'anabranch%'`);

  beforeAll(async () => {
    server = await startPostgres();
    database = await createPostgresDatabase(server.url);
    name = new URL(database.url).pathname.slice(1);
    admin = new pg.Client(server.url);
    await admin.connect();
    await admin.query('set default_transaction_read_only = off');
    await (await openOn(database)).close();
  });
  afterEach(() => tell(...FREEZES.flatMap(([, , thaw]) => thaw(name))));
  afterAll(async () => {
    await admin?.end();
    await server?.stop();
  });

  const open = (logger: Logger, url = database.url): Promise<Store> =>
    openStore({ engine: 'postgres', url }, { logger });

  it.each(FREEZES)(
    'A10: made so by %s: it rejects writes, answers reads, and is writable again without a restart',
    async (_by, freeze, thaw) => {
      const log = recordLog();
      const store = await open(log.logger);
      const scene = new Scene(store);
      const made = await scene.createWith(['a']);
      await tell(...freeze(name));
      await endSessions();
      await expect.poll(() => reasonOf(scene.append(made, [wordStep(1n, 'b')])), WAIT).toBe('DATABASE_READ_ONLY');
      await expectFrozen(scene, made);
      expect(log.changes()).toEqual(['is read-only']);
      await tell(...thaw(name));
      await expect.poll(() => log.changes(), WAIT).toEqual(['is read-only', 'accepts writes again']);
      await scene.append(made, [wordStep(1n, 'b')]);
      expect(await scene.words(made)).toEqual(['a', 'b']);
      expect(log.warnings().filter((msg) => !/connection to Postgres was lost/.test(msg))).toHaveLength(1);
      await store.close();
    },
  );

  it.each(FREEZES)(
    'A10: made so by %s: a server starts on a schema that exists, and serves reads',
    async (_by, freeze, thaw) => {
      const before = await openOn(database);
      const made = await new Scene(before, 'started').createWith(['a']);
      await before.close();
      await tell(...freeze(name));
      const log = recordLog();
      await expect.poll(() => isNewSessionReadOnly(database.url), WAIT).toBe(true);
      const store = await open(log.logger);
      expect(log.changes()).toEqual(['is read-only']);
      const scene = new Scene(store, 'started');
      await expectFrozen(scene, made);
      await tell(...thaw(name));
      await expect.poll(() => log.changes(), WAIT).toEqual(['is read-only', 'accepts writes again']);
      await scene.append(made, [wordStep(1n, 'b')]);
      await store.close();
    },
  );

  it('A10: the options of the URL count as well', async () => {
    const url = new URL(database.url);
    url.searchParams.set('options', '-c default_transaction_read_only=on');
    const log = recordLog();
    const store = await open(log.logger, url.href);
    expect(await reasonOf(new Scene(store).create())).toBe('DATABASE_READ_ONLY');
    expect(log.changes()).toEqual(['is read-only']);
    await store.close();
  });

  it.each(FREEZES)(
    'A10: made so by %s: a missing schema is reported in one line with the remedy',
    async (_by, freeze) => {
      await using empty = await createPostgresDatabase(server.url);
      const itsName = new URL(empty.url).pathname.slice(1);
      await tell(...freeze(itsName));
      await expect.poll(() => isNewSessionReadOnly(empty.url), WAIT).toBe(true);
      const error = await refusedOpen(openOn(empty));
      expect(error.name).toBe('StoreOpenError');
      expect(error.message).toMatch(/read-only.*schema is missing.*make the database writable/);
      expect(error.message).not.toContain('\n');
      await tell(...FREEZES.flatMap(([, , thaw]) => thaw(itsName)));
    },
  );

  it('A10: work in the background fails without a line of the log for each time', async () => {
    const log = recordLog();
    const store = await open(log.logger);
    const scene = new Scene(store);
    const grown = await scene.create();
    for (let i = 0; i < 4; i += 1) await scene.append(grown, [wordStep(BigInt(i), `${i}`)]);
    await tell(`alter database ${name} set default_transaction_read_only = on`);
    await endSessions();
    await expect.poll(() => reasonOf(scene.create()), WAIT).toBe('DATABASE_READ_ONLY');
    const often = { maintenanceMs: 5, staleSweepMs: 5, leaseSweepMs: 5, retentionMs: 5, mergeIdleMs: 5 };
    const settings = { ...often, stateTtlHours: 0, requestDays: 0 };
    const app = createApp({ store, ids: { uuid: randomUUID, uid: randomUUID }, logger: log.logger, settings });
    const failed = () => log.lines.filter(({ level, msg }) => level === 20 && /failed|could not/.test(msg)).length;
    await expect.poll(failed, WAIT).toBeGreaterThan(10);
    expect(log.warnings().filter((msg) => !/connection to Postgres was lost/.test(msg))).toEqual([
      expect.stringContaining('is read-only'),
    ]);
    await app.close();
    await store.close();
  });

  it('A10: claims, heartbeats, metrics, states and deletions are rejected as well', async () => {
    const store = await open(recordLog().logger);
    const scene = new RolloutScene(store);
    const { run, stage } = await scene.place();
    await scene.queue(stage, 2);
    const held = await scene.claimOne();
    const point = { stageId: undefined, name: 'loss', metricStep: 1n, value: 1 };
    await scene.store.logMetrics(scene.namespace, run.id, [point]);
    await tell(`alter database ${name} set default_transaction_read_only = on`);
    await endSessions();
    await expect.poll(() => reasonOf(scene.create()), WAIT).toBe('DATABASE_READ_ONLY');
    const writes: Record<string, () => Promise<unknown>> = {
      claim: () => scene.claimOne(),
      'claim of any stage': () => store.claimRollouts([scene.request({ runId: run.id })]),
      'heartbeat of a rollout': () => store.heartbeatRollouts(scene.caller, [tokenOf(held)], undefined),
      'heartbeat of a run': () => store.heartbeatRun(scene.namespace, run.id),
      'end of a rollout': () => scene.complete(held),
      metrics: () => store.logMetrics(scene.namespace, run.id, [{ ...point, metricStep: 2n }]),
      state: () => putState(store, scene.namespace, Buffer.from('frozen')),
      'large state': () => putState(store, scene.namespace, Buffer.alloc(600 * 1024, 1)),
    };
    for (const [way, write] of Object.entries(writes)) expect(await reasonOf(write()), way).toBe('DATABASE_READ_ONLY');
    expect((await scene.rollout(held.rollout.id)).status).toBe('INITIALIZING');
    await store.close();
  });

  it('A10: a copy into it fails in one line', async () => {
    await using source = await createMigratedDatabase('sqlite');
    const filled = await openOn(source);
    await new Scene(filled).createWith(['a']);
    await filled.close();
    await tell(`alter database ${name} set default_transaction_read_only = on`);
    const args = ['migrate-data', '--from', source.url, '--to', database.url];
    const { code, stderr } = await runCli(args);
    expect(code).toBe(1);
    expect(stderr.trim().split('\n').at(-1)).toMatch(/^The database is read-only: .* Nothing was stored/);
    expect(stderr).not.toMatch(/\n\s+at /);
  });

  it('A10: a hot standby serves reads, refuses writes, and accepts them once it is promoted', async () => {
    const before = await openOn(database);
    const made = await new Scene(before, 'standby').createWith(['a']);
    await before.close();
    await admin.end();
    await using standby = await startStandby(server);
    admin = new pg.Client(server.url);
    await admin.connect();
    const url = new URL(database.url);
    url.searchParams.set('host', standby.dir);
    const log = recordLog();
    const store = await open(log.logger, url.href);
    expect(log.changes()).toEqual(['is read-only']);
    const scene = new Scene(store, 'standby');
    await expectFrozen(scene, made);
    for await (const { faults } of store.verify()) expect(faults).toEqual([]);
    const onStandby = new pg.Client(standby.url);
    await onStandby.connect();
    await onStandby.query('select pg_promote()');
    await onStandby.end();
    await expect.poll(() => log.changes(), WAIT).toEqual(['is read-only', 'accepts writes again']);
    await scene.append(made, [wordStep(1n, 'b')]);
    expect(await scene.words(made)).toEqual(['a', 'b']);
    expect(log.warnings()).toEqual([expect.stringContaining('is read-only')]);
    await store.close();
  });

  it('A10: a standby without the schema is reported in one line with the remedy', async () => {
    await admin.end();
    await using empty = await createPostgresDatabase(server.url);
    await using standby = await startStandby(server);
    admin = new pg.Client(server.url);
    await admin.connect();
    const url = new URL(empty.url);
    url.searchParams.set('host', standby.dir);
    const error = await refusedOpen(openOn({ engine: 'postgres', url: url.href }));
    expect(error.message).toMatch(/standby.*schema is missing.*name the primary/);
    await standby.stop();
  });
});

/** Who makes a database read-only, and the statements that begin and end it. */
const FREEZES: readonly (readonly [string, (name: string) => string[], (name: string) => string[]])[] = [
  [
    'a default of the database',
    (name) => [`alter database ${name} set default_transaction_read_only = on`],
    (name) => [`alter database ${name} reset default_transaction_read_only`],
  ],
  [
    'a default of the role',
    (name) => [`alter role ${name} set default_transaction_read_only = on`],
    (name) => [`alter role ${name} reset default_transaction_read_only`],
  ],
  [
    'the configuration of Postgres',
    () => [`alter system set default_transaction_read_only = on`, 'select pg_reload_conf()'],
    () => [`alter system reset default_transaction_read_only`, 'select pg_reload_conf()'],
  ],
];

async function isNewSessionReadOnly(url: string): Promise<boolean> {
  const client = new pg.Client(url);
  await client.connect();
  const { rows } = await client.query('show transaction_read_only');
  await client.end();
  return rows[0].transaction_read_only === 'on';
}

async function reasonOf(call: Promise<unknown>): Promise<string | undefined> {
  return call.then(
    () => undefined,
    (error: { reason?: string }) => error.reason ?? String(error),
  );
}

/** Expects that nothing can be written in the ways of the store, and that everything can be read. */
async function expectFrozen(scene: Scene, made: Trajectory): Promise<void> {
  const { store, namespace } = scene;
  const state = newState(`frozen ${randomUUID()}`);
  const writes: Record<string, () => Promise<unknown>> = {
    append: () => scene.append(made, [wordStep(1n, 'b')]),
    'append with a state': () => scene.append(made, [makeStep(1n, { states: [stateRef(state)] })], { states: [state] }),
    create: () => scene.create(),
    branch: () => scene.branch(made, 0n),
    delete: () => scene.delete(made),
  };
  for (const [way, write] of Object.entries(writes)) {
    const error = await refusalOf(write());
    expect(error.reason, way).toBe('DATABASE_READ_ONLY');
    expect(error.message, way).toMatch(/Nothing was stored/);
  }
  expect(await scene.words(made)).toEqual(['a']);
  expect((await scene.get(made.id)).nextStepNumber).toBe(1n);
  expect((await store.listTrajectories(namespace, {}, { limit: 10, after: undefined })).length).toBeGreaterThan(0);
}
