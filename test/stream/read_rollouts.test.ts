import { expect, it } from 'vitest';
import type { StoredStep } from '../../src/domain/step.ts';
import type { Claim } from '../../src/store/contract/rollout.ts';
import type { Store } from '../../src/store/contract/store.ts';
import type { App } from '../../src/stream/app.ts';
import { type ReadRolloutsArgs, readRollouts } from '../../src/stream/rollouts/read.ts';
import type { RolloutsRead } from '../../src/stream/rollouts/read_group.ts';
import type { AppSettings } from '../../src/stream/settings.ts';
import { AppScene, all, describeApp, state, step, wordOf } from '../service/on_app.ts';
import { servicesOf } from '../service/services.ts';
import { newGroup, RolloutScene } from '../store/rollout_scene.ts';
import { runMove, SILENT } from '../store/run_scene.ts';
import { refusalOf } from '../store/scene.ts';
import { statementsOfWarm } from '../store/statement_count.ts';
import { decodedSteps } from '../support/encoded_steps.ts';
import { sha256 } from '../support/steps.ts';
import { wrappedStore } from '../support/wrapped_store.ts';

const NEVER = 3_600_000;

describeApp('ReadRollouts', (on) => {
  async function withApp(settings: Partial<AppSettings>, use: (on: Trainer) => Promise<void>, store?: Store) {
    const app = on.app({ watchMs: 1, pollMs: 20, progressMs: NEVER, claimMostMs: 50, ...settings }, store);
    try {
      await use(new Trainer(app, on.store));
      expect(app.changes.listeners, 'nobody listens any more').toBe(0);
    } finally {
      await app.close();
    }
  }

  it('Q6: returns terminal groups by number, each rollout with the steps of its attempt, and no others', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      await trainer.group(stage, 1n, ['COMPLETED', 'FAILED']);
      await trainer.group(stage, 0n, ['COMPLETED', 'COMPLETED']);
      await trainer.makeRollouts(stage, [{ groupNumber: 2n }, { groupNumber: 3n }]);
      await trainer.store.upsertGroup(trainer.namespace, newGroup(stage.id, { number: 4n }));
      const held = await trainer.claimOne({ stageId: stage.id });
      expect(shownBy(await trainer.read(stage))).toEqual([
        '0/0 COMPLETED: a0 b0',
        '0/1 COMPLETED: a1 b1 group done',
        '1/0 COMPLETED: a0 b0',
        '1/1 FAILED: a1 b1 group done',
      ]);
      const complete = await trainer.read(stage, { completeGroupsOnly: true });
      expect(shownBy(complete)).toEqual(['0/0 COMPLETED: a0 b0', '0/1 COMPLETED: a1 b1 group done']);
      await trainer.cancel(held.rollout.id);
      expect(shownBy(await trainer.read(stage)).at(-1), 'one that was cancelled without a step').toBe(
        '2/0 CANCELLED: group done',
      );
    }));

  it('Q6: of one group, returns all rollouts that have an attempt at once, with the steps that they have', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      await trainer.group(stage, 0n, ['COMPLETED', 'FAILED']);
      await trainer.makeRollouts(stage, [{ groupNumber: 1n }, { groupNumber: 1n, number: 1n }]);
      const held = await trainer.claimOne({ stageId: stage.id });
      await trainer.write(held, [step(0n, 'live')]);
      const groups = await trainer.store.listGroups(
        trainer.namespace,
        stage.id,
        { limit: 9, after: undefined },
        'BASIC',
      );
      const read = async (i: number) => shownBy(await trainer.read(stage, { groupId: groups[i]!.id, stageId: '' }));
      expect(await read(0)).toEqual(['0/0 COMPLETED: a0 b0', '0/1 FAILED: a1 b1 group done']);
      expect(await read(1)).toEqual(['1/0 INITIALIZING: live group done']);
      const unknown = trainer.read(stage, { groupId: crypto.randomUUID() });
      expect((await refusalOf(unknown)).reason).toBe('GROUP_NOT_FOUND');
    }));

  it('Q6: a rollout without an attempt, or with a deleted trajectory, delays nothing', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      const [claim] = await trainer.group(stage, 0n, ['COMPLETED']);
      const [one] = await trainer.makeRollouts(stage, [{ groupNumber: 0n, number: 1n }]);
      await trainer.cancel(one!.rolloutId);
      await trainer.store.deleteTrajectory(trainer.namespace, claim!.trajectory.id, 'CASCADE');
      expect(shownBy(await trainer.read(stage))).toEqual(['0/0 COMPLETED: group done']);
    }));

  it('Q6: BASIC omits payloads, FULL includes those of rollouts and steps', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      await trainer.group(stage, 0n, ['COMPLETED'], { inputJson: '{"seed":1}', metadataJson: '[1]' });
      const [full] = await trainer.read(stage);
      expect(full?.rollout).toMatchObject({ inputJson: '{"seed":1}', metadataJson: '[1]' });
      expect(full?.steps[0]?.actions).toHaveLength(1);
      const [basic] = await trainer.read(stage, { view: 'BASIC' });
      expect(basic?.rollout).toMatchObject({ inputJson: '', metadataJson: '' });
      expect(basic?.steps.map(({ actions }) => actions)).toEqual([[], []]);
    }));

  it.each([
    [0, false],
    [1000, false],
    [60_000, false],
    [60_000, true],
  ])(
    'Q6, RD7: returns states of up to %i bytes before the steps that name them, each once in a call (follow: %s)',
    (inlineBytes, follow) =>
      withApp({}, async (trainer) => {
        const { stage } = await trainer.place();
        const [small, shared, large] = [Buffer.alloc(900, 1), Buffer.alloc(20_000, 2), Buffer.alloc(70_000, 3)];
        const states = (own: number) => [
          state(Buffer.alloc(500, own + 10), { name: 'own' }),
          state(small, { name: 'small' }),
          state(shared, { name: 'shared' }),
          state(large, { name: 'large' }),
        ];
        for (const group of [0, 1]) {
          const claim = await trainer.claimed(stage, { groupNumber: BigInt(group) });
          await trainer.write(claim, [step(0n, 'a', { states: states(2 * group) })]);
          await trainer.write(claim, [step(1n, 'b', { states: states(2 * group + 1) })]);
          await trainer.complete(claim);
        }
        await trainer.store.closeQueue(trainer.namespace, stage.id);
        const read = await trainer.read(stage, { inlineBytes, follow });
        const sent: string[] = [];
        for (const { blobs, steps, rollout } of read) {
          expect(blobs.length === 0 || (steps.length === 0 && rollout === undefined)).toBe(true);
          for (const { digest, data } of blobs) {
            expect(sha256(data)).toBe(digest);
            sent.push(digest);
          }
          for (const { digest, size } of steps.flatMap((each) => each.states))
            expect(sent.includes(digest), `${size} bytes`).toBe(size <= inlineBytes);
        }
        expect(sent).toHaveLength(new Set(sent).size);
        expect(sent).toHaveLength({ 0: 0, 1000: 5, 60000: 6 }[inlineBytes]!);
      }),
  );

  it('RD3: no part is larger than a message, however large a rollout and its steps are', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      const large = `"${'x'.repeat(120 * 1024)}"`;
      const claim = await trainer.claimed(stage, { inputJson: large, metadataJson: large });
      const wide = (n: bigint) => step(n, 'w', { infoJson: `"${'y'.repeat(300 * 1024)}"` });
      await trainer.write(claim, [wide(0n), wide(1n), step(2n, 'huge', { infoJson: `"${'z'.repeat(900 * 1024)}"` })]);
      await trainer.complete(claim);
      const read = await trainer.read(stage);
      expect(read.map(({ rollout, steps }) => [rollout !== undefined, steps.length])).toEqual([
        [true, 1],
        [false, 1],
        [false, 1],
      ]);
      expect(read.map(({ rolloutDone, groupDone }) => rolloutDone && groupDone)).toEqual([false, false, true]);
    }));

  it('B1: a rollout that started from a step is returned with the steps that it shares', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      const [first] = await trainer.group(stage, 0n, ['COMPLETED']);
      const claim = await trainer.claimed(stage, {
        groupNumber: 1n,
        startFrom: { trajectoryId: first!.trajectory.id, stepNumber: 0n },
      });
      await trainer.write(claim, [step(1n, 'own')]);
      await trainer.complete(claim);
      expect(shownBy(await trainer.read(stage)).at(-1)).toBe('1/0 COMPLETED: a0 own group done');
    }));

  it('Q6: returns groups as they end, each once, reports when it is caught up, and ends with the stage', () =>
    withApp({ pollMs: NEVER }, async (trainer) => {
      const { stage } = await trainer.place();
      await trainer.group(stage, 0n, ['COMPLETED']);
      await trainer.makeRollouts(stage, [{ groupNumber: 1n }]);
      const reading = trainer.reading(stage, { follow: true });
      expect(shownBy([await next(reading)])).toEqual(['0/0 COMPLETED: a0 b0 group done']);
      expect(await next(reading)).toMatchObject({ rollout: undefined, caughtUp: true });
      const claim = await trainer.claimOne({ stageId: stage.id });
      await trainer.store.moveStage(trainer.caller, stage.id, 'complete', SILENT);
      await trainer.write(claim, [step(0n, 'late')]);
      await trainer.complete(claim);
      expect(shownBy([await next(reading)])).toEqual(['1/0 COMPLETED: late group done']);
      expect(shownBy(await all(reading))).toEqual([]);
    }));

  it('Q2, Q6: ends once the queue is closed and no rollout is PENDING or live, even if the stage is RUNNING', () =>
    withApp({ pollMs: NEVER }, async (trainer) => {
      const { stage } = await trainer.place();
      await trainer.group(stage, 0n, ['COMPLETED']);
      await trainer.makeRollouts(stage, [{ groupNumber: 1n }, { groupNumber: 2n }]);
      const reading = trainer.reading(stage, { follow: true });
      expect(shownBy([await next(reading)])).toEqual(['0/0 COMPLETED: a0 b0 group done']);
      await trainer.store.closeQueue(trainer.namespace, stage.id);
      await trainer.complete(await trainer.claimOne({ stageId: stage.id }));
      const second = await nextRollout(reading);
      expect(shownBy([second]), 'one is left').toEqual(['1/0 COMPLETED: group done']);
      const last = await trainer.claimOne({ stageId: stage.id });
      await trainer.complete(last);
      expect(shownBy(await all(reading))).toEqual(['2/0 COMPLETED: group done']);
      expect((await trainer.store.getStage(trainer.namespace, { id: stage.id }))?.status).toBe('RUNNING');
      const again = trainer.reading(stage, { follow: true });
      expect((await all(again)).filter(({ groupDone }) => groupDone)).toHaveLength(3);
    }));

  it('Q2, Q6: is notified of a close that leaves no more groups', () =>
    withApp({ pollMs: NEVER }, async (trainer) => {
      const { stage } = await trainer.place();
      const reading = trainer.reading(stage, { follow: true });
      expect(await next(reading)).toMatchObject({ caughtUp: true });
      const rest = all(reading);
      await trainer.store.closeQueue(trainer.namespace, stage.id);
      expect(await rest).toEqual([]);
    }));

  it('Q4, Q6: ends once the stage has ended and no worker holds a rollout of it, even if some are still queued', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      await trainer.makeRollouts(stage, [{ groupNumber: 0n }, { groupNumber: 1n }]);
      const held = await trainer.claimOne({ stageId: stage.id });
      const reading = trainer.reading(stage, { follow: true });
      expect(await next(reading)).toMatchObject({ caughtUp: true });
      await trainer.store.moveStage(trainer.caller, stage.id, 'complete', SILENT);
      await trainer.complete(held);
      expect(shownBy((await all(reading)).filter(({ caughtUp }) => !caughtUp))).toEqual(['0/0 COMPLETED: group done']);
    }));

  it('Q6: continues if the stage is reopened before that', () =>
    withApp({ pollMs: NEVER }, async (trainer) => {
      const { stage } = await trainer.place();
      await trainer.makeRollouts(stage, [{ groupNumber: 0n }]);
      const reading = trainer.reading(stage, { follow: true });
      await trainer.store.moveStage(trainer.caller, stage.id, 'complete', SILENT);
      expect(await next(reading)).toMatchObject({ caughtUp: true });
      const waiting = next(reading);
      await trainer.store.moveStage(trainer.caller, stage.id, 'reopen', SILENT);
      await trainer.complete(await trainer.claimOne({ stageId: stage.id }));
      expect(shownBy([await waiting])).toEqual(['0/0 COMPLETED: group done']);
      await reading.return();
    }));

  it('Q4, Q6: ends once the run has ended too, even if its stage was left open', () =>
    withApp({}, async (trainer) => {
      const { run, stage } = await trainer.place();
      await trainer.makeRollouts(stage, [{ groupNumber: 0n }]);
      const reading = trainer.reading(stage, { follow: true });
      expect(await next(reading)).toMatchObject({ caughtUp: true });
      await trainer.store.moveRun(trainer.caller, run.id, runMove('cancel'));
      expect((await all(reading)).every(({ caughtUp }) => caughtUp)).toBe(true);
    }));

  it('Q6: a group without any attempt is returned too, so that the number of groups is complete', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      const made = await trainer.makeRollouts(stage, [{ groupNumber: 0n }, { groupNumber: 0n, number: 1n }]);
      for (const { rolloutId } of made) await trainer.cancel(rolloutId);
      expect(shownBy(await trainer.read(stage))).toEqual(['0/0 CANCELLED:', '0/1 CANCELLED: group done']);
      expect(await trainer.read(stage, { completeGroupsOnly: true })).toEqual([]);
    }));

  it('Q6: a group is held back while one of its rollouts is retried, and returned once it has ended again', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      const [failed] = await trainer.group(stage, 0n, ['FAILED']);
      const reading = trainer.reading(stage, { follow: true, completeGroupsOnly: true });
      expect(await next(reading)).toMatchObject({ rollout: undefined, caughtUp: true });
      await trainer.retry({ id: failed!.rollout.id, attempt: 1 });
      const again = await trainer.claimOne({ stageId: stage.id });
      await trainer.complete(again);
      expect(shownBy([await next(reading)])).toEqual(['0/0 COMPLETED: group done']);
      await reading.return();
    }));

  it('Q6: a rollout that is retried while its group is read is returned with its earlier end', async () => {
    let meanwhile: (() => Promise<unknown>) | undefined;
    const store = wrappedStore(on.store, {
      listRollouts: async (...args) => {
        const rows = await on.store.listRollouts(...args);
        const change = meanwhile;
        meanwhile = undefined;
        await change?.();
        return rows;
      },
    });
    const use = async (trainer: Trainer) => {
      const { stage } = await trainer.place();
      const [failed] = await trainer.group(stage, 0n, ['FAILED', 'COMPLETED'], { inputJson: '{"seed":1}' });
      meanwhile = async () => {
        await trainer.retry({ id: failed!.rollout.id, attempt: 1 });
        await trainer.claimOne({ stageId: stage.id });
      };
      const read = await trainer.read(stage);
      expect(shownBy(read)).toEqual(['0/0 FAILED: a0 b0', '0/1 COMPLETED: a1 b1 group done']);
      expect(read[0]?.rollout).toMatchObject({ attempt: 1, inputJson: '{"seed":1}' });
    };
    await withApp({}, use, store);
  });

  it('Q6: the trajectories of a group are read together: 40 rollouts take a few statements more than 4', () =>
    withApp({}, async (trainer) => {
      const { stage } = await trainer.place();
      const { stage: large } = await trainer.place();
      await trainer.group(
        stage,
        0n,
        Array.from({ length: 4 }, () => 'COMPLETED' as const),
      );
      await trainer.group(
        large,
        0n,
        Array.from({ length: 40 }, () => 'COMPLETED' as const),
      );
      const statements = (of: typeof stage) => statementsOfWarm(on.engine, () => trainer.read(of));
      expect((await statements(large)) - (await statements(stage))).toBeLessThan(20);
    }));

  it('RD1, Q6: a trajectory that is deleted while its rollout is read ends the call with its reason', async () => {
    let before: (() => Promise<unknown>) | undefined;
    const store = wrappedStore(on.store, {
      readEncodedRanges: async (...args) => {
        await before?.();
        return on.store.readEncodedRanges(...args);
      },
    });
    const use = async (trainer: Trainer) => {
      const { stage } = await trainer.place();
      const claims = await trainer.group(stage, 0n, ['COMPLETED', 'COMPLETED']);
      before = () => trainer.store.deleteTrajectory(trainer.namespace, claims[1]!.trajectory.id, 'REFUSE');
      const reading = trainer.reading(stage);
      expect(shownBy([await next(reading)])).toEqual(['0/0 COMPLETED: a0 b0']);
      expect(await refusalOf(reading.next())).toMatchObject({
        reason: 'TRAJECTORY_DELETED',
        metadata: { trajectory_id: claims[1]!.trajectory.id },
      });
    };
    await withApp({}, use, store);
  });

  it('RUN_DELETED, SERVER_DRAINING: an early end has its reason, also while it waits', () =>
    withApp({ pollMs: NEVER }, async (trainer) => {
      const { run, stage } = await trainer.place();
      const reading = trainer.reading(stage, { follow: true });
      expect(await next(reading)).toMatchObject({ caughtUp: true });
      await servicesOf(trainer.app, trainer.caller).deleteRun({ runId: run.id });
      expect(await refusalOf(reading.next())).toMatchObject({ reason: 'RUN_DELETED' });
      const other = (await trainer.place()).stage;
      await trainer.group(other, 0n, ['COMPLETED']);
      const drained = trainer.reading(other, { follow: true });
      await next(drained);
      await next(drained);
      const waiting = refusalOf(drained.next());
      trainer.app.drain.begin();
      expect(await waiting).toMatchObject({ reason: 'SERVER_DRAINING' });
    }));

  it('a cancelled call stops waiting, and an open one gets a message that it is caught up', () =>
    withApp({ progressMs: 60 }, async (trainer) => {
      const { stage } = await trainer.place();
      const gone = new AbortController();
      const reading = trainer.reading(stage, { follow: true, signal: gone.signal });
      const mark = { rollout: undefined, steps: [], rolloutDone: false, groupDone: false, caughtUp: true, blobs: [] };
      expect([await next(reading), await next(reading)]).toEqual([mark, mark]);
      const end = all(reading);
      gone.abort();
      await end;
    }));
});

interface DecodedRead extends Omit<RolloutsRead, 'steps'> {
  readonly steps: readonly StoredStep[];
}

class Trainer extends RolloutScene {
  readonly app: App;
  readonly #writing: AppScene;

  constructor(app: App, store: Store) {
    super(store);
    this.app = app;
    this.#writing = new AppScene(app, this.namespace);
  }

  /** Reads rollouts with their steps, decoded as by clients. */
  async *reading(
    stage: { readonly id: string },
    fields: Partial<ReadRolloutsArgs> = {},
  ): AsyncGenerator<DecodedRead, void, undefined> {
    const { signal } = new AbortController();
    const args = {
      stageId: stage.id,
      completeGroupsOnly: false,
      follow: false,
      view: 'FULL' as const,
      inlineBytes: 0,
      signal,
    };
    for await (const { steps, ...read } of readRollouts(this.app, this.caller, { ...args, ...fields })) {
      yield { ...read, steps: decodedSteps(steps) };
    }
  }

  read(stage: { readonly id: string }, fields: Partial<ReadRolloutsArgs> = {}): Promise<DecodedRead[]> {
    return all(this.reading(stage, fields));
  }

  /** A claimed rollout in a group of its own. */
  async claimed(stage: { readonly id: string }, fields: object): Promise<Claim> {
    await this.makeRollouts(stage, [fields]);
    return this.claimOne({ stageId: stage.id });
  }

  /** A group whose rollouts took two turns each and then ended with this status. */
  async group(
    stage: { readonly id: string },
    groupNumber: bigint,
    ends: readonly ('COMPLETED' | 'FAILED')[],
    fields: object = {},
  ): Promise<Claim[]> {
    const claims: Claim[] = [];
    for (const [i, end] of ends.entries()) {
      const claim = await this.claimed(stage, { groupNumber, number: BigInt(i), ...fields });
      await this.write(claim, [step(0n, `a${i}`), step(1n, `b${i}`)]);
      await (end === 'COMPLETED' ? this.complete(claim) : this.fail(claim));
      claims.push(claim);
    }
    return claims;
  }

  async write({ trajectory }: Claim, steps: Parameters<AppScene['write']>[1]): Promise<void> {
    await this.#writing.write(trajectory, steps);
  }
}

async function next(reading: AsyncGenerator<DecodedRead, void>): Promise<DecodedRead> {
  const { value, done } = await reading.next();
  if (done === true) throw new Error('nothing more came');
  return value;
}

/** The next message that is not only a sign of life. */
async function nextRollout(reading: AsyncGenerator<DecodedRead, void>): Promise<DecodedRead> {
  for (;;) {
    const read = await next(reading);
    if (!read.caughtUp) return read;
  }
}

/** One line for each rollout: its position, its end, and the words of its steps. */
function shownBy(read: readonly DecodedRead[]): string[] {
  const lines: string[] = [];
  for (const { rollout, steps, groupDone, caughtUp } of read) {
    if (rollout !== undefined) lines.push(`${rollout.group.number}/${rollout.number} ${rollout.status}:`);
    if (caughtUp) continue;
    const words = steps.map((each) => ` ${wordOf(each)}`).join('');
    lines.push(`${lines.pop() ?? ''}${words}${groupDone ? ' group done' : ''}`);
  }
  return lines;
}
