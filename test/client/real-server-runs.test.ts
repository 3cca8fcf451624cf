import { randomInt } from 'node:crypto';
import { equals } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { RunSchema, type Stage, StageKind, StageSchema } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  type AnabranchClient,
  connectClient,
  openMetricLogger,
  type RunPicture,
  reasonOf,
  watchRun,
} from '../../src/client/index.ts';
import { ENGINES, type TestDatabase } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

const { TRAIN_STEP, EVAL } = StageKind;

describe.each(ENGINES)('watching and logging against the real server on %s', (engine) => {
  let database: TestDatabase;
  let server: TestServer;
  let proxy: TcpProxy;
  /** Bypasses the proxy: these calls are not cut. */
  let worker: AnabranchClient;
  /** Connects through the proxy. */
  let client: AnabranchClient;
  let runId: string;

  beforeAll(async () => {
    database = await createMigratedDatabase(engine);
    server = await startTestServer({ database });
  });
  afterAll(async () => {
    await server.stop();
    await database.drop();
  });
  beforeEach(async () => {
    proxy = await startTcpProxy({ host: '127.0.0.1', port: server.port });
    client = connectClient({ address: proxy.url });
    worker = connectClient({ address: server.url });
    const { run } = await worker.runs.createRun({ plan: { stagePlans: [{ kind: TRAIN_STEP, stages: 20 }] } });
    runId = run?.id ?? '';
  });
  afterEach(async () => {
    client.close();
    worker.close();
    await proxy.close();
  });

  /** Creates a stage, updates it, and sometimes ends it. */
  async function work(number: number): Promise<void> {
    const kind = number % 3 === 0 ? EVAL : TRAIN_STEP;
    const { stage } = await worker.runs.getOrCreateStage({ runId, kind, number: BigInt(number) });
    const stageId = stage?.id ?? '';
    await worker.runs.startStage({ stageId, phase: 'sampling' });
    await worker.runs.updateStage({ stageId, updateMask: { paths: ['metrics'] }, metrics: { loss: 1 / number } });
    if (number % 4 === 0) await worker.runs.failStage({ stageId, message: 'no luck' });
    else if (number % 5 !== 0) await worker.runs.completeStage({ stageId });
    await worker.runs.updateRun({ runId, updateMask: { paths: ['phase'] }, phase: `after ${number}` });
  }

  async function storedStages(): Promise<Stage[]> {
    return (await worker.runs.listStages({ runId, pageSize: 1000, view: View.BASIC })).stages;
  }

  function expectPictureOf(picture: RunPicture | undefined, stored: readonly Stage[]): void {
    const byId = (a: Stage, b: Stage) => (a.id < b.id ? -1 : 1);
    const shown = [...(picture?.stages.values() ?? [])].sort(byId);
    expect(shown.map(({ id, revision }) => [id, revision])).toEqual(
      stored.toSorted(byId).map(({ id, revision }) => [id, revision]),
    );
    for (const [i, stage] of stored.toSorted(byId).entries()) {
      expect(equals(StageSchema, shown[i] ?? ({} as Stage), stage)).toBe(true);
    }
  }

  it('M5: with cuts at random bytes, watchRun ends with the state of the tables', async () => {
    await worker.runs.startRun({ runId });
    let cuts = 0;
    const working = (async () => {
      let whole = true;
      for (let number = 1; number <= 20 || cuts === 0; number += 1) {
        if (whole) void proxy.cutAfter(randomInt(1, 1_500), 'toClient').then(() => (whole = true));
        whole = false;
        await work(number);
      }
      await worker.runs.completeRun({ runId, message: 'all done' });
    })();
    let last: RunPicture | undefined;
    const revisions: bigint[] = [];
    const options = { runId, allStages: true, untilTerminal: true, onCut: () => (cuts += 1) };
    for await (const picture of watchRun(client, options)) {
      last = picture;
      revisions.push(picture.run.revision);
    }
    await working;
    expect(cuts).toBeGreaterThan(0);
    expect(revisions).toEqual(revisions.toSorted((a, b) => Number(a - b)));
    expectPictureOf(last, await storedStages());
    const { run } = await worker.runs.getRun({ runId, view: View.BASIC });
    expect(last !== undefined && run !== undefined && equals(RunSchema, last.run, run)).toBe(true);
    const { progress } = await worker.runs.getRun({ runId, progress: true });
    expect(last?.progress).toEqual(progress);
  });

  it('M5: a stage that was watched while open and ended during a cut is shown as ended', async () => {
    await worker.runs.startRun({ runId });
    const { stage } = await worker.runs.getOrCreateStage({
      runId,
      kind: TRAIN_STEP,
      number: 1n,
      initialStatus: Status.RUNNING,
    });
    const stageId = stage?.id ?? '';
    const statuses: (Status | undefined)[] = [];
    for await (const { stages } of watchRun(client, { runId, untilTerminal: true })) {
      statuses.push(stages.get(stageId)?.status);
      if (statuses.length > 1) continue;
      proxy.hold(); // from here on no message arrives
      await worker.runs.completeStage({ stageId });
      await worker.runs.completeRun({ runId });
      proxy.cutClients();
      void proxy.release();
    }
    expect([statuses[0], statuses.at(-1)]).toEqual([Status.RUNNING, Status.COMPLETED]);
  });

  it('A2: continues at the successor of a drained server', async () => {
    const phases: string[] = [];
    const seen = Promise.withResolvers<void>();
    const watching = (async () => {
      for await (const { run } of watchRun(client, { runId, untilTerminal: true })) {
        phases.push(run.phase);
        seen.resolve();
      }
    })();
    await seen.promise;
    await server.drain();
    server = await startTestServer({ database });
    proxy.retarget({ host: '127.0.0.1', port: server.port });
    worker.close();
    worker = connectClient({ address: server.url });
    await worker.runs.updateRun({ runId, updateMask: { paths: ['phase'] }, phase: 'after the change' });
    await worker.runs.cancelRun({ runId });
    await watching;
    expect(phases.at(-1)).toBe('after the change');
  });

  it('B4: a run that is deleted while it is watched causes an error, and so does an unknown run', async () => {
    const watching = (async () => {
      for await (const _ of watchRun(client, { runId })) await worker.runs.deleteRun({ runId });
    })();
    expect(await watching.catch(reasonOf)).toBe('RUN_DELETED');
    expect(await watchRun(client, { runId }).next().catch(reasonOf)).toBe('RUN_NOT_FOUND');
  });

  it('M1: every point logged across cuts is stored once, and of two the last', async () => {
    const logger = openMetricLogger(client, { runId, batchPoints: 50 });
    const count = 3_000;
    for (let step = 0; step < count; step += 1) {
      if (step % 500 === 0) void proxy.cutAfter(randomInt(1, 5_000), 'toServer');
      logger.log('loss', step, -1);
      logger.log('loss', step, step / 7);
      if (step % 100 === 0) await logger.flush();
    }
    await logger.close();
    const steps: bigint[] = [];
    const values: number[] = [];
    for await (const { series } of worker.runs.readMetrics({ runIds: [runId] })) {
      for (const part of series) {
        steps.push(...part.metricSteps);
        values.push(...part.values);
      }
    }
    expect(steps).toEqual(Array.from({ length: count }, (_, i) => BigInt(i)));
    expect(values).toEqual(Array.from({ length: count }, (_, i) => i / 7));
  });

  it('M1: points for a deleted run are not lost silently', async () => {
    const logger = openMetricLogger(client, { runId });
    await worker.runs.deleteRun({ runId });
    logger.log('loss', 1, 1);
    expect(await logger.close().catch(reasonOf)).toBe('RUN_NOT_FOUND');
  });
});
