import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterEach, beforeAll, beforeEach, expect, it, vi } from 'vitest';
import { KeptQueries } from '../../src/store/sql/kit/kept_queries.ts';
import { KeyReads } from '../../src/store/sqlite/key_reads.ts';
import type { StatementJob } from '../../src/store/sqlite/read_threads.ts';
import { wordStep } from '../support/steps.ts';
import { describeStoreOn } from './on_store.ts';
import { RolloutScene } from './rollout_scene.ts';
import { sqlitePath } from './sql.ts';
import { sqliteTextsByThread } from './statement_count.ts';

const PAGE = { limit: 20, after: undefined };
const PAGE_BYTES = 4096;
/** A range of the last column of a unique index, which the number of the requested steps bounds. */
const STEP_RANGE = /^(?:first_)?step_number[<>]/;
/** Bytes that this thread has read by system calls, in whatever cache they were. */
const READ_BYTES = '/proc/thread-self/io';

describeStoreOn(['sqlite'], 'A5: reads by key', (on) => {
  let here: RolloutScene;
  let reads: Record<string, () => Promise<unknown>>;
  beforeAll(async () => {
    here = new RolloutScene(on.store);
    const { namespace } = here;
    const { id: experimentId, name: experimentName } = await here.experiment();
    const run = await here.makeRunWith(['a', 'b'], { name: 'r', experiment: { id: experimentId } });
    const stage = await here.stage(run, { status: 'RUNNING' });
    const [rolloutId = ''] = await here.queue(stage, 1);
    const root = await here.createWith(['a', 'b', 'c'], { experimentId });
    const branch = await here.branch(root, 1n);
    await on.store.setTag(namespace, root.id, 't', 1n, undefined);
    const lineage = await here.lineage(root);
    const { kind, number } = stage;
    reads = {
      'a trajectory': () => on.store.getTrajectory(namespace, branch.id),
      'references to trajectories': () => on.store.findTrajectoryRefs(namespace, [branch.id, root.id]),
      'a step': () =>
        on.store.readSteps(namespace, root.ref.tree, lineage, { from: 1n, to: 2n, maxSteps: 1, maxBytes: 1 }, 'FULL'),
      'a tag': () => on.store.getTag(namespace, root.id, 't'),
      'a run': () => on.store.getRun(namespace, { id: run.id }),
      'a run by name': () => on.store.getRun(namespace, { name: 'r', experimentName }),
      'a stage': () => on.store.getStage(namespace, { id: stage.id }),
      'a stage by number': () => on.store.getStage(namespace, { runId: run.id, kind, number }),
      'the run of a list': () => on.store.listStages(namespace, run.id, {}, PAGE, 'BASIC'),
      'the stage of a list': () => on.store.listGroups(namespace, stage.id, PAGE, 'BASIC'),
      'the rollout of a list': () => on.store.listEnvironments(namespace, { rolloutId }, PAGE),
    };
  });
  // However slow the machine is, no read counts as slow, and slow ones of the preparation are long ago.
  beforeEach(() => void vi.spyOn(performance, 'now').mockReturnValue(1e9));
  afterEach(() => void vi.restoreAllMocks());

  it('run on the serving thread, and no other read does', async () => {
    for (const [what, read] of Object.entries(reads)) {
      const { serving, reading } = await sqliteTextsByThread(read);
      expect(serving, what).toHaveLength(1);
      expect(reading.length > 0, what).toBe(what.endsWith('list'));
    }
    const { serving, reading } = await sqliteTextsByThread(async () => {
      const all = { from: 0n, to: 9n, maxSteps: 9, maxBytes: 1e6 };
      await on.store.readSteps(here.namespace, 1n, [{ key: 1n, from: 0n, to: 9n }], all, 'FULL');
      await on.store.findTrajectoryRefs(here.namespace, Array<string>(17).fill('x'));
      await on.store.listTrajectories(here.namespace, {}, PAGE);
      await on.store.getExperiment(here.namespace, { name: 'default' });
    });
    expect(serving).toEqual([]);
    expect(reading).toHaveLength(4);
  });

  it('search by the whole of a unique key: none scans, sorts or counts', async () => {
    const byKey = vi.spyOn(KeptQueries.prototype, 'byKey');
    for (const read of Object.values(reads)) await read();
    await here.makeRunWith([]); // Its transaction has queries that are also read elsewhere.
    const texts = new Map(
      byKey.mock.results.map(({ value }, i) => [byKey.mock.calls[i]![0], (value as { sql: string }).sql]),
    );
    const names = [...texts.keys()].map((name) => name.split(/ (?:FULL|BASIC|true|false)/)[0]);
    expect(new Set(names)).toEqual(new Set(namesInSource()));
    const unique = new Set((await on.sql.rows(UNIQUE_KEYS)).map(({ columns }) => columns));
    for (const [name, text] of texts) {
      const plan = (await on.sql.rows(`explain query plan ${text}`)).map(({ detail }) => String(detail));
      const searches = plan.filter((detail) => detail.startsWith('SEARCH'));
      expect(searches.length, name).toBeGreaterThan(0);
      for (const detail of searches) {
        const terms = /\(([^()]*)\)(?: LEFT-JOIN)?$/.exec(detail)?.[1]?.split(' AND ') ?? [];
        const columns = terms.filter((term) => term.endsWith('=?')).map((term) => term.slice(0, -2));
        if (terms.some((term) => STEP_RANGE.test(term))) columns.push('step_number');
        expect(unique, `${name}: ${detail}`).toContain(columns.join());
      }
      const others = plan.filter((detail) => !/^(?:SEARCH|CORRELATED SCALAR SUBQUERY|SCALAR SUBQUERY)/.test(detail));
      // A page of steps puts its one range, its few segments and the states attached to these together.
      expect(name.startsWith('page of steps') ? [] : others, name).toEqual([]);
    }
  });

  it.runIf(existsSync(READ_BYTES))('read a bounded number of pages of a cold file', async () => {
    const columns = await on.sql.rows(`select name from pragma_table_info('trajectories')`);
    await on.sql.rows(manyTrajectories(columns.map(({ name }) => String(name))));
    for (const [what, read] of Object.entries(reads)) {
      if (what.endsWith('list')) continue;
      await on.reopen();
      const before = bytesRead();
      await read();
      const pages = (bytesRead() - before) / PAGE_BYTES;
      expect(pages, what).toBeLessThan(20);
    }
    here = new RolloutScene(on.store, here.namespace);
  });

  it.runIf(existsSync(READ_BYTES))('leave a value above 16 KiB to a thread, before they read it', async () => {
    const { id } = await here.create({ metadataJson: `"${'x'.repeat(900_000)}"` });
    const { id: small } = await here.create({ metadataJson: `"${'x'.repeat(15_000)}"` });
    await here.get(small);
    const [first, second] = [await bytesOf(() => here.get(small)), await bytesOf(() => here.get(id))];
    const { serving, reading } = await sqliteTextsByThread(() => here.get(id));
    expect(first).toBeLessThan(40 * PAGE_BYTES);
    expect(second).toBeLessThan(40 * PAGE_BYTES);
    expect([serving.length, reading.length]).toEqual([1, 1]);
    expect((await here.get(id)).metadataJson).toHaveLength(900_002);
    const appended = await here.create();
    await here.append(appended, [wordStep(0n, 'x'.repeat(20_000))]);
    const [step] = await here.steps(appended);
    expect(step?.step.stepNumber).toBe(0n);
  });

  it('see what was committed before, and return the same rows as threads', async () => {
    const { id } = await here.create();
    for (let i = 0; i < 20; i += 1) {
      const name = `${i}`;
      await on.store.updateTrajectory(here.namespace, id, { name });
      expect((await here.get(id)).name).toBe(name);
    }
    for (const [what, read] of Object.entries(reads)) {
      const onServing = await read();
      const run = vi.spyOn(KeyReads.prototype, 'run').mockReturnValue(undefined);
      expect(await read(), what).toEqual(onServing);
      run.mockRestore();
    }
  });

  const ONE: StatementJob = { kind: 'arrays', text: 'select 1', parameters: [] };

  it('leave all to threads for three times as long as a read takes that waits for the disk', () => {
    const keyReads = new KeyReads(sqlitePath(on.database));
    const now = vi.spyOn(performance, 'now');
    const runFrom = (begin: number, end: number) => {
      now.mockReset().mockReturnValueOnce(begin).mockReturnValueOnce(end);
      return keyReads.run(ONE);
    };
    expect(runFrom(0, 1)).toEqual([[1]]);
    expect(runFrom(1, 11)).toEqual([[1]]);
    expect(runFrom(40, 40)).toBeUndefined();
    expect(runFrom(41, 41)).toEqual([[1]]);
    keyReads.close();
    expect(runFrom(50, 50)).toBeUndefined();
  });

  it('leave a locked file to a thread, and do not wait for it', () => {
    const locked = `${sqlitePath(on.database)}-locked`;
    const other = new DatabaseSync(locked);
    other.exec('create table numbers (key integer primary key)');
    const keyReads = new KeyReads(locked);
    other.exec('begin exclusive');
    expect(keyReads.run({ ...ONE, text: 'select key from numbers' })).toBeUndefined();
    other.exec('commit');
    expect(keyReads.run({ ...ONE, text: 'select key from numbers' })).toEqual([]);
    keyReads.close();
    other.close();
  });
});

function bytesRead(): number {
  return Number(/^rchar: (\d+)$/m.exec(readFileSync(READ_BYTES, 'latin1'))?.[1]);
}

async function bytesOf(work: () => Promise<unknown>): Promise<number> {
  const before = bytesRead();
  await work();
  return bytesRead() - before;
}

/** The names that queries by key have in the code. */
function namesInSource(): string[] {
  const folder = path.join(import.meta.dirname, '../../src/store/sql');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'));
  const texts = files.map((file) => readFileSync(path.join(folder, file), 'utf8'));
  return texts.flatMap((text) => [...text.matchAll(/\.byKey\((?:'|`)([a-z ]*[a-z])/g)].map(([, name = '']) => name));
}

/** Columns of unique indexes in order; step numbers have one name. */
const UNIQUE_KEYS = `
  select 'rowid' as columns
  union all
  select (select group_concat(replace(name, 'first_step_number', 'step_number'), ',') from pragma_index_info(i.name))
  from sqlite_schema as t, pragma_index_list(t.name) as i
  where t.type = 'table' and i."unique"`;

/** Makes so many copies of a trajectory that the indexes have several levels. */
function manyTrajectories(columns: readonly string[]): string {
  const same = columns.filter((name) => !['key', 'tree', 'id'].includes(name)).join();
  return `with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)
    insert into trajectories (tree, id, ${same})
    select 1000000 + n.i, lower(hex(randomblob(16))), ${same}
    from n cross join (select * from trajectories limit 1)`;
}
