import { create, type MessageInitShape, toBinary } from '@bufbuild/protobuf';
import { Code } from '@connectrpc/connect';
import { expect, it } from 'vitest';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import {
  ReadTrajectoriesRequestSchema,
  type ReadTrajectoriesResponse,
  ReadTrajectoriesResponseSchema,
  StepScope,
  TrajectoryOrder,
} from '../../gen/es/anabranch/v1/trajectory_service_pb.js';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import { readTrajectories } from '../../src/service/trajectory/read.ts';
import { refusalOf } from '../store/scene.ts';
import { outsideSql } from '../store/sql.ts';
import { statementsOfWarm } from '../store/statement_count.ts';
import { callOf } from '../support/parts_call.ts';
import { wrappedStore } from '../support/wrapped_store.ts';
import { type AppScene, all, describeApp, shownWord, step } from './on_app.ts';

type Request = MessageInitShape<typeof ReadTrajectoriesRequestSchema>;

async function* reading({ app, caller }: AppScene, request: Request = {}): AsyncGenerator<ReadTrajectoriesResponse> {
  const call = callOf(app, caller);
  for await (const sent of readTrajectories.messages(create(ReadTrajectoriesRequestSchema, request), call)) {
    yield sent.decode() as ReadTrajectoriesResponse;
  }
}

interface Shown {
  readonly name: string;
  readonly words: readonly string[];
  readonly done: boolean;
  readonly deleted: boolean;
}

/** Returns the trajectories of the messages, each with the words of its steps. */
function shown(messages: readonly ReadTrajectoriesResponse[], begun: Shown[] = []): Shown[] {
  const found = [...begun];
  for (const { trajectory, steps, trajectoryDone: done, deleted } of messages) {
    const last = trajectory === undefined ? found.pop()! : { name: trajectory.name, words: [], done, deleted };
    expect(trajectory === undefined || found.at(-1)?.done !== false, 'the one before is done').toBe(true);
    found.push({ ...last, words: [...last.words, ...steps.map((each) => shownWord({ step: each }))], done, deleted });
  }
  return found;
}

describeApp('ReadTrajectories', (on) => {
  async function create(scene: AppScene, name: string, count: number, reward = 1, size = 0): Promise<Trajectory> {
    const made = await scene.create({ name, metadataJson: '{"seed":1}' });
    const infoJson = size === 0 ? '' : `"${'x'.repeat(size)}"`;
    const steps = Array.from({ length: count }, (_, i) => step(BigInt(i), `${name}${i}`, { reward, infoJson }));
    if (count > 0) await scene.write(made, steps);
    return scene.now(made);
  }

  /** Small and large trajectories, empty ones, and branches. */
  async function createAll(scene: AppScene): Promise<Trajectory[]> {
    const a = await create(scene, 'a', 3);
    const b = await create(scene, 'b', 0);
    const c = await create(scene, 'c', 4, -2, 300 * 1024);
    const branch = await scene.branch(a, 1n);
    await scene.write(branch, [step(2n, 'own2', { reward: 9 }), step(3n, 'own3', { reward: 9 })]);
    const d = await create(scene, 'd', 300, 0);
    const e = await create(scene, 'e', 1, 5);
    return [a, b, c, branch, d, e];
  }

  const words = (name: string, count: number) => Array.from({ length: count }, (_, i) => `${name}${i}`);
  const complete = (name: string, of: readonly string[]): Shown => ({ name, words: of, done: true, deleted: false });
  const ALL = [
    complete('a', words('a', 3)),
    complete('b', []),
    complete('c', words('c', 4)),
    complete('', ['a0', 'a1', 'own2', 'own3']),
    complete('d', words('d', 300)),
    complete('e', words('e', 1)),
  ];

  it('RD6: returns each trajectory followed by its steps, in both orders and directions, each message below 1 MiB', async () => {
    const scene = on.scene();
    await createAll(scene);
    const messages = await all(reading(scene));
    expect(shown(messages)).toEqual(ALL);
    for (const message of messages) {
      expect(toBinary(ReadTrajectoriesResponseSchema, message).length).toBeLessThanOrEqual(LIMITS.messageBytes);
      expect(message.ownerId === '').toBe(message.steps.length === 0);
    }
    expect(messages[0]?.trajectory).toMatchObject({ metadataJson: '{"seed":1}', nextStepNumber: 3n });
    const read = async (request: Request) =>
      shown(await all(reading(scene, request))).map(({ words: of }) => of.at(-1));
    expect(await read({ descending: true })).toEqual(['e0', 'd299', 'own3', 'c3', undefined, 'a2']);
    const byReward = { order: TrajectoryOrder.REWARD_SUM };
    expect(await read(byReward)).toEqual(['c3', undefined, 'd299', 'a2', 'e0', 'own3']);
    expect(await read({ ...byReward, descending: true })).toEqual(['own3', 'e0', 'a2', 'd299', undefined, 'c3']);
  });

  it('RD6: NONE returns no steps, OWN those that each trajectory owns, BASIC no payloads', async () => {
    const scene = on.scene();
    await createAll(scene);
    const none = await all(reading(scene, { steps: StepScope.NONE }));
    expect(shown(none)).toEqual(ALL.map(({ name }) => complete(name, [])));
    expect(none).toHaveLength(6);
    const own = shown(await all(reading(scene, { steps: StepScope.OWN })));
    expect(own[3]).toEqual(complete('', ['own2', 'own3']));
    expect(own.filter((_, i) => i !== 3)).toEqual(ALL.filter((_, i) => i !== 3));
    const [basic] = await all(reading(scene, { view: View.BASIC }));
    expect(basic?.trajectory?.metadataJson).toBe('');
    expect(basic?.steps.map(({ actions, reward }) => [actions, reward])).toEqual([0, 1, 2].map(() => [[], 1]));
  });

  it('RD6: all filters together, and each alone', async () => {
    const scene = on.scene();
    const made = await createAll(scene);
    const task = await scene.create({ taskId: 'task', name: 't', labels: new Map([['k', 'v']]) });
    const read = async (request: Request) => (await all(reading(scene, { ...request, steps: StepScope.NONE }))).length;
    expect(await read({ trajectoryIds: [made[0]!.id, made[4]!.id, crypto.randomUUID()] })).toBe(2);
    expect(await read({ minRewardSum: 3, maxRewardSum: 5 })).toBe(2);
    expect(await read({ minLength: 1n, maxLength: 4n })).toBe(4);
    expect(await read({ taskId: 'task', labels: { k: 'v' }, maxLength: 0n })).toBe(1);
    expect(await read({ taskId: 'task', labels: { k: 'w' } })).toBe(0);
    expect(await read({ createTimeTo: { seconds: 1n } })).toBe(0);
    expect(await read({ runId: crypto.randomUUID() })).toBe(0);
    const refusal = await refusalOf(read({ trajectoryIds: [task.id], minRewardSum: NaN }));
    expect(refusal.violations).toMatchObject([{ field: 'min_reward_sum' }]);
  });

  it('RD6: name, labels of steps, parts and the order of ids, also continued after every message', async () => {
    const scene = on.scene();
    const labelled = async (name: string, phase: string, length: number) => {
      const made = await scene.create({ name });
      const steps = Array.from({ length }, (_, i) =>
        step(BigInt(i), `${name}${i}`, { labels: new Map([['phase', phase]]) }),
      );
      await scene.write(made, steps);
      return made.id;
    };
    const a = await labelled('same', 'reach', 3);
    const b = await labelled('same', 'grasp', 1);
    const c = await labelled('other', 'reach', 300);
    await create(scene, 'plain', 2);
    const read = async (request: Request) => {
      const messages = await all(reading(scene, request));
      for (const [i, { resumeToken }] of messages.entries()) {
        const rest = await all(reading(scene, { ...request, resumeToken }));
        expect(shown(rest, shown(messages.slice(0, i + 1)))).toEqual(shown(messages));
      }
      return messages.flatMap(({ trajectory }) => (trajectory === undefined ? [] : [trajectory.id]));
    };
    expect(await read({ name: 'same' })).toEqual([a, b]);
    expect(await read({ stepLabels: { phase: 'reach' } })).toEqual([a, c]);
    expect(await read({ stepLabels: { phase: 'reach' }, name: 'same' })).toEqual([a]);
    expect(await read({ stepLabels: { phase: 'nothing' } })).toEqual([]);
    const order = TrajectoryOrder.REQUESTED;
    expect(await read({ trajectoryIds: [c, a, b], order })).toEqual([c, a, b]);
    expect(await read({ trajectoryIds: [c, a, b], order, descending: true })).toEqual([b, a, c]);
    const parts = await Promise.all([0, 1, 2].map((index) => read({ shard: { index, count: 3 } })));
    expect(parts.flat()).toHaveLength(4);
    expect(new Set(parts.flat()).size).toBe(4);
    expect(await read({ shard: { index: 0, count: 1 }, name: 'other' })).toEqual([c]);
    const refusal = await refusalOf(all(reading(scene, { order })));
    expect(refusal.violations).toMatchObject([{ field: 'trajectory_ids' }]);
  });

  it.each([
    ['by creation', {}],
    ['by reward sum, descending', { order: TrajectoryOrder.REWARD_SUM, descending: true }],
    ['own steps only', { steps: StepScope.OWN }],
  ])('RD6: continues after every message of a call (%s)', async (_, request) => {
    const scene = on.scene();
    await createAll(scene);
    const messages = await all(reading(scene, request));
    expect(messages.length).toBeGreaterThan(8);
    const late = await create(scene, 'late', 2, 7);
    await scene.write(late, [step(2n, 'later')]);
    for (const [i, { resumeToken }] of messages.entries()) {
      const begun = shown(messages.slice(0, i + 1));
      expect(shown(await all(reading(scene, { ...request, resumeToken })), begun)).toEqual(shown(messages));
    }
  });

  it('RD6: steps that are appended between two calls are not returned, as in one call', async () => {
    const scene = on.scene();
    const open = await create(scene, 'open', 3, 1, 100 * 1024);
    const [first] = await all(reading(scene));
    await scene.write(open, [step(3n, 'appended')]);
    const rest = await all(reading(scene, { resumeToken: first!.resumeToken }));
    expect(rest.map(({ trajectory }) => trajectory)).toEqual(rest.map(() => undefined));
    expect(shown(rest, shown([first!]))).toEqual([complete('open', words('open', 3))]);
  });

  it('RD6: a token of another query or of no query is refused', async () => {
    const scene = on.scene();
    await createAll(scene);
    const [first] = await all(reading(scene));
    const resumeToken = first!.resumeToken;
    for (const request of [{ resumeToken: 'none' }, { resumeToken, descending: true }]) {
      expect(await refusalOf(all(reading(scene, request)))).toMatchObject({
        reason: 'INVALID_PAGE_TOKEN',
        violations: [{ field: 'resume_token' }],
      });
    }
    const elsewhere = on.scene(scene.app);
    expect((await refusalOf(all(reading(elsewhere, { resumeToken })))).reason).toBe('INVALID_PAGE_TOKEN');
  });

  it('RD1, RD6: a trajectory that is deleted while the call reads it ends with a mark, and the call goes on', async () => {
    const scene = on.scene();
    const large = await create(scene, 'large', 6, 1, 200 * 1024);
    await create(scene, 'next', 2);
    const call = reading(scene);
    const first = await call.next();
    await scene.rpc.deleteTrajectory({ trajectoryId: large.id });
    const [cut, next] = shown([first.value as ReadTrajectoriesResponse, ...(await all(call))]);
    expect(cut).toMatchObject({ name: 'large', done: true, deleted: true });
    expect(cut!.words.length).toBeLessThan(6);
    expect(next).toEqual(complete('next', words('next', 2)));
    const after = await all(reading(scene, { resumeToken: (first.value as ReadTrajectoriesResponse).resumeToken }));
    expect(after[0]).toMatchObject({ steps: [], trajectoryDone: true, deleted: true });
    expect(after[0]?.trajectory).toBeUndefined();
    expect(shown(after.slice(1))).toEqual([complete('next', words('next', 2))]);
  });

  it.each([
    [2, 0],
    [4, 200 * 1024],
    [300, 0],
  ])('STEP_CORRUPT, RD6: damage ends only its trajectory: %i steps, with %i bytes each', async (count, size) => {
    const scene = on.scene();
    await create(scene, 'before', 2);
    const damaged = await create(scene, 'damaged', count, 1, size);
    const branch = await scene.branch(damaged, 0n);
    await create(scene, 'next', 2);
    const sql = await outsideSql(on.database);
    await sql.rows(
      `update segments set checksum = checksum + 1 where trajectory = ${damaged.ref.key} returning 1 as n`,
    );
    await sql.close();
    const messages = await all(reading(scene));
    expect(shown(messages)).toEqual([
      complete('before', words('before', 2)),
      complete('damaged', []),
      complete('', []),
      complete('next', words('next', 2)),
    ]);
    const errors = messages.flatMap(({ error }) => error ?? []);
    const error = { code: Code.DataLoss, reason: 'STEP_CORRUPT', metadata: { first_step_number: '0' } };
    expect(errors).toMatchObject([error, error]);
    for (const [i, { resumeToken }] of messages.entries()) {
      const begun = shown(messages.slice(0, i + 1));
      expect(shown(await all(reading(scene, { resumeToken })), begun)).toEqual(shown(messages));
    }
    expect(shown(await all(reading(scene, { trajectoryIds: [branch.id], steps: StepScope.OWN })))).toEqual([
      complete('', []),
    ]);
  });

  it.each(['readEncodedRanges', 'findTrajectories', 'orderTrajectories'] as const)(
    'RD1, RD6: trajectories that are deleted before %s are left out or marked',
    async (method) => {
      let deleting: (() => Promise<unknown>) | undefined;
      const original = on.store[method] as (...args: unknown[]) => Promise<unknown>;
      const racing = wrappedStore(on.store, {
        [method]: async (...args: unknown[]) => {
          const now = deleting;
          deleting = undefined;
          await now?.();
          return original.apply(on.store, args);
        },
      });
      const app = on.app({}, racing);
      const scene = on.scene(app);
      const made = [await create(scene, 'x', 2), await create(scene, 'y', 2), await create(scene, 'z', 2)];
      deleting = () => scene.rpc.deleteTrajectory({ trajectoryId: made[1]!.id });
      const read = shown(await all(reading(scene)));
      const marked = { name: 'y', words: [], done: true, deleted: true };
      expect(read).toEqual([
        complete('x', words('x', 2)),
        ...(method === 'readEncodedRanges' ? [marked] : []),
        complete('z', words('z', 2)),
      ]);
      await app.close();
    },
  );

  it('RD6: trajectories that are created while the call reads are not returned', async () => {
    const scene = on.scene();
    await create(scene, 'large', 4, 1, 300 * 1024);
    const call = reading(scene);
    await call.next();
    await create(scene, 'late', 1);
    expect((await all(call)).every(({ trajectory }) => trajectory === undefined)).toBe(true);
    expect(await all(reading(on.scene(scene.app)))).toEqual([]);
  });

  it('RD6: 100 trajectories take a handful of statements, also if they are branches', async () => {
    const scene = on.scene();
    const root = await create(scene, 'root', 5);
    await Promise.all(
      Array.from({ length: 100 }, async (_, i) => {
        if (i % 2 === 0) return create(scene, 'other', 5);
        const branch = await scene.branch(root, 2n);
        return scene.write(branch, [step(3n, 'own')]);
      }),
    );
    const read = async () => expect(shown(await all(reading(scene)))).toHaveLength(101);
    expect(await statementsOfWarm(on.engine, read)).toBeLessThan(20);
  });

  it('B1, RD6: a trajectory with many ancestors has all its steps', async () => {
    const scene = on.scene();
    let leaf = await create(scene, 'root', 1);
    for (let depth = 1n; depth <= 66n; depth += 1n) {
      leaf = await scene.branch(leaf, depth - 1n);
      await scene.write(leaf, [step(depth, `${depth}`)]);
    }
    const other = await create(scene, 'other', 1);
    const messages = await all(reading(scene, { trajectoryIds: [leaf.id, other.id] }));
    const steps = messages.flatMap((message) => message.steps.map(({ stepNumber }) => stepNumber));
    expect(steps).toEqual([...Array.from({ length: 67 }, (_, i) => BigInt(i)), 0n]);
  });

  it('SERVER_DRAINING: a drain ends the call', async () => {
    const app = on.app();
    const scene = on.scene(app);
    await create(scene, 'a', 2, 1, 200 * 1024);
    await create(scene, 'b', 2);
    const call = reading(scene);
    await call.next();
    app.drain.begin();
    expect((await refusalOf(all(call))).reason).toBe('SERVER_DRAINING');
    await app.close();
  });
});
