import { expect, it } from 'vitest';
import type { AttemptReport, Claim, NewValidation } from '../../src/store/contract/rollout.ts';
import { describeStore } from './on_store.ts';
import { NO_RESULT, NOTHING_SAID, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { dumpNamespace } from './sql.ts';

describeStore('reports of workers with FailRollout and ReleaseRollout', (on) => {
  const validation = (name: string, success: boolean): NewValidation => ({
    name,
    advisory: false,
    success,
    query: '',
    expectedResult: '',
    actualResult: 'seen',
    executionMs: 12,
    errorMessage: '',
    detailsJson: '',
  });
  const details = { ...NOTHING_SAID, message: 'no device' };

  const fresh = async (maxAttempts: number) => {
    const scene = new RolloutScene(on.store);
    const { stage } = await scene.place();
    await scene.task('t');
    await scene.validator('t', 'state');
    const [id = ''] = await scene.queue(stage, 1, { taskId: 't', maxAttempts });
    const report: AttemptReport = {
      validations: [validation('state', true)],
      metrics: new Map([['tokens', 10]]),
      timings: new Map([['task', { startTime: 1n, endTime: 2n }]]),
    };
    const claim = await scene.claimOne();
    const earlier = { metrics: new Map([['seconds', 3]]) };
    await scene.store.updateRollout(scene.caller, id, 1, earlier);
    return { scene, id, claim, report };
  };
  type Scene = Awaited<ReturnType<typeof fresh>>['scene'];

  /** Requests that differ from the given one in one field each. */
  const others = ({ validations, metrics, timings }: AttemptReport): AttemptReport[] => [
    { validations: [], metrics, timings },
    { validations: validations.map((each) => ({ ...each, success: false })), metrics, timings },
    { validations, metrics: new Map([['tokens', 11]]), timings },
    { validations, metrics, timings: new Map([['task', { startTime: 1n, endTime: 3n }]]) },
  ];

  const reported = {
    metrics: new Map([
      ['seconds', 3],
      ['tokens', 10],
    ]),
    timings: new Map([['task', { startTime: 1n, endTime: 2n }]]),
    validations: [{ actualResult: 'seen', success: true }],
    success: true,
  };

  it('L3: a failed rollout keeps validations, metrics and timings with its attempt, and is not a success', async () => {
    const { scene, id, claim, report } = await fresh(3);
    const result = { ...NO_RESULT, errors: ['e'] };
    const failed = await scene.fail(claim, { details: details, result, ...report });
    expect(failed).toMatchObject({ status: 'FAILED', validationPassed: true, success: false, result });
    expect(failed).toMatchObject({ metrics: reported.metrics, timings: reported.timings });
    expect((await scene.record(id)).attempts).toMatchObject([reported]);
    await expectRepeatable(scene, id, (fields) => scene.fail(claim, { details: details, result, ...fields }), report);
  });

  it('L3, Q1: a released attempt keeps validations, metrics and timings, and the next attempt starts without them', async () => {
    const { scene, id, claim, report } = await fresh(3);
    const released = await scene.release(tokenOf(claim), details, report);
    const nothing = { validationPassed: undefined, success: undefined, metrics: new Map(), timings: new Map() };
    expect(released).toMatchObject({ status: 'PENDING', ...nothing });
    expect((await scene.record(id)).attempts).toMatchObject([reported]);
    await expectRepeatable(scene, id, (fields) => scene.release(tokenOf(claim), details, fields), report);
    expect((await scene.claimOne()).rollout).toMatchObject({ attempt: 2, ...nothing });
    expect((await scene.record(id)).attempts[1]).toMatchObject({ metrics: new Map(), validations: [] });
  });

  it('Q3: the release of the last attempt fails the rollout, which shows the report', async () => {
    const { scene, id, claim, report } = await fresh(1);
    const failed = await scene.release(tokenOf(claim), details, report);
    expect(failed).toMatchObject({ status: 'FAILED', validationPassed: true, success: false });
    expect(failed).toMatchObject({ metrics: reported.metrics, timings: reported.timings });
    expect((await scene.record(id)).attempts).toMatchObject([reported]);
    await expectRepeatable(scene, id, (fields) => scene.release(tokenOf(claim), details, fields), report);
  });

  async function expectRepeatable(
    scene: Scene,
    id: string,
    end: (report: AttemptReport) => Promise<unknown>,
    report: AttemptReport,
  ): Promise<void> {
    // Data that arrive later do not make the same request a different one.
    await scene.store.updateRollout(scene.caller, id, 1, { metrics: new Map([['late', 1]]) });
    const before = await dumpNamespace(on.sql, scene.namespace);
    await end(report);
    for (const other of others(report)) expect((await refusalOf(end(other))).reason).toBe('RESULT_CONFLICT');
    expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
  }

  it('L5: a release with another message is RESULT_CONFLICT', async () => {
    const { scene, claim, report } = await fresh(3);
    await scene.release(tokenOf(claim), details, report);
    expect(await refusalOf(scene.release(tokenOf(claim), { message: 'other' }, report))).toMatchObject({
      reason: 'RESULT_CONFLICT',
      metadata: { status: 'PENDING', verb: 'release' },
    });
  });

  it('Q2: an attempt that its worker did not end refuses a release with a report, so that no report is lost unnoticed', async () => {
    for (const end of ['cancel', 'sweep'] as const) {
      const { scene, id, claim, report } = await fresh(3);
      if (end === 'cancel') await scene.cancel(id);
      else await sweep(scene, claim);
      const before = await dumpNamespace(on.sql, scene.namespace);
      await scene.release(tokenOf(claim), details);
      expect((await refusalOf(scene.release(tokenOf(claim), details, report))).reason).toBe('LEASE_LOST');
      expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    }
  });

  it('Q3: an attempt that its worker did not end refuses a refund, so that no refund is lost unnoticed', async () => {
    for (const end of ['cancel', 'sweep'] as const) {
      const { scene, id, claim } = await fresh(3);
      if (end === 'cancel') await scene.cancel(id);
      else await sweep(scene, claim);
      const before = await dumpNamespace(on.sql, scene.namespace);
      const refund = scene.release(tokenOf(claim), { ...details, refundAttempt: true });
      expect((await refusalOf(refund)).reason).toBe('LEASE_LOST');
      expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
    }
  });

  it('L5: a repeated release with refund and report succeeds; without the refund it is RESULT_CONFLICT', async () => {
    const { scene, id, claim, report } = await fresh(1);
    const refund = { ...details, refundAttempt: true };
    const released = await scene.release(tokenOf(claim), refund, report);
    expect(released).toMatchObject({ status: 'PENDING', refundedAttempts: 1 });
    expect((await scene.record(id)).attempts).toMatchObject([reported]);
    await expectRepeatable(scene, id, (fields) => scene.release(tokenOf(claim), refund, fields), report);
    const plain = scene.release(tokenOf(claim), details, report);
    expect((await refusalOf(plain)).reason).toBe('RESULT_CONFLICT');
  });

  async function sweep(scene: Scene, { rollout }: Claim): Promise<void> {
    const ago = on.sql.earlier('lease_end_time', 600);
    await on.sql.rows(`update rollouts set lease_end_time = ${ago} where key = ${rollout.key}`);
    await scene.store.sweepLeases(1000);
    expect((await scene.rollout(rollout.id)).status).toBe('PENDING');
  }

  it('a report with too many metrics is refused, and nothing is stored', async () => {
    const { scene, claim, report } = await fresh(3);
    const many = { ...report, metrics: new Map(Array.from({ length: 256 }, (_, i) => [`m${i}`, i])) };
    const before = await dumpNamespace(on.sql, scene.namespace);
    expect((await refusalOf(scene.release(tokenOf(claim), details, many))).reason).toBe('INVALID_REQUEST');
    expect((await refusalOf(scene.fail(claim, { details: details, ...many }))).reason).toBe('INVALID_REQUEST');
    expect(await dumpNamespace(on.sql, scene.namespace)).toBe(before);
  });
});
