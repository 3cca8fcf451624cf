import { expect, it } from 'vitest';
import { type KindProgress, StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import type { Run } from '../../src/domain/run.ts';
import type { Claim } from '../../src/store/contract/rollout.ts';
import { findRun } from '../../src/stream/find.ts';
import { RolloutScene } from '../store/rollout_scene.ts';
import { statementsOf, statementsOfWarm } from '../store/statement_count.ts';
import { type AppScene, describeApp, frame, step } from './on_app.ts';

const MAKING = {
  configJson: '{"lr":0.1}',
  labels: { model: 'pid' },
  plan: {
    stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: 9, groupsPerStage: 1, groupSize: 1, maxTurns: 1, substeps: 1 }],
  },
  initialStatus: Status.RUNNING,
};

/**
 * The numbers of statements to read runs, and to append to a trajectory of a run: the same for one and for many (K-C6:
 * the predecessors sent one query per run, and one per stage).
 */
describeApp('numbers of statements for runs, and for turns of their rollouts', (on) => {
  async function run({ app, caller, rpc }: AppScene): Promise<Run> {
    const made = await rpc.createRun({ ...MAKING, mainTrajectory: {} });
    return findRun(app, caller, made.run!.id);
  }

  async function stages({ app, caller }: AppScene, runId: string, count: number): Promise<void> {
    const rest = { phase: '', modelUri: '', batch: undefined, totalSubsteps: undefined, metadataJson: '' };
    for (let i = 0; i < count; i += 1) {
      const [kind, status] = i % 2 === 0 ? (['TRAIN_STEP', 'RUNNING'] as const) : (['EVAL', 'PENDING'] as const);
      const stage = { id: app.ids.uuid(), runId, kind, number: BigInt(i), status, ...rest };
      await app.store.getOrCreateStage(caller, stage);
    }
  }

  function list({ rpc }: AppScene, expected: number, pageSize = 0): Promise<number> {
    return statementsOfWarm(on.engine, async () => {
      expect((await rpc.listRuns({ pageSize })).runs).toHaveLength(expected);
    });
  }

  async function kindsOf({ rpc }: AppScene, runId: string): Promise<readonly KindProgress[]> {
    return (await rpc.getRun({ runId, progress: true })).progress?.kinds ?? [];
  }

  it('K-C6: a page of runs with progress takes the same statements for one run without stages and for six with three each', async () => {
    const [few, many] = [on.scene(), on.scene()];
    await run(few);
    for (let i = 0; i < 6; i += 1) await stages(many, (await run(many)).id, 3);
    expect(await list(few, 1)).toBe(await list(many, 6));
    // The page, the counts of its stages, the open ones, the counters of groups, and the live rollouts.
    expect(await list(many, 6)).toBeLessThanOrEqual(5);
  });

  it('K-C6: the progress of a run takes the same statements without stages and with twenty', async () => {
    const scene = on.scene();
    const [none, many] = [await run(scene), await run(scene)];
    await stages(scene, many.id, 20);
    const cost = ({ id: runId }: Run, made: bigint) =>
      statementsOfWarm(on.engine, async () => {
        const kinds = await kindsOf(scene, runId);
        expect(kinds.reduce((sum, kind) => sum + kind.created, 0n)).toBe(made);
      });
    expect(await cost(none, 0n)).toBe(await cost(many, 20n));
    expect(await cost(many, 20n)).toBeLessThanOrEqual(5);
  });

  /** A run with this many rollouts: a third live at their second turn, a third completed. Returns the live ones. */
  async function rollouts(scene: AppScene, count: number): Promise<{ readonly run: Run; readonly live: Claim[] }> {
    const here = new RolloutScene(on.store, scene.caller.namespace);
    const made = await run(scene);
    const stage = await here.stage(made, { status: 'RUNNING' });
    const places = Array.from({ length: count }, (_, i) => ({ groupNumber: BigInt(i % 5), number: BigInt(i) }));
    await here.makeRollouts(stage, places);
    const third = count / 3;
    const claims = await here.claims({ stageId: stage.id, count: 2 * third });
    for (const { trajectory } of claims) await scene.write(trajectory, [step(0n, 'root'), step(1n, 'turn')]);
    for (const claim of claims.slice(third)) await here.complete(claim);
    expect(claims).toHaveLength(2 * third);
    return { run: made, live: claims.slice(0, third) };
  }

  it('K-C6: progress, and a page of runs with it, take the same statements with three rollouts per run and with fifteen', async () => {
    const [few, many] = [on.scene(), on.scene()];
    const [small, large] = [await rollouts(few, 3), await rollouts(many, 15)];
    for (let i = 0; i < 3; i += 1) await rollouts(many, 15);
    const progress = (scene: AppScene, { run: { id: runId }, live }: typeof small) =>
      statementsOfWarm(on.engine, async () => {
        const kinds = await kindsOf(scene, runId);
        const [kind] = kinds.filter(({ rolloutsCreated }) => rolloutsCreated > 0n);
        expect(kind?.rolloutsCreated).toBe(3n * BigInt(live.length));
        expect(kind?.rolloutsTerminal).toBe(BigInt(live.length));
      });
    expect(await progress(few, small)).toBe(await progress(many, large));
    expect(await progress(many, large)).toBeLessThanOrEqual(5);
    expect(await list(few, 1)).toBe(await list(many, 4));
    expect(await list(many, 4)).toBeLessThanOrEqual(5);
  });

  it("K-C6: a worker's turn takes the same statements beside two other rollouts and beside fourteen, five of them live", async () => {
    const scene = on.scene();
    const turn = async ({ live: [claim] }: { readonly live: readonly Claim[] }) => {
      const { writerEpoch } = await scene.now(claim!.trajectory);
      const session = await scene.open(claim!.trajectory, { takeOverEpoch: writerEpoch });
      const events = session.events()[Symbol.asyncIterator]();
      const append = async (stepNumber: bigint) => {
        session.push(frame([step(stepNumber, 'turn')]));
        for (;;) {
          const { value, done } = await events.next();
          if (done === true) throw new Error('the stream ended without an ack');
          if (value.kind === 'ack' && value.nextStepNumber === stepNumber + 1n) return;
        }
      };
      await append(2n);
      const count = await statementsOf(on.engine, () => append(3n));
      session.end();
      return count;
    };
    const few = await turn(await rollouts(scene, 3));
    expect(await turn(await rollouts(scene, 15))).toBe(few);
    expect(few).toBeLessThanOrEqual(on.engine === 'postgres' ? 1 : 5);
  });

  /** A root, and branches of it or of each other. Returns the root and the last branch. */
  async function branches(scene: AppScene, count: number, deep: boolean): Promise<{ root: Run; last: Run }> {
    const root = await run(scene);
    await scene.write({ id: root.mainTrajectory!.id }, [step(0n, 'root')]);
    let last = root.id;
    for (let i = 0; i < count; i += 1) {
      const { plan, labels, initialStatus } = MAKING;
      const runId = deep ? last : root.id;
      const made = await scene.rpc.branchRun({ plan, labels, initialStatus, runId, stepNumber: 0n });
      last = made.run!.id;
    }
    return { root, last: await findRun(scene.app, scene.caller, last) };
  }

  const tree = ({ rpc }: AppScene, { id: runId }: Run, runs: number, pageSize = 200) =>
    statementsOfWarm(on.engine, async () => {
      const page = await rpc.getRunTree({ runId, pageSize });
      expect(page.runs).toHaveLength(runs);
    });

  it('K-C6: a tree of runs takes the same statements for a root alone and for nested branches, twenty-five deep', async () => {
    const scene = on.scene();
    const alone = await run(scene);
    const { last } = await branches(scene, 25, true);
    expect(await tree(scene, alone, 1)).toBe(1);
    expect(await tree(scene, last, 26)).toBe(1);
  });

  it('K-C6: a page of two hundred and sixty branches takes the statements of a page of one run, plus one per 256 rows, and so does a tree', async () => {
    const [few, many] = [on.scene(), on.scene()];
    await run(few);
    const { root, last } = await branches(many, 260, false);
    expect(await list(many, 50)).toBe(await list(few, 1));
    expect(await list(many, 261, 1000)).toBe((await list(few, 1, 1000)) + 1);
    expect(await tree(many, last, 200)).toBe(await tree(few, await run(few), 1));
    expect(await tree(many, root, 261, 1000)).toBe((await tree(few, await run(few), 1, 1000)) + 1);
  });
});
