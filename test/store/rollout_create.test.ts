import { randomUUID } from 'node:crypto';
import { expect, it } from 'vitest';
import type { NewRollout, RolloutChanges } from '../../src/store/contract/rollout.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { refusalOf } from './scene.ts';
import { countRows } from './sql.ts';

describeStore('creating rollouts', (on) => {
  const fresh = async () => {
    const scene = new RolloutScene(on.store);
    return { scene, ...(await scene.place()) };
  };

  it('Q6: creates rollouts with their groups, each PENDING with all fields of the request', async () => {
    const { scene, run, stage } = await fresh();
    await scene.task('t');
    const source = await scene.createWith(['a']);
    const id = randomUUID();
    const [made, other] = await scene.makeRollouts(stage, [
      {
        id,
        groupNumber: 3n,
        number: 7n,
        taskId: 't',
        labels: new Map([
          ['b', '2'],
          ['a', '1'],
        ]),
        inputJson: '{"seed": 9}',
        priority: 1_000_000,
        maxTurns: 20n,
        maxAttempts: 5,
        startFrom: { trajectoryId: source.id, stepNumber: 0n },
        modelUri: 's3://m',
        metadataJson: '{"a":"ä"}',
        onSuccess: 'CANCEL_PENDING',
      },
      { groupNumber: 3n, number: 8n, onSuccess: 'CONTINUE' },
    ]);
    expect(made).toMatchObject({ rolloutId: id, existed: false });
    expect(other?.groupId).toBe(made?.groupId);
    const { rollout, attempts, validations, environmentIds } = await scene.record(id);
    expect(rollout).toMatchObject({
      id,
      run: { id: run.id },
      stage: { id: stage.id },
      group: { id: made?.groupId, number: 3n },
      number: 7n,
      taskId: 't',
      labels: new Map([
        ['a', '1'],
        ['b', '2'],
      ]),
      inputJson: '{"seed": 9}',
      priority: 1_000_000,
      maxTurns: 20n,
      maxAttempts: 5,
      startFrom: { trajectoryId: source.id, stepNumber: 0n },
      modelUri: 's3://m',
      metadataJson: '{"a":"ä"}',
      status: 'PENDING',
      attempt: 0,
      trajectoryId: '',
      turns: 0n,
      workerId: '',
      leaseEndTime: undefined,
      result: undefined,
      success: undefined,
      reward: undefined,
      startTime: undefined,
      endTime: undefined,
      revision: 1n,
    });
    expect([attempts, validations, environmentIds]).toEqual([[], [], []]);
    expect(await scene.history('ROLLOUT', { id })).toMatchObject([
      { ordinal: 0n, oldStatus: undefined, newStatus: 'PENDING', actor: 'tester' },
    ]);
    const group = await scene.store.getGroup(scene.namespace, { stageId: stage.id, number: 3n });
    expect(group).toMatchObject({ id: made?.groupId, onSuccess: 'CANCEL_PENDING', statistics: { pending: 2n } });
  });

  it('Q6: a rollout that exists under a group number and number stays unchanged, and the answer says so', async () => {
    const { scene, stage } = await fresh();
    const first = await scene.makeRollouts(stage, [
      { groupNumber: 1n, number: 0n, priority: 3 },
      { groupNumber: 1n, number: 1n },
    ]);
    const again = await scene.makeRollouts(stage, [
      { groupNumber: 1n, number: 1n, id: randomUUID() },
      { groupNumber: 2n, number: 1n },
      { groupNumber: 1n, number: 0n, priority: 3, onSuccess: 'CANCEL_PENDING' },
    ]);
    expect(again.map(({ existed }) => existed)).toEqual([true, false, true]);
    expect(again[0]).toEqual({ ...first[1], existed: true });
    expect(again[2]).toEqual({ ...first[0], existed: true });
    expect(await scene.rollouts({ stageId: stage.id })).toHaveLength(3);
  });

  it('Q6: a rollout that exists with other values is ROLLOUT_CONFLICT, which names rollout and fields; nothing is created', async () => {
    const { scene, stage } = await fresh();
    for (const task of ['t', 'u']) await scene.task(task);
    const source = await scene.createWith(['root', 'a']);
    const given: Partial<NewRollout> = {
      groupNumber: 1n,
      number: 0n,
      taskId: 't',
      labels: new Map([['a', '1']]),
      inputJson: '{"a": 1}',
      priority: 3,
      maxTurns: 9n,
      maxAttempts: 4,
      modelUri: 's3://m',
      metadataJson: '[]',
      startFrom: { trajectoryId: source.id, stepNumber: 1n },
    };
    const [made] = await scene.makeRollouts(stage, [given]);
    const before = await countRows(on.sql, scene.namespace);
    for (const [other, fields] of [
      [{ taskId: 'u' }, 'task_id'],
      [{ taskId: '' }, 'task_id'],
      [{ inputJson: '{"a":1}' }, 'input_json'],
      [{ labels: new Map([['a', '2']]) }, 'labels'],
      [{ priority: 4 }, 'priority'],
      [{ maxTurns: undefined }, 'max_turns'],
      [{ maxAttempts: 3 }, 'max_attempts'],
      [{ startFrom: { trajectoryId: source.id, stepNumber: 0n } }, 'start_from'],
      [{ startFrom: undefined }, 'start_from'],
      [{ modelUri: '' }, 'model_uri'],
      [{ metadataJson: '' }, 'metadata_json'],
      [{ priority: 0, taskId: 'not in the catalogue', modelUri: 'x' }, 'task_id,priority,model_uri'],
    ] as const) {
      const refusal = await refusalOf(scene.makeRollouts(stage, [{ groupNumber: 5n }, { ...given, ...other }]));
      expect(refusal).toMatchObject({ reason: 'ROLLOUT_CONFLICT', metadata: { rollout: made!.rolloutId, fields } });
    }
    expect(await countRows(on.sql, scene.namespace)).toEqual(before);
  });

  it('Q6: the comparison uses the values of the creation, whatever was changed since', async () => {
    const { scene, stage } = await fresh();
    const given: Partial<NewRollout> = { labels: new Map([['a', '1']]), priority: 3, maxTurns: 9n, maxAttempts: 1 };
    const [made] = await scene.makeRollouts(stage, [given]);
    const id = made!.rolloutId;
    const update = (changes: RolloutChanges) => scene.store.updateRollout(scene.caller, id, undefined, changes);
    await scene.fail(await scene.claimOne());
    await scene.retry({ id, attempt: 1 });
    await update({ labels: new Map(), priority: 5 });
    await update({ priority: 6, maxTurns: undefined, modelUri: 'm', metadataJson: '{}', phase: 'p' });
    expect(await scene.makeRollouts(stage, [given])).toEqual([{ ...made, existed: true }]);
    expect(await scene.rollout(id)).toMatchObject({ priority: 6, maxTurns: undefined, maxAttempts: 2, modelUri: 'm' });
    const now: Partial<NewRollout> = { priority: 6, maxAttempts: 2, modelUri: 'm', metadataJson: '{}' };
    const { metadata } = await refusalOf(scene.makeRollouts(stage, [now]));
    expect(metadata.fields).toBe('labels,priority,max_turns,max_attempts,model_uri,metadata_json');
  });

  it('D3: one invalid rollout makes the call fail, and nothing is stored', async () => {
    const { scene, stage } = await fresh();
    await scene.task('t');
    const [taken = ''] = await scene.queue(stage, 1, { groupNumber: 9n });
    const before = await countRows(on.sql, scene.namespace);
    const good = { groupNumber: 1n, number: 0n, taskId: 't' };
    const twin = randomUUID();
    for (const [bad, reason] of [
      [{ number: 1n, taskId: 'unknown' }, 'TASK_NOT_FOUND'],
      [{ number: 1n, id: taken }, 'ROLLOUT_EXISTS'],
      [{ number: 1n, startFrom: { trajectoryId: randomUUID(), stepNumber: 0n } }, 'TRAJECTORY_NOT_FOUND'],
    ] as const) {
      expect((await refusalOf(scene.makeRollouts(stage, [good, bad]))).reason).toBe(reason);
    }
    const twins = [
      { number: 0n, id: twin },
      { number: 1n, id: twin },
    ];
    expect((await refusalOf(scene.makeRollouts(stage, twins))).reason).toBe('ROLLOUT_EXISTS');
    expect((await refusalOf(scene.makeRollouts({ id: randomUUID() }, [good]))).reason).toBe('STAGE_NOT_FOUND');
    const stranger = new RolloutScene(on.store);
    expect((await refusalOf(stranger.makeRollouts(stage, [good]))).reason).toBe('STAGE_NOT_FOUND');
    expect(await countRows(on.sql, scene.namespace)).toEqual(before);
  });

  it('Q6: twenty racers that create the same thousand rollouts get the same thousand, each once', async () => {
    const { scene, stage } = await fresh();
    const rollouts = Array.from({ length: 100 }, (_, i) => ({ groupNumber: BigInt(i % 10), number: BigInt(i) }));
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, racer) => {
        // Each racer uses an order of its own.
        const turned = [...rollouts.slice(racer * 5), ...rollouts.slice(0, racer * 5)];
        return scene.makeRollouts(stage, turned);
      }),
    );
    const ids = answers.map((made) => [...new Set(made.map(({ rolloutId }) => rolloutId))].sort());
    for (const each of ids) expect(each).toEqual(ids[0]);
    expect(ids[0]).toHaveLength(100);
    const made = answers.flat().filter(({ existed }) => !existed);
    expect(made).toHaveLength(100);
    expect(await countRows(on.sql, scene.namespace)).toMatchObject({ rollouts: 100, groups: 10 });
    const counted = await on.sql.rows(`select sum(rollouts) as n from groups where namespace = '${scene.namespace}'`);
    expect(Number(counted[0]?.n)).toBe(100);
  });

  it('the largest numbers are stored, and found again', async () => {
    const { scene, stage } = await fresh();
    const largest = 2n ** 63n - 1n;
    const [made] = await scene.makeRollouts(stage, [{ groupNumber: largest, number: largest }]);
    expect(await scene.rollout(made!.rolloutId)).toMatchObject({ group: { number: largest }, number: largest });
    const after = { stage: 0n, groupNumber: largest, number: largest - 1n };
    expect(await scene.rollouts({ stageId: stage.id }, {}, 10, after)).toHaveLength(1);
    expect((await scene.claimOne()).trajectory.name).toBe(`rollout ${largest}/${largest} attempt 1`);
  });
});
