import { expect, it } from 'vitest';
import type { Claim, NewClaims, NewRollout } from '../../src/store/contract/rollout.ts';
import { sha256, wordStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { newRollout, RolloutScene, tokenOf } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';
import { letPass } from './time_travel.ts';

describeStore('rollouts that are claimed by their creation', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    const { run, stage } = await scene.place();
    const create = (rollouts: readonly Partial<NewRollout>[], fields: Partial<NewClaims> = {}, requestId = 'r') => {
      const key = { rpc: 'CreateRollouts', requestId, requestDigest: sha256(requestId) };
      const { workerId, leaseMs, trajectories, countFitting } = scene.request({ count: rollouts.length });
      const claim = { workerId, leaseMs, trajectories, countFitting, ...fields };
      return scene.store.createRollouts(scene.caller, stage.id, rollouts.map(newRollout), key, claim);
    };
    return { scene, run, stage, create };
  };
  const idsOf = (claims: readonly Claim[]) => claims.map(({ rollout }) => rollout.id);

  it('Q1, Q2: the claims are those of a worker: equal to what later reads return, and good for all verbs', async () => {
    const { scene, run, create } = await fresh();
    await scene.task('t', 5n);
    await scene.validator('t', 'state');
    const { rollouts, claims } = await create(
      [
        { number: 1n, taskId: 't', priority: 1, inputJson: '{}' },
        { number: 0n, priority: 9, maxTurns: 3n },
      ],
      { leaseMs: 20_000, workerId: 'trainer' },
    );
    expect(idsOf(claims)).toEqual(rollouts.map(({ rolloutId }) => rolloutId));
    for (const { rollout, trajectory } of claims) {
      expect(rollout).toMatchObject({ status: 'INITIALIZING', attempt: 1, workerId: 'trainer', revision: 2n });
      expect(await scene.rollout(rollout.id)).toEqual(rollout);
      expect(await scene.get(trajectory.id)).toEqual(trajectory);
      const history = await scene.history('ROLLOUT', rollout);
      expect(history.map(({ newStatus }) => newStatus).sort()).toEqual(['INITIALIZING', 'PENDING']);
    }
    expect(claims).toMatchObject([
      { task: { id: 't' }, maxTurns: 5n, trajectory: { runId: run.id, taskId: 't' } },
      { task: undefined, maxTurns: 3n },
    ]);
    const [one, two] = claims;
    expect([...one!.task!.validators.keys()]).toEqual(['state']);
    const states = await scene.heartbeat([tokenOf(one!), tokenOf(two!)]);
    expect(states).toMatchObject([
      { kept: true, remainingMs: 20_000 },
      { kept: true, remainingMs: 20_000 },
    ]);
    await scene.start(one!);
    await scene.append(one!.trajectory, [wordStep(0n, 'reset'), wordStep(1n, 'a', { reward: 1 })]);
    expect(await scene.complete(one!)).toMatchObject({ status: 'COMPLETED', turns: 1n, reward: 1 });
    await scene.release(tokenOf(two!));
    expect(idsOf(await scene.claims())).toEqual([two?.rollout.id]);
  });

  it('Q2: existing rollouts are not claimed, and stay in the queue', async () => {
    const { scene, stage, create } = await fresh();
    const [queued] = await scene.makeRollouts(stage, [{ number: 1n }]);
    const { rollouts, claims } = await create([{ number: undefined }, { number: 1n }, { number: 0n }]);
    expect(rollouts.map(({ number, existed }) => [number, existed])).toEqual([
      [2n, false],
      [1n, true],
      [0n, false],
    ]);
    expect(claims.map(({ rollout }) => rollout.number)).toEqual([2n, 0n]);
    expect(idsOf(await scene.claims({ count: 5 }))).toEqual([queued?.rolloutId]);
    expect((await create([{ number: 1n }, { number: 2n }], {}, 'other')).claims).toEqual([]);
  });

  it('Q2, Q4: in a paused run, or an ended run or stage, the call is STAGE_NOT_CLAIMABLE and creates nothing', async () => {
    const { scene, run, stage, create } = await fresh();
    const before = await countRows(on.sql, scene.namespace);
    await scene.move(run, 'pause');
    const refusal = await refusalOf(create([{}]));
    const metadata = { stage: stage.id, stage_status: 'RUNNING', run_status: 'PAUSED' };
    expect(refusal).toMatchObject({ reason: 'STAGE_NOT_CLAIMABLE', metadata });
    const { status_changes: changes = 0, ...others } = before;
    expect(await countRows(on.sql, scene.namespace)).toEqual({ ...others, status_changes: changes + 1 });
    await scene.move(run, 'resume');
    expect((await create([{}])).claims, 'a refused call stores no key').toHaveLength(1);
    await scene.move(run, 'complete');
    expect(await refusalOf(create([{ number: 1n }], {}, 's'))).toMatchObject({
      metadata: { run_status: 'COMPLETED' },
    });
    expect((await create([{}])).claims, 'a repeated call creates nothing').toHaveLength(1);
  });

  it('B1, Q2: attempts branch at the start point; one that was deleted makes the call fail', async () => {
    const { scene, create } = await fresh();
    const source = await scene.createWith(['a', 'b', 'c']);
    const startFrom = { trajectoryId: source.id, stepNumber: 1n };
    const { claims } = await create([{ startFrom }, { number: 1n }]);
    expect(await Promise.all(claims.map(({ trajectory }) => scene.words(trajectory)))).toEqual([['a', 'b'], []]);
    const gone = await scene.createWith(['a']);
    await scene.delete(gone);
    const from = { trajectoryId: gone.id, stepNumber: 0n };
    const refusal = await refusalOf(create([{ number: 2n }, { number: 3n, startFrom: from }], {}, 's'));
    expect(refusal.reason).toBe('TRAJECTORY_NOT_FOUND');
    expect((await create([{ number: 2n }], {}, 's')).rollouts).toMatchObject([{ existed: false }]);
  });

  it('Q2: claims that do not fit into one response are CLAIMS_TOO_LARGE, and nothing is created', async () => {
    const { scene, create } = await fresh();
    const before = await countRows(on.sql, scene.namespace);
    const countFitting = (claims: readonly Claim[]) => Math.min(claims.length, 2);
    const refusal = await refusalOf(create([{}, { number: 1n }, { number: 2n }], { countFitting }));
    expect(refusal).toMatchObject({ reason: 'CLAIMS_TOO_LARGE', metadata: { rollouts: '2' } });
    expect(await countRows(on.sql, scene.namespace)).toEqual(before);
    expect((await create([{}, { number: 1n }], { countFitting })).claims).toHaveLength(2);
  });

  it('ID1, Q2: a repeated call returns the same rollouts, and those of its claims that are still live', async () => {
    const { scene, run, create } = await fresh();
    const request = [{ number: undefined }, { number: undefined }, { number: undefined }];
    const first = await create(request);
    expect(await create(request)).toEqual(first);
    const [done, expired, kept] = first.claims;
    await scene.complete(done!);
    await scene.heartbeat([tokenOf(kept!)], 7_200_000);
    await letPass(on.sql, scene, 3600);
    expect(await on.store.sweepLeases(10)).toBe(1);
    const now = await create(request);
    expect(now.rollouts).toEqual(first.rollouts);
    expect(idsOf(now.claims)).toEqual([kept?.rollout.id]);
    const [taken] = await scene.claims({ workerId: 'other' });
    expect(taken?.rollout).toMatchObject({ id: expired?.rollout.id, attempt: 2 });
    expect(idsOf((await create(request)).claims), 'another attempt is not its claim').toEqual([kept?.rollout.id]);
    await scene.move(run, 'pause');
    expect(idsOf((await create(request)).claims)).toEqual([kept?.rollout.id]);
  });

  it('ID1, Q4: concurrent repetitions get the same claims, and workers that claim meanwhile get none of them', async () => {
    const { scene, stage, create } = await fresh();
    await scene.queue(stage, 4, { groupNumber: 1n });
    const request = Array.from({ length: 5 }, () => ({ number: undefined }));
    const calls = Array.from({ length: 6 }, () => create(request));
    const workers = Array.from({ length: 6 }, () => scene.claims({ count: 3 }));
    const answers = await Promise.all(calls);
    for (const answer of answers) expect(idsOf(answer.claims)).toEqual(idsOf(answers[0]!.claims));
    const byWorkers = (await Promise.all(workers)).flat();
    expect(byWorkers.map(({ rollout }) => rollout.group.number)).toEqual([1n, 1n, 1n, 1n]);
    expect(new Set(answers[0]?.claims.map(({ rollout }) => rollout.number))).toEqual(new Set([0n, 1n, 2n, 3n, 4n]));
  });
});
