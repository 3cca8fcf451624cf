import { randomUUID } from 'node:crypto';
import { toBinary } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  ClaimRolloutsResponseSchema,
  CreateRolloutsResponseSchema,
  GetRolloutResponseSchema,
  ListRolloutsResponseSchema,
  RolloutService,
} from '../../gen/es/anabranch/v1/rollout_service_pb.js';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { RunService, SummarizeResponseSchema, SummaryKey } from '../../gen/es/anabranch/v1/run_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import { ENGINES } from '../support/database.ts';
import { startTestServer, type TestServer } from '../support/test-server.ts';

/** RD3: no answer is larger than a message, however large the rows. */

const LARGE = `"${'x'.repeat(100 * 1024)}"`;
const LABELS = Object.fromEntries(Array.from({ length: 60 }, (_, i) => [`label ${i}`, 'y'.repeat(250)]));

describe.each(ENGINES)('the largest answers about rollouts, on %s', (engine) => {
  let server: TestServer;
  const clients = () => {
    const transport = createGrpcTransport({ baseUrl: server.url });
    return { runs: createClient(RunService, transport), rollouts: createClient(RolloutService, transport) };
  };
  beforeAll(async () => {
    server = await startTestServer({ engine });
  });
  afterAll(() => server.stop());

  async function makeStage(): Promise<string> {
    const { runs } = clients();
    const { run } = await runs.createRun({ initialStatus: Status.RUNNING });
    const place = { runId: run!.id, kind: StageKind.EVAL, number: 1n, initialStatus: Status.RUNNING };
    return (await runs.getOrCreateStage(place)).stage!.id;
  }

  it('Q2: an answer contains as many claims as fit, each with both inputs, and the other rollouts stay in the queue', async () => {
    const { rollouts } = clients();
    const stageId = await makeStage();
    const taskId = `large/${stageId}`;
    await rollouts.upsertTasks({ tasks: [{ id: taskId, inputJson: LARGE, metadataJson: LARGE }] });
    const COUNT = 12;
    for (let i = 0; i < COUNT; i += 4) {
      const some = [0, 1, 2, 3].map((j) => ({ groupNumber: 0n, number: BigInt(i + j), taskId, inputJson: LARGE }));
      await rollouts.createRollouts({ stageId, rollouts: some.map((each) => ({ ...each, labels: LABELS })) });
    }
    const numbers: bigint[] = [];
    while (numbers.length < COUNT) {
      const answer = await rollouts.claimRollouts({
        stageId,
        workerId: 'w',
        maxRollouts: 100,
        requestId: randomUUID(),
      });
      expect(toBinary(ClaimRolloutsResponseSchema, answer).length).toBeLessThan(LIMITS.messageBytes);
      expect(answer.claims.length).toBeGreaterThan(0);
      for (const { rollout, task, truncated } of answer.claims) {
        expect([rollout?.inputJson === LARGE, task?.inputJson === LARGE, truncated]).toEqual([true, true, false]);
      }
      numbers.push(...answer.claims.map(({ rollout }) => rollout!.number));
      const pending = await rollouts.listRollouts({ stageId, statuses: [Status.PENDING], pageSize: 100 });
      expect(pending.rollouts.map(({ number, attempt }) => [number, attempt])).toEqual(
        Array.from({ length: COUNT - numbers.length }, (_, i) => [BigInt(numbers.length + i), 0]),
      );
    }
    expect(numbers).toEqual(Array.from({ length: COUNT }, (_, i) => BigInt(i)));
    const page = await rollouts.listRollouts({ stageId, view: View.FULL, pageSize: 100 });
    expect(toBinary(ListRolloutsResponseSchema, page).length).toBeLessThan(LIMITS.messageBytes);
    expect(page.nextPageToken).not.toBe('');
  });

  it('Q2: a claim of the largest task has all of its validators, and the next rollout waits for the next claim', async () => {
    const { rollouts } = clients();
    const stageId = await makeStage();
    const taskId = `many validators/${stageId}`;
    const types = Array.from({ length: LIMITS.validators }, (_, i) => `type ${i}`);
    const configJson = JSON.stringify('c'.repeat(LIMITS.validatorBytes / LIMITS.validators - 2));
    const validators = Object.fromEntries(types.map((type) => [type, { configJson }]));
    await rollouts.upsertTasks({ tasks: [{ id: taskId, inputJson: LARGE, metadataJson: LARGE, validators }] });
    const places = [0n, 1n].map((number) => ({ groupNumber: 0n, number, taskId, inputJson: LARGE }));
    await rollouts.createRollouts({ stageId, rollouts: places });
    const { claims } = await rollouts.claimRollouts({ stageId, workerId: 'w', maxRollouts: 2 });
    expect(claims).toHaveLength(1);
    expect(claims[0]?.truncated).toBe(false);
    expect(Object.keys(claims[0]?.task?.validators ?? {}).toSorted()).toEqual(types.toSorted());
    expect([claims[0]?.rollout?.inputJson, claims[0]?.task?.inputJson]).toEqual([LARGE, LARGE]);
  });

  it('Q2: a repeated claim whose rollouts have grown since keeps the input of each, and omits metadata', async () => {
    const { rollouts } = clients();
    const stageId = await makeStage();
    const places = [0n, 1n, 2n, 3n, 4n, 5n].map((number) => ({ groupNumber: 0n, number, inputJson: LARGE }));
    await rollouts.createRollouts({ stageId, rollouts: places });
    const request = { stageId, workerId: 'w', maxRollouts: 6, requestId: randomUUID() };
    const { claims } = await rollouts.claimRollouts(request);
    expect(claims.map(({ truncated }) => truncated)).toEqual(places.map(() => false));
    for (const { rollout } of claims) {
      const updateMask = { paths: ['metadata_json'] };
      await rollouts.updateRollout({ rolloutId: rollout!.id, attempt: 1, updateMask, metadataJson: LARGE });
    }
    const again = await rollouts.claimRollouts(request);
    expect(toBinary(ClaimRolloutsResponseSchema, again).length).toBeLessThan(LIMITS.messageBytes);
    expect(again.claims.map(({ rollout }) => rollout?.inputJson === LARGE)).toEqual(places.map(() => true));
    expect(again.claims.at(-1)).toMatchObject({ truncated: true, rollout: { metadataJson: '' } });
  });

  it('Q2: claims of new rollouts leave out their inputs; a repeated call whose rollouts have grown omits metadata too', async () => {
    const { rollouts } = clients();
    const stageId = await makeStage();
    const places = Array.from({ length: 9 }, () => ({ groupNumber: 0n, inputJson: LARGE }));
    const request = { stageId, rollouts: places, claim: { workerId: 'w' }, requestId: randomUUID() };
    const { claims } = await rollouts.createRollouts(request);
    expect(claims).toHaveLength(9);
    for (const { rollout, truncated } of claims) {
      expect([rollout?.inputJson, truncated]).toEqual(['', false]);
      expect((await rollouts.getRollout({ rolloutId: rollout!.id })).rollout?.inputJson).toBe(LARGE);
      const grown = { updateMask: { paths: ['metadata_json'] }, metadataJson: `"${'m'.repeat(131_000)}"` };
      await rollouts.updateRollout({ rolloutId: rollout!.id, attempt: 1, ...grown });
    }
    const again = await rollouts.createRollouts(request);
    expect(toBinary(CreateRolloutsResponseSchema, again).length).toBeLessThan(LIMITS.messageBytes);
    expect(again.claims.map(({ rollout }) => rollout?.id)).toEqual(claims.map(({ rollout }) => rollout?.id));
    expect(again.claims.at(-1)).toMatchObject({ truncated: true, rollout: { metadataJson: '' } });
  });

  /** The first names are types of validators, the others are free. */
  async function judgedTask(taskId: string, count: number) {
    const { rollouts } = clients();
    const names = Array.from({ length: count }, (_, i) => `type ${i}`);
    const validators = Object.fromEntries(names.slice(0, LIMITS.validators).map((type) => [type, {}]));
    await rollouts.upsertTasks({ tasks: [{ id: taskId, validators }] });
    return { taskId, names };
  }

  it('RD3: a rollout with many large validations is returned without their details, and marked so', async () => {
    const { rollouts } = clients();
    const stageId = await makeStage();
    const { taskId, names } = await judgedTask(`judged/${stageId}`, 30);
    const { rollouts: made } = await rollouts.createRollouts({
      stageId,
      rollouts: [{ groupNumber: 0n, number: 0n, taskId, inputJson: LARGE }],
    });
    const rolloutId = made[0]!.rolloutId;
    await rollouts.claimRollouts({ stageId, workerId: 'w' });
    for (const name of names) {
      const texts = { actualResult: 'a'.repeat(20_000), detailsJson: `"${'d'.repeat(60_000)}"` };
      await rollouts.recordValidation({ rolloutId, validation: { name, success: true, ...texts } });
    }
    const answer = await rollouts.getRollout({ rolloutId });
    expect(toBinary(GetRolloutResponseSchema, answer).length).toBeLessThan(LIMITS.messageBytes);
    expect(answer).toMatchObject({ truncated: true, rollout: { inputJson: LARGE, validationPassed: true } });
    expect(answer.validations.map(({ success, detailsJson }) => [success, detailsJson])).toEqual(
      names.map(() => [true, '']),
    );
    expect(answer.validations[0]?.actualResult).toHaveLength(20_000);
  });

  it('RD3: a rollout with many attempts shows data of the latest attempts, and says that there are more', async () => {
    const { rollouts } = clients();
    const stageId = await makeStage();
    const { rollouts: made } = await rollouts.createRollouts({ stageId, rollouts: [{ groupNumber: 0n, number: 0n }] });
    const rolloutId = made[0]!.rolloutId;
    const error = 'e'.repeat(4000);
    for (let attempt = 1; attempt <= 6; attempt += 1) {
      await rollouts.claimRollouts({ stageId, workerId: 'w' });
      const result = { errors: Array.from({ length: 30 }, () => error), summaryJson: `"${'s'.repeat(100_000)}"` };
      await rollouts.failRollout({ rolloutId, attempt, result });
      await rollouts.retryRollout({ rolloutId, attempt });
    }
    const answer = await rollouts.getRollout({ rolloutId });
    expect(toBinary(GetRolloutResponseSchema, answer).length).toBeLessThan(LIMITS.messageBytes);
    expect(answer.truncated).toBe(true);
    expect(answer.attempts.map(({ result }) => result?.errors.length)).toEqual([
      ...[undefined, undefined],
      ...[30, 30, 30, 30],
    ]);
    expect(answer.attempts.at(-1)?.result?.summaryJson).toHaveLength(100_002);
    const basic = await rollouts.getRollout({ rolloutId, view: View.BASIC });
    expect(basic.attempts.at(-1)?.result?.summaryJson).toBe('');
  });

  it('RD3: data of earlier attempts never displace data of the current one', async () => {
    const { rollouts } = clients();
    const stageId = await makeStage();
    const { taskId, names } = await judgedTask(`tried/${stageId}`, 6);
    const place = { groupNumber: 0n, number: 0n, taskId, maxAttempts: 9, retryDelay: {} };
    const rolloutId = (await rollouts.createRollouts({ stageId, rollouts: [place] })).rollouts[0]!.rolloutId;
    for (let attempt = 1; attempt <= 4; attempt += 1) {
      await rollouts.claimRollouts({ stageId, workerId: 'w' });
      for (const name of names) {
        const validation = { name, success: attempt % 2 === 0, detailsJson: `"${'d'.repeat(60_000)}"` };
        await rollouts.recordValidation({ rolloutId, validation });
      }
      if (attempt < 4) await rollouts.releaseRollout({ rolloutId, attempt });
    }
    const answer = await rollouts.getRollout({ rolloutId });
    expect(toBinary(GetRolloutResponseSchema, answer).length).toBeLessThan(LIMITS.messageBytes);
    expect(answer.truncated).toBe(true);
    expect(answer.validations.map(({ success, detailsJson }) => [success, detailsJson.length])).toEqual(
      names.map(() => [true, 60_002]),
    );
    expect(answer.attempts.map(({ validations }) => validations.length)).toEqual([0, 0, 6, 0]);
    const basic = await rollouts.getRollout({ rolloutId, view: View.BASIC });
    expect(basic.truncated).toBe(false);
    expect(basic.attempts.map(({ validations }) => validations.length)).toEqual([6, 6, 6, 6]);
  });

  it('RD3: summaries that do not fit are omitted, and the answer says so', async () => {
    const { runs, rollouts } = clients();
    const stageId = await makeStage();
    const value = (i: number, label: string) => `${i} ${label} `.padEnd(250, 'z');
    for (let i = 0; i < 2000; i += 500) {
      const some = Array.from({ length: 500 }, (_, j) => ({
        groupNumber: 0n,
        number: BigInt(i + j),
        labels: { a: value(i + j, 'a'), b: value(i + j, 'b') },
      }));
      await rollouts.createRollouts({ stageId, rollouts: some });
    }
    const { stage } = await runs.getStage({ stageId });
    const dimensions = [{ key: SummaryKey.NUMBER }, { label: 'a' }, { label: 'b' }];
    const answer = await runs.summarize({ runIds: [stage!.runId], dimensions });
    expect(toBinary(SummarizeResponseSchema, answer).length).toBeLessThan(LIMITS.messageBytes);
    expect(answer.truncated).toBe(true);
    expect(answer.summaries.length).toBeGreaterThan(900);
    const numbers = answer.summaries.map(({ values }) => Number(values[0]));
    expect(numbers, 'numbers by number').toEqual(numbers.map((_, i) => i));
  });
});
