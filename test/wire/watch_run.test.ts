import { ConnectError } from '@connectrpc/connect';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type Progress, type Run, type Stage, StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import type { WatchResponse } from '../../gen/es/anabranch/v1/server_service_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { View } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { type AnabranchClient, connectClient, reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { dose } from '../support/dose.ts';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.ts';
import { type Instances, openInstances } from './instances.ts';

/** `FC_RUNS=200` runs more cases. A failure prints its seed, and `FC_SEED` repeats it (the choices, not the timing). */
const RUNS = Number(process.env.FC_RUNS ?? dose(3, 12));
const WATCHERS = 2;
/** Much longer than a watcher waits for a change; after that it fails with a list of what is missing. */
const TOLD_WITHIN_MS = 30_000;

type Operation =
  | { readonly kind: 'stage'; readonly of: StageKind; readonly number: number; readonly status: Status }
  | { readonly kind: 'stage verb'; readonly at: number; readonly verb: (typeof VERBS)[number] }
  | { readonly kind: 'substeps'; readonly at: number; readonly substeps: number }
  | { readonly kind: 'run verb'; readonly verb: 'pause' | 'resume' }
  | { readonly kind: 'phase'; readonly phase: string }
  | { readonly kind: 'plan'; readonly stages: number }
  | { readonly kind: 'step' };

const VERBS = ['start', 'complete', 'fail', 'cancel', 'reopen', 'close'] as const;

const operation: fc.Arbitrary<Operation> = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('stage' as const),
      of: fc.constantFrom(StageKind.TRAIN_STEP, StageKind.EVAL),
      number: fc.nat(4),
      status: fc.constantFrom(Status.PENDING, Status.RUNNING),
    }),
  },
  {
    weight: 5,
    arbitrary: fc.record({ kind: fc.constant('stage verb' as const), at: fc.nat(9), verb: fc.constantFrom(...VERBS) }),
  },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant('substeps' as const), at: fc.nat(9), substeps: fc.nat(9) }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('run verb' as const), verb: fc.constantFrom('pause', 'resume') }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('phase' as const), phase: fc.constantFrom('a', 'b', 'c') }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('plan' as const), stages: fc.nat(9) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('step' as const) }) },
);

/**
 * After this many messages of a call its connection is cut, or the watcher cancels; then it calls again, through this
 * server.
 */
interface Cut {
  readonly messages: number;
  readonly how: 'leave' | 'cut';
  readonly instance: number;
}

const watching = fc.record({
  allStages: fc.boolean(),
  cuts: fc.array(
    fc.record({ messages: fc.nat(3), how: fc.constantFrom('leave', 'cut'), instance: fc.nat(1) }) as fc.Arbitrary<Cut>,
    { minLength: 1, maxLength: 6 },
  ),
});

describe.each(ENGINES)('a watch of a run, on %s', (engine) => {
  let instances: Instances;
  /** Each watcher has a proxy of its own to each server, so that a cut affects no other watcher. */
  let ways: { readonly proxy: TcpProxy; readonly client: AnabranchClient }[][];
  beforeAll(async () => {
    instances = await openInstances(engine);
    const way = async (server: { host: string; port: number }) => {
      const proxy = await startTcpProxy(server);
      return { proxy, client: connectClient({ address: proxy.url }) };
    };
    ways = await Promise.all(Array.from({ length: WATCHERS }, () => Promise.all(instances.servers.map(way))));
  });
  afterAll(async () => {
    for (const { proxy, client } of ways?.flat() ?? []) {
      client.close();
      await proxy.close();
    }
    await instances?.[Symbol.asyncDispose]();
  });

  it.each([
    ['ends with the run, and then has', true],
    ['continues, and arrives at', false],
  ])(
    'M5: a watcher cut off at random points %s the state of the tables, whichever servers it used',
    async (_how, untilTerminal) => {
      await fc.assert(
        fc.asyncProperty(
          fc.array(fc.array(operation, { minLength: 4, maxLength: 12 }), { minLength: 2, maxLength: 3 }),
          fc.array(watching, { minLength: WATCHERS, maxLength: WATCHERS }),
          async (writers, watchers) => {
            const { run } = await instances.clients[0]!.runs.createRun({
              initialStatus: Status.RUNNING,
              mainTrajectory: {},
              plan: { concurrency: 2, stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: 5, substeps: 9 }] },
            });
            const runId = run!.id;
            const written = Promise.withResolvers<Tables>();
            const told = watchers.map(({ allStages, cuts }, i) =>
              watch({ runId, allStages, untilTerminal, cuts, ways: ways[i]!, written: written.promise }),
            );
            // A failed watcher is reported below, after the writers have ended.
            for (const each of told) each.catch(() => undefined);
            await Promise.all(writers.map((operations, i) => write(runId, operations, i)));
            if (untilTerminal) await instances.clients.at(-1)!.runs.failRun({ runId, message: 'over' });
            written.resolve(await readTables(instances.clients[0]!, runId));
            for (const [i, picture] of (await Promise.all(told)).entries())
              expectPicture(picture, await written.promise, watchers[i]!.allStages);
          },
        ),
        { numRuns: RUNS },
      );
    },
  );

  async function write(runId: string, operations: readonly Operation[], writer: number): Promise<void> {
    for (const [i, each] of operations.entries()) {
      const { runs, trajectories } = instances.clients[(writer + i) % instances.clients.length]!;
      try {
        await perform(runs, trajectories, runId, each);
      } catch (error) {
        // Refused verbs change nothing; two writers of one trajectory may conflict.
        const refused = ['ILLEGAL_TRANSITION', 'RESULT_CONFLICT', 'STEP_GAP', 'STEP_CONFLICT'];
        if (!refused.includes(reasonOf(error) ?? '')) throw error;
      }
    }
  }
});

async function perform(
  runs: AnabranchClient['runs'],
  trajectories: AnabranchClient['trajectories'],
  runId: string,
  operation: Operation,
): Promise<void> {
  if (operation.kind === 'stage') {
    const { of: kind, number, status: initialStatus } = operation;
    await runs.getOrCreateStage({ runId, kind, number: BigInt(number), initialStatus });
  } else if (operation.kind === 'stage verb' || operation.kind === 'substeps') {
    const { stages } = await runs.listStages({ runId });
    const stageId = stages[operation.at % stages.length]?.id;
    if (stageId === undefined) return;
    if (operation.kind === 'substeps') {
      const fields = { completedSubsteps: BigInt(operation.substeps), metrics: { loss: operation.substeps / 7 } };
      await runs.updateStage({ stageId, updateMask: { paths: ['completed_substeps', 'metrics'] }, ...fields });
    } else await stageVerbs(runs)[operation.verb]({ stageId, phase: operation.verb });
  } else if (operation.kind === 'run verb') {
    await (operation.verb === 'pause' ? runs.pauseRun({ runId }) : runs.resumeRun({ runId }));
  } else if (operation.kind === 'phase') {
    await runs.updateRun({ runId, updateMask: { paths: ['phase'] }, phase: operation.phase });
  } else if (operation.kind === 'plan') {
    const plan = { stagePlans: [{ kind: StageKind.TRAIN_STEP, stages: operation.stages, substeps: 3 }] };
    await runs.updateRun({ runId, updateMask: { paths: ['plan'] }, plan });
  } else {
    const { run } = await runs.getRun({ runId });
    const step = { stepNumber: run!.nextStepNumber!, reward: Math.random() };
    await trajectories.appendStep({ trajectoryId: run!.mainTrajectoryId, step });
  }
}

function stageVerbs(runs: AnabranchClient['runs']) {
  return {
    start: runs.startStage,
    complete: runs.completeStage,
    fail: runs.failStage,
    cancel: runs.cancelStage,
    reopen: runs.reopenStage,
    close: ({ stageId }: { readonly stageId: string }) => runs.closeQueue({ stageId }),
  };
}

/** The rows as unary calls return them, and the progress. */
interface Tables {
  readonly run: Run;
  readonly stages: readonly Stage[];
  readonly progress: Progress;
}

async function readTables({ runs }: AnabranchClient, runId: string): Promise<Tables> {
  const { run, progress } = await runs.getRun({ runId, view: View.BASIC, progress: true });
  const { stages } = await runs.listStages({ runId, pageSize: 1000 });
  return { run: run!, stages, progress: progress! };
}

/** The state that one call has delivered. It starts with a snapshot, so nothing of an earlier call is needed. */
class Picture {
  run: Run | undefined;
  progress: Progress | undefined;
  readonly stages = new Map<string, Stage>();
  caughtUp = false;
}

interface Watching {
  readonly runId: string;
  readonly allStages: boolean;
  readonly untilTerminal: boolean;
  readonly cuts: readonly Cut[];
  readonly ways: readonly { readonly proxy: TcpProxy; readonly client: AnabranchClient }[];
  /** Resolves once nothing changes any more. */
  readonly written: Promise<Tables>;
}

/**
 * Watches, is cut off as often as configured, and then stays connected until the call ends by itself, or the state
 * equals that of the tables.
 */
async function watch({ runId, allStages, untilTerminal, cuts, ways, written }: Watching): Promise<Picture> {
  let final: Tables | undefined;
  const settled = written.then((tables) => {
    final = tables;
  });
  for (const cut of [...cuts, undefined]) {
    const { proxy, client } = ways[(cut?.instance ?? 0) % ways.length]!;
    const leaving = new AbortController();
    const lose = () => (cut?.how === 'leave' ? leaving.abort() : proxy.cut());
    const picture = new Picture();
    let taken = 0;
    try {
      const signal = AbortSignal.any([leaving.signal, AbortSignal.timeout(TOLD_WITHIN_MS)]);
      const call = client.server.watch({ subjects: { it: { run: { runId, allStages, untilTerminal } } } }, { signal });
      const messages = call[Symbol.asyncIterator]();
      for (let next = messages.next(); ; ) {
        if (cut !== undefined && taken >= cut.messages) lose();
        // Waits for a message, or for the end of all changes, after which the state may be complete already.
        const received = final === undefined ? await Promise.race([next, settled]) : await next;
        if (received?.done === true) return picture;
        if (received !== undefined) {
          taken += 1;
          paint(picture, received.value);
          next = messages.next();
        }
        if (untilTerminal || final === undefined || !matches(picture, final, allStages)) continue;
        next.catch(() => undefined);
        leaving.abort();
        return picture;
      }
    } catch (error) {
      if (cut !== undefined && taken >= cut.messages && error instanceof ConnectError) continue;
      if (final !== undefined) expectPicture(picture, final, allStages);
      throw error;
    }
  }
  throw new Error('the last call has neither ended nor reached the final state');
}

function paint(picture: Picture, { run: changes, caughtUp }: WatchResponse): void {
  // A sign of life.
  if (changes === undefined) return;
  const { run, stages, progress } = changes;
  // A snapshot is complete at its end; from then on every message says so.
  if (picture.caughtUp) expect(caughtUp).toBe(true);
  if (run !== undefined) {
    expect(run.revision >= (picture.run?.revision ?? 0n)).toBe(true);
    picture.run = run;
  }
  for (const stage of stages) {
    expect(stage.revision >= (picture.stages.get(stage.id)?.revision ?? 0n)).toBe(true);
    picture.stages.set(stage.id, stage);
  }
  picture.progress = progress ?? picture.progress;
  picture.caughtUp = caughtUp;
  if (caughtUp) expect([picture.run, picture.progress]).not.toContain(undefined);
}

function matches(picture: Picture, tables: Tables, allStages: boolean): boolean {
  try {
    expectPicture(picture, tables, allStages);
    return true;
  } catch {
    return false;
  }
}

/**
 * A watcher of open stages may also know some that have ended since. It need not know those that ended before its call.
 */
function expectPicture(picture: Picture, { run, stages, progress }: Tables, allStages: boolean): void {
  const ended = ({ status }: Stage) => [Status.COMPLETED, Status.FAILED, Status.CANCELLED].includes(status);
  const expected = stages.filter((stage) => allStages || !ended(stage) || picture.stages.has(stage.id));
  const byId = (a: Stage, b: Stage) => (a.id < b.id ? -1 : 1);
  expect(picture.caughtUp).toBe(true);
  expect([...picture.stages.values()].sort(byId)).toEqual([...expected].sort(byId));
  expect(picture.run).toEqual(run);
  expect(picture.progress).toEqual(progress);
}
