import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { StageKind } from '../../gen/es/anabranch/v1/run_pb.js';
import { Status } from '../../gen/es/anabranch/v1/status_pb.js';
import { IfExists } from '../../gen/es/anabranch/v1/trajectory_pb.js';
import { reasonOf } from '../../src/client/index.ts';
import { ENGINES } from '../support/database.ts';
import { answersOf, errorsOf, type Instances, openInstances } from './instances.ts';

const RACERS = 20;
const upTo = (count: number) => Array.from({ length: count }, (_, i) => BigInt(i + 1));
const byValue = (a: bigint, b: bigint) => (a < b ? -1 : a > b ? 1 : 0);

describe.each(ENGINES)('twenty concurrent callers, on %s', (engine) => {
  let instances: Instances;
  beforeAll(async () => {
    instances = await openInstances(engine);
  });
  afterAll(() => instances?.[Symbol.asyncDispose]());

  async function experiment(): Promise<{ experimentId: string }> {
    const made = await instances.clients[0]!.runs.createExperiment({ name: randomUUID() });
    return { experimentId: made.experiment!.id };
  }

  async function newRun(fields: object = {}): Promise<string> {
    const { run } = await instances.clients[0]!.runs.createRun({ ...(await experiment()), ...fields });
    return run!.id;
  }

  /** The numbers and names of the runs of an experiment, from the table. */
  async function numbered({ experimentId }: { experimentId: string }): Promise<{ numbers: bigint[]; names: string[] }> {
    const rows = await instances.sql.rows(
      `select number, name from runs where experiment = (select key from experiments where id = '${experimentId}') order by number`,
    );
    return { numbers: rows.map(({ number }) => BigInt(String(number))), names: rows.map(({ name }) => String(name)) };
  }

  async function count(table: string, where: string): Promise<number> {
    const [row] = await instances.sql.rows(`select count(*) as n from ${table} where ${where}`);
    return Number(row?.n);
  }

  it('the first runs of a database, without an experiment: one `default` is created, and numbers start at 1 without gaps', async () => {
    const outcomes = await instances.race(RACERS, (client) => client.runs.createRun({}));
    expect(errorsOf(outcomes)).toEqual([]);
    const runs = answersOf(outcomes).map(({ run }) => run!);
    expect(new Set(runs.map(({ experimentId }) => experimentId)).size).toBe(1);
    expect(runs.map(({ number }) => number).sort(byValue)).toEqual(upTo(RACERS));
    expect(await count('experiments', `name = 'default'`)).toBe(1);
    const { experiment: found } = await instances.clients.at(-1)!.runs.getExperiment({ name: 'default' });
    expect(found).toMatchObject({ id: runs[0]!.experimentId, runCount: 20n });
  });

  it('runs without a name get twenty numbers, and names with these numbers', async () => {
    const place = await experiment();
    const outcomes = await instances.race(RACERS, (client) => client.runs.createRun({ ...place, mainTrajectory: {} }));
    for (const { run } of answersOf(outcomes)) expect(run!.name).toBe(`run-${run!.number}`);
    expect(await numbered(place)).toEqual({ numbers: upTo(20), names: upTo(20).map((number) => `run-${number}`) });
  });

  it('runs of one name: one is created, nineteen are refused, and no number is lost', async () => {
    const place = await experiment();
    const outcomes = await instances.race(RACERS, (client) => client.runs.createRun({ ...place, name: 'mine' }));
    expect(answersOf(outcomes)).toHaveLength(1);
    expect(errorsOf(outcomes).map(reasonOf)).toEqual(Array(19).fill('RUN_EXISTS'));
    await instances.clients[0]!.runs.createRun(place);
    expect(await numbered(place)).toEqual({ numbers: [1n, 2n], names: ['mine', 'run-2'] });
  });

  it('M4: runs of one name with RETURN_EXISTING: all get the same run, which one call created, with one main trajectory', async () => {
    const place = await experiment();
    const request = { ...place, name: 'mine', ifExists: IfExists.RETURN_EXISTING, configJson: '{"lr":0.10}' };
    const outcomes = await instances.race(RACERS, (client) =>
      client.runs.createRun({ ...request, mainTrajectory: {} }),
    );
    expect(errorsOf(outcomes)).toEqual([]);
    const answers = answersOf(outcomes);
    expect(new Set(answers.map(({ run }) => run!.id)).size).toBe(1);
    expect(new Set(answers.map(({ mainTrajectory }) => mainTrajectory!.id)).size).toBe(1);
    expect(answers.filter(({ created }) => created)).toHaveLength(1);
    expect((await numbered(place)).numbers).toEqual([1n]);
    const made = `run = (select key from runs where id = '${answers[0]!.run!.id}')`;
    expect(await count('trajectories', made)).toBe(1);
    expect(await count('status_changes', `entity_kind = 'RUN' and ${made.replace('run =', 'entity =')}`)).toBe(1);
  });

  it('ID1: requests with one request id create one run', async () => {
    const request = { ...(await experiment()), requestId: randomUUID() };
    const outcomes = await instances.race(RACERS, (client) => client.runs.createRun(request));
    expect(errorsOf(outcomes)).toEqual([]);
    expect(new Set(answersOf(outcomes).map(({ run }) => run!.id)).size).toBe(1);
    expect((await numbered(request)).numbers).toEqual([1n]);
  });

  it('experiments of one name: one is created', async () => {
    const name = randomUUID();
    const outcomes = await instances.race(RACERS, (client) => client.runs.createExperiment({ name }));
    expect(answersOf(outcomes)).toHaveLength(1);
    expect(errorsOf(outcomes).map(reasonOf)).toEqual(Array(19).fill('EXPERIMENT_EXISTS'));
    expect(await count('experiments', `name = '${name}'`)).toBe(1);
  });

  it('stages of one kind and number: one row, one first StatusChange, and one call that created it', async () => {
    const runId = await newRun();
    const request = { runId, kind: StageKind.TRAIN_STEP, number: 7n, initialStatus: Status.RUNNING };
    const outcomes = await instances.race(RACERS, (client, i) =>
      client.runs.getOrCreateStage({ ...request, batch: BigInt(i) }),
    );
    expect(errorsOf(outcomes)).toEqual([]);
    const answers = answersOf(outcomes);
    const id = answers[0]!.stage!.id;
    for (const { stage } of answers) expect(stage).toEqual(answers[0]!.stage);
    expect(answers.filter(({ created }) => created)).toHaveLength(1);
    const key = `(select key from stages where id = '${id}')`;
    expect(await count('stages', `run = (select key from runs where id = '${runId}')`)).toBe(1);
    expect(await count('status_changes', `entity_kind = 'STAGE' and entity = ${key}`)).toBe(1);
  });

  it('stages of twenty numbers: twenty rows', async () => {
    const runId = await newRun();
    const outcomes = await instances.race(RACERS, (client, i) =>
      client.runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: BigInt(i) }),
    );
    expect(answersOf(outcomes).every(({ created }) => created)).toBe(true);
    const { stages } = await instances.clients.at(-1)!.runs.listStages({ runId });
    expect(stages.map(({ number }) => number).sort(byValue)).toEqual(upTo(20).map((number) => number - 1n));
  });

  it('M4, B1: branches of one run get numbers of their own in its experiment, and the run as their parent', async () => {
    const place = await experiment();
    const { run } = await instances.clients[0]!.runs.createRun({ ...place, mainTrajectory: { root: { reward: 1 } } });
    const outcomes = await instances.race(RACERS, (client) =>
      client.runs.branchRun({ runId: run!.id, stepNumber: 0n }),
    );
    expect(errorsOf(outcomes)).toEqual([]);
    expect(new Set(answersOf(outcomes).map(({ run: branch }) => branch!.parentId))).toEqual(new Set([run!.id]));
    expect((await numbered(place)).numbers).toEqual(upTo(21));
    const { runs } = await instances.clients.at(-1)!.runs.getRunTree({ runId: run!.id });
    expect(runs).toHaveLength(21);
  });

  it('L5: verbs with one result all succeed, with one StatusChange; of verbs with twenty results one succeeds', async () => {
    const runId = await newRun({ initialStatus: Status.RUNNING });
    const same = await instances.race(RACERS, (client) => client.runs.completeRun({ runId, resultJson: '{"a":1}' }));
    expect(errorsOf(same)).toEqual([]);
    expect(new Set(answersOf(same).map(({ run }) => run!.revision)).size).toBe(1);
    const { changes } = await instances.clients[0]!.runs.listStatusChanges({ runId, ascending: true });
    expect(changes.map(({ ordinal, newStatus }) => [ordinal, newStatus])).toEqual([
      [0n, Status.RUNNING],
      [1n, Status.COMPLETED],
    ]);
    const other = await newRun({ initialStatus: Status.RUNNING });
    const each = await instances.race(RACERS, (client, i) =>
      client.runs.completeRun({ runId: other, resultJson: `${i}` }),
    );
    expect(answersOf(each)).toHaveLength(1);
    expect(errorsOf(each).map(reasonOf)).toEqual(Array(19).fill('RESULT_CONFLICT'));
    const { run } = await instances.clients.at(-1)!.runs.getRun({ runId: other });
    expect(run!.resultJson).toBe(answersOf(each)[0]!.run!.resultJson);
  });

  it('M1: the same points in opposite orders, of new series: each series and point is stored once, without deadlock', async () => {
    const runId = await newRun();
    const names = Array.from({ length: 40 }, (_, i) => `loss-${i}`);
    const outcomes = await instances.race(RACERS, (client, i) => {
      const points = names.map((key) => ({ key, metricStep: 1n, value: i }));
      return client.runs.logMetrics({ runId, points: i % 2 === 0 ? points : points.reverse() });
    });
    expect(errorsOf(outcomes)).toEqual([]);
    const key = `run = (select key from runs where id = '${runId}')`;
    expect(await count('metric_series', key)).toBe(40);
    expect(await count('metric_points', `series in (select key from metric_series where ${key})`)).toBe(40);
    // A call is one transaction, so one racer was the last for all rows.
    const [row] = await instances.sql.rows(
      `select count(distinct value) as n from metric_points where series in (select key from metric_series where ${key})`,
    );
    expect(Number(row?.n)).toBe(1);
  });

  it('FM7: metrics that twenty callers merge into one run, and one stage, are all stored', async () => {
    const runId = await newRun();
    const { stage } = await instances.clients[0]!.runs.getOrCreateStage({ runId, kind: StageKind.EVAL, number: 0n });
    const stageId = stage!.id;
    const updateMask = { paths: ['metrics'] };
    const outcomes = await instances.race(RACERS, async (client, i) => {
      await client.runs.updateRun({ runId, updateMask, metrics: { [`m${i}`]: i } });
      await client.runs.updateStage({ stageId, updateMask, metrics: { [`m${i}`]: i } });
    });
    expect(errorsOf(outcomes)).toEqual([]);
    const all = Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`m${i}`, i]));
    const after = await instances.clients.at(-1)!.runs.getRun({ runId });
    expect(after.run).toMatchObject({ metrics: all, revision: expect.anything() });
    expect((await instances.clients.at(-1)!.runs.getStage({ stageId })).stage!.metrics).toEqual(all);
  });

  /** Uses the servers in turn: each event goes through another server than the one before. */
  const instance = (i: number) => instances.clients[i % instances.clients.length]!.runs;

  it('L5: a history is in order of occurrence, in both reading directions and through any server', async () => {
    const { run } = await instance(0).createRun({ initialStatus: Status.RUNNING });
    const runId = run!.id;
    const expected = ['made'];
    for (let i = 0; i < 12; i += 1) {
      const message = `move ${i}`;
      await (i % 2 === 0 ? instance(i).pauseRun({ runId, message }) : instance(i).resumeRun({ runId, message }));
      expected.push(message);
    }
    const { changes } = await instance(1).listStatusChanges({ runId, ascending: true, pageSize: 1000 });
    expect(changes.map(({ message }) => message || 'made')).toEqual(expected);
    expect(changes.map(({ ordinal }) => ordinal)).toEqual(expected.map((_, i) => BigInt(i)));
    const newest = await instance(0).listStatusChanges({ runId });
    expect(newest.changes).toEqual([...changes].reverse());
  });

  it('runs are listed newest first, stages in creation order, whatever the page size', async () => {
    const made = await instance(0).createExperiment({ name: randomUUID() });
    const experimentId = made.experiment!.id;
    const runs: string[] = [];
    for (let i = 0; i < 12; i += 1) runs.push((await instance(i).createRun({ experimentId })).run!.id);
    const listed: string[] = [];
    for (let pageToken = '', i = 0; i === 0 || pageToken !== ''; i += 1) {
      const page = await instance(i).listRuns({ experimentId, pageSize: 5, pageToken });
      listed.push(...page.runs.map(({ run }) => run!.id));
      pageToken = page.nextPageToken;
    }
    expect(listed).toEqual([...runs].reverse());
    const runId = runs[0]!;
    const stages: string[] = [];
    for (let i = 0; i < 9; i += 1) {
      const kind = [StageKind.TRAIN_STEP, StageKind.EVAL, StageKind.BASELINE][i % 3]!;
      stages.push((await instance(i).getOrCreateStage({ runId, kind, number: BigInt(9 - i) })).stage!.id);
    }
    const idsOf = async (descending: boolean) =>
      (await instance(1).listStages({ runId, descending })).stages.map(({ id }) => id);
    expect(await idsOf(false)).toEqual(stages);
    expect(await idsOf(true)).toEqual([...stages].reverse());
  });
});
