import type { DescMethod } from '@bufbuild/protobuf';
import { Code, ConnectError, createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { RolloutService } from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { RunService } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { StateService } from '../../gen/es/anabranch/v1/state_service_pb.js';
import { OnBranches, TrajectoryService } from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';
import { makeRolloutScene, type RolloutScene } from './rpcs/rollout_scene.ts';
import { ROLLOUT_RPCS } from './rpcs/rollouts.ts';
import { makeRunScene, type RunScene } from './rpcs/run_scene.ts';
import { RUN_RPCS } from './rpcs/runs.ts';
import type { Rpc } from './rpcs/scene.ts';
import { smallSceneOf } from './rpcs/small_scenes.ts';
import type { WireClient } from './story.ts';

type AnyRpc = Rpc<DescMethod, RunScene | RolloutScene>;
const RPCS = { ...RUN_RPCS, ...ROLLOUT_RPCS } as unknown as Readonly<Record<string, AnyRpc | undefined>>;

const READS = /^(?:get(?!OrCreate)|list|read|watch|compare|summarize)/;

/** Methods that write, and name no existing run or resource of a run. */
const NOT_OF_A_RUN: ReadonlySet<string> = new Set([
  'createExperiment',
  'updateExperiment',
  'deleteExperiment',
  'createRun',
  'deleteRun',
  'upsertTasks',
  // Answers without a claim.
  'claimRollouts',
  // Returns an outcome for each lease: see test/store/deleted_run.test.ts.
  'heartbeatRollouts',
]);

const VERBS = [RunService, RolloutService].flatMap(({ methods }) =>
  methods.filter(({ localName }) => !READS.test(localName) && !NOT_OF_A_RUN.has(localName)),
);

/** Verbs whose examples concern an ended rollout. A deletion does not lock it, and the verb commits first. */
const COMES_BEFORE: ReadonlySet<string> = new Set(['overrideValidation']);

/** A statement of the background task that removes the runs of earlier cases: it may wait for the same lock. */
const PURGE = 'delete from "anabranch"."runs" where "key" = $1';

/** A case is repeated if the database gave up waiting for a lock because the machine was stalled. */
const TRIES = 3;

describe.each(ENGINES)('B4: verbs concurrent with DeleteRun, on %s', (engine) => {
  let server: TestServer;
  let client: WireClient;
  let gate: pg.Client | undefined;
  beforeAll(async () => {
    server = await startTestServer({ engine });
    const transport = createGrpcTransport({ baseUrl: server.url });
    client = {
      trajectories: createClient(TrajectoryService, transport),
      states: createClient(StateService, transport),
      runs: createClient(RunService, transport),
      rollouts: createClient(RolloutService, transport),
    } as WireClient;
    if (engine === 'sqlite') return deleteFirst();
    gate = new pg.Client(server.database.adminUrl);
    await gate.connect();
  });
  afterAll(async () => {
    await gate?.end();
    await server?.stop();
  });

  it('every verb that names a run, or a resource of a run, is covered', () => {
    expect(VERBS.map(({ localName }) => localName)).toEqual(
      expect.arrayContaining(['completeRollout', 'heartbeatRun', 'logMetrics', 'updateStage', 'upsertEnvironment']),
    );
    expect(VERBS.filter(({ localName }) => RPCS[localName] === undefined)).toEqual([]);
  });

  it.each(VERBS.map((method) => [method.localName, method] as const))('%s answers NOT_FOUND', async (name, method) => {
    for (let attempt = 1; ; attempt += 1) {
      const { outcome, waited } = await (engine === 'sqlite' ? sendAfterwards(name, method) : drive(name, method));
      if (outcome instanceof ConnectError && outcome.code === Code.Unavailable && attempt < TRIES) continue;
      expect(waited, 'whether it waited for the deletion').toBe(engine === 'sqlite' || !COMES_BEFORE.has(name));
      if (!waited) return expect(outcome).not.toBeInstanceOf(Error);
      expect(outcome, name).toBeInstanceOf(ConnectError);
      expect((outcome as ConnectError).code, `${outcome}`).toBe(Code.NotFound);
      expect(reasonOf(outcome), `${outcome}`).toMatch(/^(?:RUN|STAGE|GROUP|ROLLOUT|ENVIRONMENT)_NOT_FOUND$/);
      return;
    }
  });

  /** On SQLite: the requests of all verbs, for runs that are deleted before any of them is sent. */
  const requests = new Map<string, unknown>();

  async function deleteFirst(): Promise<void> {
    for (const make of [makeRunScene, makeRolloutScene]) {
      const scene = await make(client);
      const service = make === makeRunScene ? RunService : RolloutService;
      for (const { localName, parent } of VERBS)
        if (parent === service) requests.set(localName, await requestFor(localName, scene));
      await deleteRuns(scene);
    }
  }

  async function sendAfterwards(name: string, method: DescMethod): Promise<{ outcome: unknown; waited: boolean }> {
    return { outcome: await send(method, requests.get(name)).catch((error: unknown) => error), waited: true };
  }

  /**
   * Sends the verb while DeleteRun holds its locks. DeleteRun may commit once the verb waits, or has its answer.
   */
  async function drive(name: string, method: DescMethod): Promise<{ outcome: unknown; waited: boolean }> {
    const whole = method.parent === RunService ? makeRunScene : makeRolloutScene;
    const scene = (await (smallSceneOf(name) ?? whole)(client)) as RunScene | RolloutScene;
    const request = await requestFor(name, scene);
    await gate!.query('begin');
    // The last write of DeleteRun, after it has taken all its locks.
    await gate!.query('lock table anabranch.runs in share mode');
    const deletions = deleteRuns(scene);
    deletions.catch(() => undefined);
    const deleting = runIdsOf(scene).length;
    await waiting(deleting);
    let answered = false;
    const outcome = send(method, request)
      .catch((error: unknown) => error)
      .finally(() => {
        answered = true;
      });
    await waiting(deleting + 1, () => answered);
    const waited = !answered;
    await gate!.query('commit');
    await deletions;
    return { outcome: await outcome, waited };
  }

  async function requestFor(name: string, scene: RunScene | RolloutScene): Promise<unknown> {
    const [request] = (await RPCS[name]!.requests(scene)).at(-1)!;
    return request;
  }

  async function send({ parent, localName }: DescMethod, request: unknown): Promise<unknown> {
    const service = parent === RunService ? client.runs : client.rollouts;
    return (service as unknown as Record<string, (init: unknown) => unknown>)[localName]!(request);
  }

  function runIdsOf(scene: RunScene | RolloutScene): readonly string[] {
    return 'bareId' in scene ? [scene.bareId, scene.runId] : [scene.runId];
  }

  function deleteRuns(scene: RunScene | RolloutScene): Promise<unknown> {
    return Promise.all(
      runIdsOf(scene).map((runId) =>
        client.runs.deleteRun({ runId, onBranches: OnBranches.CASCADE, cancelLive: true }),
      ),
    );
  }

  async function waiting(count: number, orElse = () => false): Promise<void> {
    const seen = async () => {
      await gate!.query('select pg_stat_clear_snapshot()');
      const { rows } = await gate!.query(
        `select 1 from pg_stat_activity
          where datname = current_database() and wait_event_type = 'Lock' and query <> $1`,
        [PURGE],
      );
      return rows.length >= count || orElse();
    };
    await expect.poll(seen, { timeout: 20_000, interval: 10 }).toBe(true);
  }
});
