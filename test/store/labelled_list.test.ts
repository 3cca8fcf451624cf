import { DatabaseSync } from 'node:sqlite';
import { expect, it } from 'vitest';
import { LIMITS } from '../../src/domain/limits.ts';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { StepFilter, StepSort } from '../../src/store/contract/step.ts';
import { addAggregates } from '../../src/store/sqlite/connection.ts';
import { makeStep, newState, smallRef } from '../support/steps.ts';
import { describeStore } from './on_store.ts';
import { plansOf } from './postgres_plans.ts';
import type { Scene } from './scene.ts';
import { sqlitePath } from './sql.ts';
import { sqliteTextsOf } from './statement_count.ts';

/** Steps of a row, also when it is merged. */
const ROW = 200;
/** A step whose label no other step has. */
const WANTED = 403;

const ORDERS: readonly StepSort[] = [
  { by: 'TIME', descending: true },
  { by: 'TIME', descending: false },
  { by: 'NUMBER', descending: true },
];

describeStore('lists of steps by labels that few steps have', (on) => {
  const state = newState('state');
  const labels = (number: number) => {
    return new Map([
      ['zone', 'checkpoint'],
      ['step', `${number}`],
    ]);
  };
  const step = (number: number) =>
    makeStep(BigInt(number), {
      labels: labels(number),
      states: [smallRef(state, 'checkpoint'), ...(number === WANTED ? [smallRef(state, 'rare')] : [])],
    });

  /** Makes a trajectory of merged rows and one row that is not. */
  async function make(scene: Scene, rows: number): Promise<Trajectory> {
    const made = await scene.create({ taskId: `${rows}` });
    for (let at = 0; at < rows * ROW; at += ROW) {
      const steps = Array.from({ length: ROW }, (_, i) => step(at + i));
      await scene.append(made, steps);
    }
    for (let left = [{ ref: made.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    await scene.append(made, [step(rows * ROW)]);
    return made;
  }

  async function list(scene: Scene, where: StepFilter, order: StepSort): Promise<number[]> {
    const page = { limit: 1, after: undefined, maxBytes: 1e6 };
    const { steps } = await scene.store.listSteps(scene.namespace, where, order, page, 'FULL');
    return steps.map((each) => Number(each.step.stepNumber));
  }

  async function filtersOf(scene: Scene, made: Trajectory): Promise<StepFilter[]> {
    const lineage = { tree: made.ref.tree, lineage: await scene.lineage(made) };
    return [{ of: lineage }, { of: { taskId: made.taskId! }, inherited: true }];
  }

  it('RD4: look only into rows that the index has for all labels and states, and into rows that it lacks', async () => {
    const scene = on.scene();
    const made = await make(scene, 5);
    // To read the names of another merged row fails.
    await on.sql.rows(`update segments set labels = '[["', state_names = '[["'
      where trajectory = ${made.ref.key} and body_bytes is not null
        and (first_step_number > ${WANTED} or next_step_number <= ${WANTED})`);
    for (const where of await filtersOf(scene, made)) {
      for (const order of ORDERS) {
        const find = (filter: Partial<StepFilter>) => list(scene, { ...where, ...filter }, order);
        expect(await find({ labels: labels(WANTED) })).toEqual([WANTED]);
        expect(await find({ labels: labels(WANTED), anyOfStates: ['checkpoint', 'none'] })).toEqual([WANTED]);
        expect(await find({ labels: labels(WANTED), hasState: 'rare', anyOfStates: ['checkpoint'] })).toEqual([WANTED]);
        expect(await find({ labels: new Map([['zone', 'checkpoint']]), anyOfStates: ['rare'] })).toEqual([WANTED]);
        expect(await find({ anyOfStates: ['rare', 'none'], labels: labels(WANTED) })).toEqual([WANTED]);
        expect(await find({ labels: labels(WANTED), anyOfStates: ['none'] })).toEqual([]);
        expect(await find({ labels: new Map([['zone', '"checkpoint"']]) })).toEqual([]);
        expect(await find({ anyOfStates: ['["zone","checkpoint"]'] })).toEqual([]);
        expect(await find({ labels: labels(5 * ROW) })).toEqual([5 * ROW]);
      }
    }
  });

  it('RD4: find the longest labels and names, of characters that JSON escapes', async () => {
    const scene = on.scene();
    // Differs all along, so that no database compresses it.
    const text = (length: number) =>
      Array.from({ length }, (_, i) => String.fromCharCode(1 + ((i * i * 7 + i) % 31))).join('');
    const [key, value] = [text(LIMITS.labelKeyBytes), text(LIMITS.labelValueBytes)];
    const name = text(LIMITS.stateNameBytes);
    const made = await scene.create({ taskId: 'long' });
    const steps = [makeStep(0n), makeStep(1n, { labels: new Map([[key, value]]), states: [smallRef(state, name)] })];
    for (const each of steps) await scene.append(made, [each]);
    for (let left = [{ ref: made.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    const of = { taskId: 'long' };
    expect(await list(scene, { of, labels: new Map([[key, value]]), hasState: name }, ORDERS[0]!)).toEqual([1]);
    expect(await list(scene, { of, labels: new Map([[key, value.slice(1)]]) }, ORDERS[0]!)).toEqual([]);
  });

  it('RD4: read as much of a long trajectory as of a short one, however many steps have the other labels', async () => {
    const scene = on.scene();
    const [short, long] = [await make(scene, 25), await make(scene, 60)];
    const of = await Promise.all([short, long].map((each) => filtersOf(scene, each)));
    for (const order of ORDERS) {
      for (const i of [0, 1]) {
        const works = of.map((filters) => () => {
          return list(scene, { ...filters[i]!, labels: labels(WANTED), anyOfStates: ['checkpoint'] }, order);
        });
        for (const work of works) expect(await work()).toEqual([WANTED]);
        if (on.engine === 'postgres') {
          const counts: number[] = [];
          for (const work of works) {
            const read = (await plansOf(on.database, work)).flat().filter(({ table }) => table !== undefined);
            counts.push(read.reduce((sum, { rows }) => sum + rows, 0));
          }
          // Some statements also pass over the other trajectories of the namespace.
          expect(counts[1]).toBeLessThanOrEqual(counts[0]! + 2);
        } else {
          const texts = (await sqliteTextsOf(works[1]!)).filter((text) => text.includes('segment_names'));
          expect(texts.length).toBeGreaterThan(0);
          const planner = new DatabaseSync(sqlitePath(on.database));
          addAggregates(planner);
          for (const text of texts) {
            const plan = planner.prepare(`explain query plan ${text}`).all();
            const details = plan.map(({ detail }) => String(detail)).filter((detail) => /^\w+ [ni] /.test(detail));
            expect(details).toHaveLength(5);
            for (const each of details)
              expect(each).toMatch(/^SEARCH . USING PRIMARY KEY \(tree=\? AND trajectory=\? AND name=\?/);
          }
          planner.close();
        }
      }
    }
  });

  it.runIf(on.engine === 'postgres')(
    'RD4: look up frequent names by whole keys, also in tables without statistics',
    async () => {
      const scene = on.scene();
      const rows = 30;
      const made = await make(scene, rows);
      for (const where of await filtersOf(scene, made)) {
        const filter = { ...where, labels: new Map([['zone', 'checkpoint']]), anyOfStates: ['checkpoint'] };
        const plans = await plansOf(on.database, () => list(scene, filter, ORDERS[0]!));
        const read = plans.flat().filter(({ table }) => table === 'segment_names');
        expect(read.length).toBeGreaterThan(2);
        // Each row has as many names as steps. That of the zone is the last one.
        for (const each of read) expect(each.rows).toBeLessThanOrEqual(2 * rows);
      }
    },
  );
});
