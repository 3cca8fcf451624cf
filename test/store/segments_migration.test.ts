import fc from 'fast-check';
import { Kysely } from 'kysely';
import { expect, it } from 'vitest';
import { NO_PROMPT, type Step } from '../../src/domain/step.ts';
import { migrate } from '../../src/store/migrations/migrate.ts';
import { Connection, openWriter } from '../../src/store/sqlite/connection.ts';
import { Dialect } from '../../src/store/sqlite/dialect.ts';
import { anyStep } from '../support/arbitrary-steps.ts';
import { createDatabase, ENGINES } from '../support/database.ts';
import { createMigratedDatabase } from '../support/migrated_database.ts';
import { makeStep, newState, smallRef, stateRef, textObservation, wordStep } from '../support/steps.ts';
import { undoMigrations } from './earlier_schema.ts';
import { openOn } from './on_store.ts';
import { Scene } from './scene.ts';
import { countRows, outsideSql, sqlitePath } from './sql.ts';

it.each(ENGINES)(
  'design 3: the migration to segments keeps every step, state, sum and digest, of any trajectory, on %s',
  async (engine) => {
    await using database = await createMigratedDatabase(engine);
    const store = await openOn(database);
    const scene = new Scene(store);
    // Former steps have neither labels, nor tensors, nor prompts.
    const former = anyStep
      .filter(({ actions, observations }) =>
        [...actions, ...observations].every((part) => part.content?.kind !== 'tensor'),
      )
      .map((step) => ({
        ...step,
        actions: step.actions.map((action) => ({ ...action, ...NO_PROMPT })),
        labels: new Map(),
      }));
    const drawn = fc.sample(former, { numRuns: 300, seed: 18 });
    const numbered = (from: number, steps: readonly Step[]) =>
      steps.map((step, i) => makeStep(BigInt(from + i), { ...step, stepNumber: BigInt(from + i) }));
    const [sent, large, attached] = [newState('sent'), newState('large'.repeat(9000)), newState('attached')];
    const content = { kind: 'state', digest: large.digest, mediaType: 'image/png', size: large.data.length } as const;

    const root = await scene.create();
    // The order of UTF-16 code units, which former digests used, is another than that of UTF-8 bytes.
    const metrics = new Map([
      ['\u{1f30a}', 1],
      ['\uff5e', 2],
    ]);
    const times = { startTime: 5n, endTime: 1_000_000_005n };
    const rootSteps = [
      ...numbered(0, drawn.slice(0, 250)),
      makeStep(250n, { states: [stateRef(large, 'agent'), smallRef(sent)], ...times, metrics }),
      makeStep(251n, { observations: [textObservation('', { content })], reward: 2 }),
    ];
    for (let at = 0; at < rootSteps.length; at += 90) {
      await scene.append(root, rootSteps.slice(at, at + 90), { states: [large] });
    }
    await scene.store.attachState(scene.caller, {
      trajectoryId: root.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 250n,
      name: 'after',
      digest: attached.digest,
      mediaType: 'text/plain',
      data: attached.data,
    });
    const branch = await scene.branch(root, 100n);
    const branchSteps = numbered(101, drawn.slice(250));
    await scene.append(branch, branchSteps);
    const leaf = await scene.branch(branch, 120n);
    const empty = await scene.create();
    // Longer than a page of the migration. Full rows would be compressed, as they were not in the former version.
    const long = await scene.create();
    for (let at = 0; at < 1200; at += 200) {
      await scene.append(
        long,
        Array.from({ length: 200 }, (_, i) => wordStep(BigInt(at + i), `${at + i}`)),
      );
    }
    const longBranch = await scene.branch(long, 1100n);
    const all = [root, branch, leaf, empty, long, longBranch];
    const look = async (here: Scene) =>
      Promise.all(
        all.map(async (each) => {
          const place = { tree: each.ref.tree, owner: each.ref.key, stepNumber: 250n };
          const small = await here.store.readSmallStates(here.namespace, place, ['agent', 'env', 'after']);
          return { row: await here.get(each.id), steps: await here.steps(each), small };
        }),
      );
    const sql = await outsideSql(database);
    // Earlier versions did not store it.
    await sql.rows('update attached_states set attach_time = null');
    const before = await look(scene);
    expect([...before[0]!.small.keys()]).toEqual(['env', 'after']);
    const rows = await countRows(sql);
    const turns = () => sql.rows('select key, timed_turns, turn_seconds from trajectories order by key');
    const turnsBefore = await turns();
    await store.close();

    await undoMigrations(sql, '0018_segments');
    const again = new Scene(await openOn(database), scene.namespace);
    expect(await look(again)).toEqual(before);
    expect(await turns()).toEqual(turnsBefore);
    expect(await countRows(sql)).toMatchObject({
      steps: rows.steps,
      state_refs: rows.state_refs,
      attached_states: 1,
    });
    expect(await again.append(root, rootSteps)).toMatchObject({ duplicates: rootSteps.length, nextStepNumber: 252n });
    expect(await again.append(branch, branchSteps)).toMatchObject({ duplicates: branchSteps.length });
    await again.append(leaf, [makeStep(121n, { reward: 1 })]);
    await again.store.close();
    await sql.close();
  },
);

it('design 3: on SQLite, the conversion finds rows by their keys, however many there are', async () => {
  await using database = await createDatabase('sqlite');
  const store = await openOn(database);
  const scene = new Scene(store);
  const large = newState('large'.repeat(2000));
  for (let i = 0; i < 5; i += 1) {
    const made = await scene.create();
    const steps = Array.from({ length: 200 }, (_, number) =>
      makeStep(BigInt(number), {
        states: [smallRef(newState(`${i} ${number}`)), ...(number === 7 ? [stateRef(large, 'large')] : [])],
      }),
    );
    await scene.append(made, steps, { states: [large] });
  }
  await store.close();
  const sql = await outsideSql(database);
  await undoMigrations(sql, '0018_segments');
  await sql.close();

  const connection = new Connection(openWriter(sqlitePath(database)));
  const texts = new Set<string>();
  const log = ({ query }: { readonly query: { readonly sql: string } }) => {
    texts.add(query.sql);
  };
  const db = new Kysely<unknown>({ dialect: new Dialect({ database: connection }), log });
  const onProgress = () => {
    throw new Error('the first transaction is taken back');
  };
  await expect(migrate(db, 'sqlite', { onProgress })).rejects.toThrow('taken back');
  const pages = [...texts].filter((text) =>
    /^(?:with w|select digest).*"?former_(?:steps|states|step_states)/s.test(text),
  );
  expect(pages.length).toBeGreaterThan(4);
  const scans = pages.flatMap((text) => {
    const plan = connection.prepare(`explain query plan ${text}`).all([]) as { readonly detail: string }[];
    return plan.map(({ detail }) => detail).filter((detail) => /^SCAN [rs]\b/.test(detail));
  });
  expect(scans).toEqual([]);
  await db.destroy();
});
