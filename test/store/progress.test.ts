import fc from 'fast-check';
import { expect, it } from 'vitest';
import { isTerminal } from '../../src/domain/lifecycle.ts';
import { progressOf, type RunTally } from '../../src/domain/progress.ts';
import type { Run, StagePlan } from '../../src/domain/run.ts';
import type { Claim, NewRollout } from '../../src/store/contract/rollout.ts';
import { dose } from '../support/dose.ts';
import { makeStep } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { RolloutScene, tokenOf } from './rollout_scene.ts';
import { SILENT } from './run_scene.ts';
import { statementsOfWarm } from './statement_count.ts';

const SECOND = 1_000_000_000n;

describeStore('progress with rollouts', (on) => {
  const scene = () => new RolloutScene(on.store);
  const planOf = (fields: Partial<StagePlan>) => {
    const none = { stages: 1, groupsPerStage: 0, groupSize: 0, maxTurns: 0, substeps: 0 };
    return { stagePlans: [{ kind: 'TRAIN_STEP' as const, ...none, ...fields }], concurrency: 8 };
  };
  const tallyOf = async (here: RolloutScene, run: Run): Promise<RunTally> =>
    (await here.store.tallyRuns(here.namespace, [run.key])).get(run.key)!;
  /** The current run, with its progress. */
  const look = async (here: RolloutScene, run: Run) => {
    const now = await here.run(run.id);
    return progressOf(now.status, now.plan, await tallyOf(here, now));
  };
  /** A root and this many turns, with durations by the client's clock, or without times. */
  const play = async (here: RolloutScene, claim: Claim, turns: number, seconds?: bigint) => {
    const times = (i: number) => {
      const startTime = BigInt(i) * 100n * SECOND;
      return seconds === undefined || i === 0 ? {} : { startTime, endTime: startTime + seconds * SECOND };
    };
    const { nextStepNumber } = await here.trajectoryOf(claim);
    const steps = Array.from({ length: turns + 1 }, (_, i) => makeStep(nextStepNumber + BigInt(i), times(i)));
    await here.append(claim.trajectory, steps);
  };

  it('M2: 80 rollouts of at most 20 turns: 40 ended at 8, 8 live at 4, 8 in parallel, 30 s per turn: 55 %, 1080 s', async () => {
    const here = scene();
    const plan = planOf({ groupsPerStage: 10, groupSize: 8, maxTurns: 20 });
    const run = await here.makeRun({ status: 'RUNNING', plan });
    const stage = await here.stage(run, { status: 'RUNNING', phase: 'rollout' });
    const eighty = Array.from({ length: 80 }, (_, i) => ({ groupNumber: BigInt(i >> 3), number: BigInt(i & 7) }));
    await here.makeRollouts(stage, eighty);
    expect(await look(here, run)).toMatchObject({ percent: 0, remainingSeconds: (80 * 20 * 30) / 8 });
    const claims = await here.claims({ count: 48 });
    for (const claim of claims.slice(0, 40)) {
      await play(here, claim, 8, 30n);
      await here.complete(claim);
    }
    for (const claim of claims.slice(40)) await play(here, claim, 4);
    const progress = await look(here, run);
    expect(progress).toMatchObject({
      percent: expect.closeTo(55, 9),
      remainingSeconds: expect.closeTo(1080, 9),
      meanTurnSeconds: 30,
      turnsDone: 352n,
      turnsExpected: 640n,
      kinds: [{ rolloutsExpected: 80n, rolloutsCreated: 80n, rolloutsTerminal: 40n }],
      openStages: [
        { phase: 'rollout', rolloutsCreated: 80n, rolloutsLive: 8n, rolloutsTerminal: 40n, turnsDone: 352n },
      ],
    });
  });

  it('M2: turns without times of the client are timed by the database, from the claim to the last turn', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    await here.queue(stage, 2);
    const [timed, empty] = await here.claims({ count: 2 });
    await play(here, timed!, 5);
    await here.fail(empty!);
    await here.complete(timed!);
    const { attempts } = await here.record(timed!.rollout.id);
    const elapsed = (await here.trajectoryOf(timed!)).sealTime! - attempts[0]!.claimTime;
    const { turns } = await tallyOf(here, run);
    expect(turns.count).toBe(5n);
    expect(turns.seconds).toBeGreaterThan(0);
    expect(turns.seconds).toBeLessThanOrEqual(Number(elapsed) / 1e9);
  });

  it('M2: a FAILED stage keeps its done and expected counts as of its end, including live rollouts', async () => {
    const here = scene();
    const plan = planOf({ stages: 2, groupsPerStage: 1, groupSize: 4, maxTurns: 10 });
    const run = await here.makeRun({ status: 'RUNNING', plan });
    const [cut, next] = [await here.stage(run, { status: 'RUNNING' }), await here.stage(run, { number: 1n })];
    await here.queue(cut, 3);
    const [ended, live] = await here.claims({ count: 2 });
    await play(here, ended!, 6, 1n);
    await here.complete(ended!);
    await play(here, live!, 3);
    await here.store.moveStage(here.caller, cut.id, 'fail', SILENT);
    const after = {
      percent: expect.closeTo(((24 * (9 / 24)) / 48) * 100, 9),
      remainingSeconds: (24 * 1) / 8,
      turnsDone: 9n,
      turnsExpected: 24n + 24n,
      kinds: [{ rolloutsExpected: 3n + 4n, rolloutsCreated: 3n, rolloutsTerminal: 1n }],
      openStages: [{ id: next.id, rolloutsExpected: 4n, rolloutsCreated: 0n }],
    };
    expect(await look(here, run)).toMatchObject(after);
    expect((await here.history('STAGE', cut)).at(-1)).toMatchObject({ newStatus: 'FAILED', progressPercent: 37.5 });
    // A stage that is reopened is counted in its current state again.
    await here.store.moveStage(here.caller, cut.id, 'reopen', SILENT);
    await play(here, live!, 2);
    await here.complete(live!);
    await here.store.moveStage(here.caller, cut.id, 'complete', SILENT);
    expect(await look(here, run)).toMatchObject({ turnsDone: 12n, turnsExpected: 12n + 24n });
  });

  it('M2: rollouts cancelled before any attempt are excluded from the mean, also if they are retried later', async () => {
    const here = scene();
    const plan = planOf({ groupsPerStage: 1, groupSize: 4, maxTurns: 10 });
    const run = await here.makeRun({ status: 'RUNNING', plan });
    const stage = await here.stage(run, { status: 'RUNNING' });
    const [, , third, fourth] = await here.queue(stage, 4);
    const [live, released] = await here.claims({ count: 2 });
    await play(here, live!, 2);
    await here.cancel(third!);
    expect(await look(here, run)).toMatchObject({ turnsDone: 2n, turnsExpected: 30n });
    // A rollout that had an attempt is in the mean, even if it was waiting when it was cancelled.
    await play(here, released!, 6);
    await here.release(tokenOf(released!));
    await here.cancel(released!.rollout.id);
    const { terminalRollouts } = (await tallyOf(here, run)).openStages[0]!;
    expect(terminalRollouts).toMatchObject({ count: 2n, tried: 1n });
    await here.complete(live!);
    await here.retry({ id: third!, attempt: 0 });
    expect((await tallyOf(here, run)).openStages[0]!.terminalRollouts).toMatchObject({ count: 2n, tried: 2n });
    await here.cancel(third!);
    await here.cancel(fourth!);
    expect((await tallyOf(here, run)).openStages[0]!.terminalRollouts).toMatchObject({ count: 4n, tried: 2n });
  });

  it('Q1, M2: a retry removes what its rollout had counted, and leaves the time per turn', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    await here.queue(stage, 1);
    const claim = await here.claimOne();
    await play(here, claim, 4, 2n);
    await here.fail(claim);
    const [open] = (await tallyOf(here, run)).openStages;
    expect(open).toMatchObject({ rollouts: 1n, terminalRollouts: { count: 1n, tried: 1n, turns: 4n }, liveTurns: [] });
    await here.retry(tokenOf(claim));
    const after = await tallyOf(here, run);
    expect(after.openStages[0]).toMatchObject({
      rollouts: 1n,
      terminalRollouts: { count: 0n, tried: 0n, turns: 0n },
      liveTurns: [],
    });
    expect(after.turns).toEqual({ count: 4n, seconds: 8 });
    await here.claimOne();
    expect((await tallyOf(here, run)).openStages[0]?.liveTurns).toEqual([0n]);
  });

  it('M2: a rollout that starts at a step of another trajectory counts only its own turns', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    const source = await here.createWith(['root', 'a', 'b', 'c']);
    await here.queue(stage, 1, { startFrom: { trajectoryId: source.id, stepNumber: 2n } });
    const claim = await here.claimOne();
    expect((await tallyOf(here, run)).openStages[0]?.liveTurns).toEqual([0n]);
    await play(here, claim, 1);
    expect((await tallyOf(here, run)).openStages[0]?.liveTurns).toEqual([2n]);
    await here.complete(claim);
    expect((await tallyOf(here, run)).openStages[0]?.terminalRollouts).toEqual({ count: 1n, tried: 1n, turns: 2n });
    // A rollout whose trajectory is deleted has no turns to show.
    await here.queue(stage, 1, { groupNumber: 1n });
    const withoutTrajectory = await here.claimOne();
    await play(here, withoutTrajectory, 3);
    await here.delete(withoutTrajectory.trajectory);
    expect((await tallyOf(here, run)).openStages[0]?.liveTurns).toEqual([0n]);
  });

  it('K-C5: no action of a rollout changes the status of its stage or run', async () => {
    const here = scene();
    const { run, stage } = await here.place();
    await here.queue(stage, 4);
    const [a, b, c] = await here.claims({ count: 3 });
    await here.move(run, 'pause');
    await here.store.moveStage(here.caller, stage.id, 'complete', SILENT);
    await play(here, a!, 2);
    await here.start(a!);
    await here.complete(a!);
    await here.fail(b!);
    await here.release(tokenOf(c!));
    expect((await here.run(run.id)).status).toBe('PAUSED');
    expect((await here.store.getStage(here.namespace, { id: stage.id }))?.status).toBe('COMPLETED');
    expect(await here.history('RUN', run)).toHaveLength(2);
  });

  it('K-C6, C-46: progress takes the same statements for one rollout and for two hundred, and so does a page of runs', async () => {
    const here = scene();
    const few = await here.place();
    await here.queue(few.stage, 1);
    const many = await here.place();
    await here.makeRollouts(
      many.stage,
      Array.from({ length: 200 }, (_, i) => ({ groupNumber: BigInt(i >> 3), number: BigInt(i & 7) })),
    );
    for (const claim of (await here.claims({ stageId: many.stage.id, count: 60 })).slice(20))
      await here.complete(claim);
    const cost = (...runs: readonly Run[]) =>
      statementsOfWarm(on.engine, () =>
        here.store.tallyRuns(
          here.namespace,
          runs.map(({ key }) => key),
        ),
      );
    expect(await cost(few.run)).toBe(4);
    expect(await cost(many.run)).toBe(4);
    expect(await cost(many.run, few.run)).toBe(4);
  });

  it('M2: group counters equal a count over all rows, after any actions in any order', async () => {
    const verbs = ['claim', 'play', 'complete', 'fail', 'cancel', 'release', 'retry', 'make'] as const;
    const does = fc.record({ verb: fc.constantFrom(...verbs), at: fc.nat(5), group: fc.nat(2) });
    await fc.assert(
      fc.asyncProperty(fc.array(does, { minLength: 5, maxLength: 40 }), async (deeds) => {
        const here = scene();
        const { run, stage } = await here.place();
        const held: Claim[] = [];
        let made = 0;
        for (const { verb, at, group } of deeds) {
          const claim = held[at % Math.max(1, held.length)];
          if (verb === 'make') {
            const fields: Partial<NewRollout> = { groupNumber: BigInt(group), number: BigInt(made), maxAttempts: 2 };
            await here.makeRollouts(stage, [fields]);
            made += 1;
          } else if (verb === 'claim') held.push(...(await here.claims({ stageId: stage.id })));
          else if (claim !== undefined) await orRefused(deed(here, verb, claim, at));
        }
        const rollouts = await here.rollouts({ runId: run.id });
        const terminal = rollouts.filter(({ status }) => isTerminal(status));
        const tried = terminal.filter(({ attempt }) => attempt > 0);
        const tally = await tallyOf(here, run);
        const turns = terminal.reduce((sum, rollout) => sum + rollout.turns, 0n);
        const live = rollouts.filter(({ status }) => status === 'INITIALIZING' || status === 'RUNNING');
        expect(tally.openStages[0]).toMatchObject({
          rollouts: BigInt(rollouts.length),
          terminalRollouts: { count: BigInt(terminal.length), tried: BigInt(tried.length), turns },
        });
        const sorted = (all: readonly bigint[]) => [...all].sort((a, b) => Number(a - b));
        expect(sorted(tally.openStages[0]?.liveTurns ?? [])).toEqual(sorted(live.map((rollout) => rollout.turns)));
      }),
      { numRuns: dose(5, 24) },
    );
  });

  const deed = async (
    here: RolloutScene,
    verb: 'play' | 'complete' | 'fail' | 'cancel' | 'release' | 'retry',
    claim: Claim,
    turns: number,
  ): Promise<unknown> => {
    if (verb === 'play') return play(here, claim, turns, 3n);
    if (verb === 'cancel') return here.cancel(claim.rollout.id);
    if (verb === 'complete' || verb === 'fail') return here[verb](claim);
    return here[verb](tokenOf(claim));
  };

  /** Actions come in any order, so many are refused. A refused action must not change any count. */
  const orRefused = async (call: Promise<unknown>) => {
    try {
      await call;
    } catch (error) {
      expect(error).toMatchObject({ name: 'AnabranchError' });
    }
  };
});
