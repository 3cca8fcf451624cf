import { openDriver } from '../drivers.ts';
import type { Payload } from '../payload.ts';
import { ROW_TABLES, RowMaker, type RowSet } from '../rows.ts';
import { percentile, program } from './program.ts';

/**
 * What a database's own driver does with segments. `insert`: 1000 steps a commit, as fast as it can.
 * `insert-one`: one step's row a commit, each awaited. `select`: the rows of one trajectory, in order; they are
 * inserted first.
 */
export interface DriverSettings {
  readonly task: 'insert' | 'insert-one' | 'insert-states' | 'select';
  readonly database: string;
  readonly payload: Payload;
  /** First row key of the invented trajectories: this one and the next 3. */
  readonly firstTree: number;
  readonly warmupSeconds: number;
  readonly seconds: number;
  readonly steps?: number;
}

export interface DriverFigures {
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

const STEPS_PER_COMMIT = 1000;
const TREES = 4;

await program(async (settings: DriverSettings): Promise<DriverFigures> => {
  const driver = await openDriver(settings.database);
  const maker = new RowMaker(settings.payload, driver.engine);
  let made = 0;
  const nextRows = (count: number): RowSet => {
    // As with concurrent streams: a commit has steps of several trajectories.
    const sets: RowSet = { plain_steps: [], plain_step_states: [], plain_states: [] };
    for (let i = 0; i < count; i += 1, made += 1)
      maker.add(sets, settings.firstTree + (made % TREES), Math.floor(made / TREES));
    return sets;
  };
  const tasks: Record<DriverSettings['task'], () => Promise<number>> = {
    insert: async () => {
      const rows = nextRows(STEPS_PER_COMMIT);
      await driver.insert(ROW_TABLES, rows);
      return STEPS_PER_COMMIT;
    },
    'insert-one': async () => {
      await driver.insertOne(nextRows(1).plain_steps?.[0] ?? []);
      return 1;
    },
    'insert-states': async () => {
      await driver.insert(['plain_states'], nextRows(1));
      return 1;
    },
    select: () => driver.select(settings.firstTree),
  };
  if (settings.task === 'select' && (await driver.select(settings.firstTree)) === 0) {
    for (let made = 0; made < (settings.steps ?? 0); made += STEPS_PER_COMMIT) {
      const sets: RowSet = { plain_steps: [], plain_step_states: [], plain_states: [] };
      for (let i = made; i < made + STEPS_PER_COMMIT; i += 1) maker.add(sets, settings.firstTree, i);
      await driver.insert(ROW_TABLES, sets);
    }
  }
  const work = tasks[settings.task];
  const latencies: number[] = [];
  const until = async (seconds: number): Promise<number> => {
    latencies.length = 0;
    const begun = performance.now();
    let done = 0;
    for (let before = begun; before - begun < seconds * 1000; ) {
      done += await work();
      const now = performance.now();
      latencies.push(now - before);
      before = now;
    }
    return done / ((performance.now() - begun) / 1000);
  };
  await until(settings.warmupSeconds);
  const perSecond = await until(settings.seconds);
  return { perSecond, p50Ms: percentile(latencies, 0.5), p99Ms: percentile(latencies, 0.99) };
});
