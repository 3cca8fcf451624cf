import { randomBytes } from 'node:crypto';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Trajectory } from '../../src/domain/trajectory.ts';
import type { StorageFault } from '../../src/domain/verification.ts';
import type { NamedColumn } from '../../src/store/sql/kit/tables/table.ts';
import { TABLES } from '../../src/store/sql/kit/tables.ts';
import { dose } from '../support/dose.ts';
import { makeStep, newState, smallRef, stateRef, textObservation } from '../support/steps.ts';
import { furnishRollouts } from './furnish_rollouts.ts';
import { describeStore } from './on_store.ts';
import { RunScene } from './run_scene.ts';
import { putState, refusalOf, Scene } from './scene.ts';
import { stateOf } from './state_chains.ts';
import { expectVerified, faultsOf } from './verified.ts';

const CHUNK = 256 * 1024;

/** Rows of steps that fill a part of the reading: the next part has none. */
const PART = 32;

/** Rows of steps with states, and then some that refer to a large state. */
const FEW = 5;

const OTHER_TEXTS: Readonly<Record<string, string>> = {
  commits: `'[[[7,"2001-01-01T00:00:00.000000Z"]],[0]]'`,
  rewards: `'[9]'`,
  ends: `'{"0":3}'`,
  metric_sums: `'{"wrong":[1,1,1]}'`,
  state_names: `'[["wrong",0,1]]'`,
  labels: `'[["wrong",0,1]]'`,
};

/** A namespace with steps. */
interface FurnishedSteps {
  readonly scene: RunScene;
  readonly root: Trajectory;
  readonly child: Trajectory;
  /** Digests of states: with bytes in a step, of a chain, and attached to a step. */
  readonly small: string;
  readonly chain: readonly string[];
  readonly attached: string;
}

/** A namespace with rows of every kind. */
interface Furnished extends FurnishedSteps {
  /** The digest of a state in chunks. */
  readonly large: string;
}

describeStore('verification', (on) => {
  /** Steps with small, chained and attached states, and a branch. */
  async function furnishSteps(): Promise<FurnishedSteps> {
    const scene = new RunScene(on.store);
    const root = await scene.create({ scoredMetrics: ['value'] });
    const small = newState(`small ${scene.namespace}`);
    const chain = [0, 1, 2].map((i) => stateOf(5, 9000, [i]));
    const steps = chain.map((state, i) =>
      makeStep(BigInt(i), {
        reward: i + 0.5,
        terminated: i === 2,
        startTime: 1_000_000_000n,
        endTime: 3_500_000_000n,
        metrics: new Map([['value', i]]),
        labels: new Map([['phase', 'seen']]),
        states: [stateRef(state, 'big'), smallRef(small, 'env')],
      }),
    );
    for (const [i, step] of steps.entries()) await scene.append(root, [step], { states: [chain[i]!] });
    const later = newState('attached');
    await scene.store.attachState(scene.caller, {
      trajectoryId: root.id,
      uid: undefined,
      writerEpoch: undefined,
      stepNumber: 1n,
      name: 'later',
      digest: later.digest,
      mediaType: '',
      data: later.data,
    });
    const child = await scene.branch(root, 2n);
    await scene.append(child, [makeStep(3n, { reward: 2 }), makeStep(4n)]);
    await scene.store.setTag(scene.namespace, child.id, 'best', 4n, undefined);
    const digests = { small: small.digest, chain: chain.map(({ digest }) => digest), attached: later.digest };
    return { scene, root, child, ...digests };
  }

  /** With this many segments. */
  async function furnish(rows = FEW): Promise<Furnished> {
    const furnished = await furnishSteps();
    const { scene, root } = furnished;
    const run = await scene.makeRunWith(['a', 'b'], { status: 'RUNNING' });
    await furnishRollouts(scene, run);
    const bytes = randomBytes(2 * CHUNK + 100);
    const large = await putState(scene.store, scene.namespace, bytes, CHUNK);
    const content = { kind: 'state', digest: large, mediaType: '', size: bytes.length } as const;
    const observations = [textObservation('', { content })];
    for (let i = 3; i < rows; i += 1) await scene.append(root, [makeStep(BigInt(i), { reward: -i, observations })]);
    return { ...furnished, large };
  }

  beforeAll(() => expectVerified(on.store));

  it('V1: rows of every kind fit together, before and after a merge, a deletion and a trim', async () => {
    const { scene, root, child } = await furnish(PART);
    await expectVerified(on.store);
    for (let left = [{ ref: root.ref, rest: true }]; left.length > 0; ) left = await scene.store.mergeSteps(left);
    await expectVerified(on.store);
    await scene.delete(root, 'KEEP_SHARED');
    await expectVerified(on.store);
    await scene.delete(child);
    await expectVerified(on.store);
  });

  it('V1: finds that merged steps and the index of their names differ', async () => {
    const { scene, root } = await furnishSteps();
    await scene.store.mergeSteps([{ ref: root.ref, rest: true }]);
    const names = async () => {
      const found = await on.sql.rows(
        `select name from segment_names where trajectory = ${root.ref.key} order by name`,
      );
      return found.map(({ name }) => name);
    };
    expect(await names()).toEqual(['"big"', '"env"', '"later"', '["phase","seen"]']);
    for (const name of ['"env"', '["phase","seen"]']) {
      const row = `where trajectory = ${root.ref.key} and name = '${name}'`;
      await on.sql.rows(`update segment_names set first_step_number = 1 ${row}`);
      const faults = (await faultsOf(on.store)).map(({ trajectoryId, check, message }) => ({
        trajectoryId,
        check,
        message,
      }));
      expect(faults).toEqual([
        { trajectoryId: root.id, check: 'COLUMNS', message: expect.stringContaining('other names than') },
        {
          trajectoryId: root.id,
          check: 'COLUMNS',
          message: expect.stringContaining('a segment at step 1 that does not exist'),
        },
      ]);
      await on.sql.rows(`update segment_names set first_step_number = 0 ${row}`);
      await expectVerified(on.store);
    }
    const superfluous = `(${root.ref.tree}, ${root.ref.key}, '["phase","other"]', 0)`;
    await on.sql.rows(`insert into segment_names values ${superfluous}`);
    expect((await faultsOf(on.store)).map(({ message }) => message)).toEqual([
      expect.stringContaining('other names than'),
    ]);
    await scene.delete(root, 'CASCADE');
    expect(await names()).toEqual([]);
  });

  it('B2: damaged names of states prevent no deletion', async () => {
    const { scene, root } = await furnishSteps();
    await scene.store.mergeSteps([{ ref: root.ref, rest: true }]);
    await on.sql.rows(`update segments set state_names = '[["env"' where trajectory = ${root.ref.key}`);
    await scene.delete(root, 'CASCADE');
    expect(await scene.isThere(root.id)).toBe(false);
    await expectVerified(on.store);
  });

  it('V1: counts the steps and states that it has read', async () => {
    const { root } = await furnish(PART);
    let last: { doneSteps: bigint; totalSteps: bigint; doneStates: bigint; totalStates: bigint } | undefined;
    for await (const progress of on.store.verify()) {
      expect(progress.doneSteps).toBeGreaterThanOrEqual(last?.doneSteps ?? 0n);
      last = progress;
    }
    expect(root.nextStepNumber).toBe(0n);
    expect(last!.totalSteps).toBeGreaterThan(BigInt(PART));
    expect(last).toMatchObject({ doneSteps: last!.totalSteps, doneStates: last!.totalStates });
  });

  it('V1: appends, merges, attaches and deletions meanwhile are no faults', async () => {
    const { scene, root } = await furnish(PART);
    let done = false;
    const changing = (async () => {
      for (let i = 0; !done; i += 1) {
        const state = stateOf(5, 9000, [i]);
        await scene.append(root, [makeStep(BigInt(PART + i), { reward: i, states: [stateRef(state)] })], {
          states: [state],
        });
        if (i % 7 === 0) await scene.store.mergeSteps([{ ref: root.ref, rest: true }]);
        const made = await scene.branch(root, 10n);
        await scene.append(made, [makeStep(11n, { states: [stateRef(state)] })]);
        if (i % 2 === 0) await scene.delete(made);
      }
    })();
    for (let i = 0; i < dose(3, 10); i += 1) await expectVerified(on.store);
    done = true;
    await changing;
    await expectVerified(on.store);
  });

  /** Rows of a step of a trajectory. */
  const of = ({ ref }: Trajectory, number: number, column = 'step_number') =>
    `where tree = ${ref.tree} and trajectory = ${ref.key} and ${column} = ${number}`;
  const row = (trajectory: Trajectory, first: number) => of(trajectory, first, 'first_step_number');
  const head = ({ ref }: Trajectory) => `where tree = ${ref.tree} and key = ${ref.key}`;
  const hex = (digest: string) => (on.engine === 'sqlite' ? `x'${digest}'` : `'\\x${digest}'::bytea`);
  const state = (digest: string, { scene }: FurnishedSteps) =>
    `where namespace = '${scene.namespace}' and digest = ${hex(digest)}`;
  /** The bytes of a column with the last one changed. */
  const flipped = (column: string) =>
    on.engine === 'sqlite'
      ? `cast(substr(${column}, 1, length(${column}) - 1)
          || case substr(${column}, -1) when x'7f' then x'80' else x'7f' end as blob)`
      : `set_byte(${column}, length(${column}) - 1, 255 - get_byte(${column}, length(${column}) - 1))`;

  interface Damage {
    readonly sql: string;
    readonly fault: Partial<Omit<StorageFault, 'message'>>;
    readonly message: string;
  }
  const stepsOf = ({ id }: Trajectory, first: bigint, next = first + 1n) => {
    return { trajectoryId: id, firstStepNumber: first, nextStepNumber: next };
  };
  const DAMAGE: Readonly<Record<string, (furnished: FurnishedSteps) => Damage>> = {
    'a flipped byte in a segment': ({ root }) => ({
      sql: `update segments set body = ${flipped('body')} ${row(root, 2)}`,
      fault: { check: 'STEPS', ...stepsOf(root, 2n) },
      message: 'checksum',
    }),
    'a flipped byte in a small state': ({ root, small }) => ({
      sql: `update segments set states = ${flipped('states')} ${row(root, 1)}`,
      fault: { check: 'STATES', digest: small, ...stepsOf(root, 1n) },
      message: 'small state "env"',
    }),
    'a flipped byte in a base': (furnished) => ({
      sql: `update states set data = ${flipped('data')} ${state(furnished.chain[0]!, furnished)}`,
      fault: { check: 'STATES', digest: furnished.chain[0]! },
      message: 'do not match',
    }),
    'a flipped byte in an attached state': ({ root, attached }) => ({
      sql: `update attached_states set data = ${flipped('data')} ${of(root, 1)}`,
      fault: { check: 'STATES', digest: attached, ...stepsOf(root, 1n) },
      message: 'attached state "later"',
    }),
    'a missing row of steps': ({ root }) => ({
      sql: `delete from segments ${row(root, 1)}`,
      fault: { check: 'TILING', ...stepsOf(root, 2n) },
      message: 'follows step 0',
    }),
    'a missing last row of steps': ({ child }) => ({
      sql: `delete from segments ${row(child, 3)}`,
      fault: { check: 'TILING', ...stepsOf(child, 3n, 5n) },
      message: 'its segments end at 3',
    }),
    'steps of a missing trajectory': ({ child }) => ({
      sql: `delete from trajectories ${head(child)}`,
      fault: { check: 'TILING' },
      message: 'segments',
    }),
    'a wrong sum of rewards': ({ root }) => ({
      sql: `update trajectories set reward_sum = reward_sum + 1 ${head(root)}`,
      fault: { check: 'SUMS', trajectoryId: root.id },
      message: 'sum of rewards',
    }),
    'a wrong sum of a row': ({ root }) => ({
      sql: `update segments set byte_sum = byte_sum + 1 ${row(root, 2)}`,
      fault: { check: 'SUMS', ...stepsOf(root, 2n) },
      message: 'sum of bytes',
    }),
    'a wrong bound of rewards': ({ root }) => ({
      sql: `update segments set max_reward = 100 ${row(root, 2)}`,
      fault: { check: 'COLUMNS', ...stepsOf(root, 2n) },
      message: 'max_reward',
    }),
    'a wrong bound of a trajectory': ({ root }) => ({
      sql: `update trajectories set min_reward = 0 ${head(root)}`,
      fault: { check: 'SUMS', trajectoryId: root.id },
      message: 'smallest reward',
    }),
    'a missing name of a state': ({ root }) => ({
      sql: `update segments set state_names = '[["env",0,1]]' ${row(root, 1)}`,
      fault: { check: 'COLUMNS', ...stepsOf(root, 1n) },
      message: 'state_names',
    }),
    'a missing label': ({ root }) => ({
      sql: `update segments set labels = '[]' ${row(root, 1)}`,
      fault: { check: 'COLUMNS', ...stepsOf(root, 1n) },
      message: 'labels',
    }),
    'a wrong sum of a metric': ({ root }) => ({
      sql: `update segments set metric_sums = '{"value":[3,1,1]}' ${row(root, 1)}`,
      fault: { check: 'COLUMNS', ...stepsOf(root, 1n) },
      message: 'metric_sums',
    }),
    'a name of the index that no segment has': ({ root }) => ({
      sql: `insert into segment_names values (${root.ref.tree}, ${root.ref.key}, 'wrong', 2)`,
      fault: { check: 'COLUMNS', ...stepsOf(root, 2n) },
      message: 'the index of names',
    }),
    'a segment that the index of names lacks': ({ root }) => ({
      sql: `update trajectories set indexed_to = 3 ${head(root)}`,
      fault: { check: 'COLUMNS', ...stepsOf(root, 2n) },
      message: 'not in the index of names',
    }),
    'a wrong score': ({ root }) => ({
      sql: `update step_scores set value = 7 ${of(root, 2)}`,
      fault: { check: 'COLUMNS', ...stepsOf(root, 2n) },
      message: 'score "value"',
    }),
    'a missing base': (furnished) => ({
      sql: `delete from states ${state(furnished.chain[0]!, furnished)}`,
      fault: { check: 'BASES', digest: furnished.chain[1]! },
      message: 'does not exist',
    }),
    'a wrong depth': (furnished) => ({
      sql: `update states set depth = 0 ${state(furnished.chain[1]!, furnished)}`,
      fault: { check: 'BASES', digest: furnished.chain[1]! },
      message: 'its depth is 0',
    }),
    'wrong bytes of bases': (furnished) => ({
      sql: `update states set base_bytes = 1 ${state(furnished.chain[1]!, furnished)}`,
      fault: { check: 'BASES', digest: furnished.chain[1]! },
      message: 'its row says 1',
    }),
    'a missing reference': ({ root, chain }) => ({
      sql: `delete from state_refs ${of(root, 0)}`,
      fault: { check: 'REFERENCES', ...stepsOf(root, 0n) },
      message: chain[0]!,
    }),
    'a tag of no step': ({ child, scene }) => ({
      sql: `update tags set step_number = 99 where namespace = '${scene.namespace}'`,
      fault: { check: 'TAGS', ...stepsOf(child, 99n) },
      message: '"best"',
    }),
    'a branch point beyond its parent': ({ child }) => ({
      sql: `update trajectories set branch_point = 70, next_step_number = 73 ${head(child)}`,
      fault: { check: 'LINEAGE', trajectoryId: child.id },
      message: 'branch point 70',
    }),
    'a wrong depth of a branch': ({ child }) => ({
      sql: `update trajectories set depth = 3 ${head(child)}`,
      fault: { check: 'LINEAGE', trajectoryId: child.id },
      message: 'depth is 3',
    }),
    'a wrong status of a trajectory': ({ child }) => ({
      sql: `update trajectories set status = 'FAILED' ${head(child)}`,
      fault: { check: 'HISTORY', trajectoryId: child.id },
      message: 'its status is FAILED',
    }),
  };

  /** Damage for which the namespace needs rows of every kind. */
  const OTHER_DAMAGE: Readonly<Record<string, (furnished: Furnished) => Damage>> = {
    'a flipped byte in a chunk': ({ large, scene }) => ({
      sql: `update state_chunks set data = ${flipped('data')} where namespace = '${scene.namespace}' and ordinal = 1`,
      fault: { check: 'STATES', digest: large },
      message: 'chunk 1',
    }),
    'a missing state': (furnished) => ({
      sql: `delete from states ${state(furnished.large, furnished)}`,
      fault: { check: 'REFERENCES', ...stepsOf(furnished.root, 3n) },
      message: 'does not exist',
    }),
    'a reference that no step has': ({ root, large }) => ({
      sql: `update state_refs set name = 'wrong' ${of(root, 4)}`,
      fault: { check: 'REFERENCES', digest: large, ...stepsOf(root, 4n) },
      message: '"wrong"',
    }),
    'a missing run': ({ scene }) => ({
      sql: `delete from runs where namespace = '${scene.namespace}'`,
      fault: { check: 'ROWS' },
      message: 'table stages',
    }),
    'a wrong status': ({ scene }) => ({
      sql: `update rollouts set status = 'FAILED' where namespace = '${scene.namespace}' and status = 'COMPLETED'`,
      fault: { check: 'HISTORY' },
      message: 'its status is FAILED',
    }),
  };

  /** Columns whose values are nowhere else. */
  const UNPROVEN: Readonly<Record<string, readonly string[]>> = {
    segments: ['commit_time'],
    state_refs: [],
    attached_states: ['media_type', 'attach_time'],
    step_scores: [],
    states: ['key', 'referenced', 'version', 'renew_time'],
    tags: ['name', 'update_time'],
  };

  /** A value that the column does not have. */
  const otherValue = ({ name, type }: NamedColumn): string => {
    if (type === 'int8' || type === 'float8') return `coalesce(${name}, 0) + 1000000`;
    if (type === 'bool') return on.engine === 'sqlite' ? '1' : 'true';
    if (type === 'timestamptz') return `'2001-01-01T00:00:00.000000Z'`;
    if (type === 'uuid') return `'00000000-0000-4000-8000-000000000000'`;
    if (type === 'bytea') return name === 'base' ? hex('00') : flipped(name);
    return OTHER_TEXTS[name] ?? `'wrong'`;
  };

  it('V1, D5: finds columns that cannot be read; a read of their steps says that they are damaged', async () => {
    const { scene, root } = await furnishSteps();
    const columns = { commits: '[', rewards: '[1', ends: '{"0"', metric_sums: '{', state_names: '7', labels: 'null]' };
    const changes = Object.entries(columns).map(([name, text]) => `${name} = '${text}'`);
    await on.sql.rows(`update segments set ${changes.join(', ')} ${row(root, 1)}`);
    const faults = (await faultsOf(on.store)).filter(({ namespace }) => namespace === scene.namespace);
    for (const name of Object.keys(columns)) {
      const message = expect.stringContaining(`the column ${name} cannot be read`);
      expect(faults).toContainEqual(expect.objectContaining({ check: 'COLUMNS', ...stepsOf(root, 1n), message }));
    }
    const metadata = { first_step_number: '1', next_step_number: '2' };
    expect(await refusalOf(scene.steps(root))).toMatchObject({ reason: 'STEP_CORRUPT', metadata });
    await scene.delete(root, 'CASCADE');
  });

  it.each([
    ['no list', '7'],
    ['null', 'null'],
    ['no commits', '[[],[]]'],
    ['commits of no steps', '[[[0,"TIME"],[0,"TIME"]],[]]'],
    ['commits of too few steps', '[[[0,"TIME"],[0,"TIME"]],[0,1,1]]'],
    ['commits of too many steps', '[[[0,"TIME"],[0,"TIME"]],[0,1,1,1,1]]'],
    ['a commit of no step', '[[[0,"TIME"],[0,"TIME"],[0,"TIME"]],[0,1,1,1]]'],
    ['commits out of order', '[[[0,"TIME"],[0,"TIME"]],[1,1,0,0]]'],
    ['a negative index', '[[[0,"TIME"],[0,"TIME"]],[-1,0,1,1]]'],
    ['an index without a commit', '[[[0,"TIME"],[0,"TIME"]],[0,1,2,2]]'],
    ['a huge index', '[[[0,"TIME"],[0,"TIME"]],[0,1,1,1e300]]'],
    ['a text for an index', '[[[0,"TIME"],[0,"TIME"]],[0,"1","1","1"]]'],
    ['a fraction for an epoch', '[[[0.5,"TIME"],[0,"TIME"]],[0,1,1,1]]'],
    ['a huge epoch', '[[[0,"TIME"],[1e300,"TIME"]],[0,1,1,1]]'],
    ['no time', '[[[0,"TIME"],[0]],[0,1,1,1]]'],
  ])('V1, D5: finds commits of merged steps with %s; no read, merge or deletion relies on them', async (_, damage) => {
    const before = on.scene();
    const made = await before.createWith(['0']);
    await before.appendWords(made, ['1', '2', '3']);
    const branch = await before.branch(made, 1n);
    await before.store.mergeSteps([{ ref: made.ref, rest: true }]);
    await before.appendWords(made, ['4']);
    const row = `where trajectory = ${made.ref.key} and commits is not null`;
    const commits = damage.replaceAll('TIME', '2001-01-01T00:00:00.000000Z');
    await on.sql.rows(`update segments set commits = '${commits}' ${row}`);
    await on.reopen();
    const scene = new Scene(on.store, before.namespace);
    const faults = (await faultsOf(on.store)).filter(({ namespace }) => namespace === scene.namespace);
    expect(faults).toContainEqual(expect.objectContaining({ check: 'COLUMNS', ...stepsOf(made, 0n, 4n) }));
    expect(await refusalOf(scene.steps(made))).toMatchObject({ reason: 'STEP_CORRUPT' });
    await scene.store.mergeSteps([{ ref: made.ref, rest: true }]);
    expect(await on.sql.rows(`select commits from segments ${row}`)).toEqual([{ commits }]);
    await scene.delete(made, 'KEEP_SHARED');
    await scene.delete(branch, 'CASCADE');
  });

  describe('of changed columns', () => {
    const changed = new Map<string, string>();
    let faulty: ReadonlySet<string>;

    beforeAll(async () => {
      const columns: [string, NamedColumn][] = [];
      for (const [table, unproven] of Object.entries(UNPROVEN)) {
        for (const column of TABLES[table as keyof typeof UNPROVEN & keyof typeof TABLES].order) {
          if (unproven.includes(column.name)) continue;
          columns.push([table, column]);
        }
      }
      // At once: commits then serve many of them.
      const places = await Promise.all(columns.map(async () => furnishSteps()));
      for (const [i, [table, column]] of columns.entries()) {
        const furnished = places[i]!;
        const { root, child, chain } = furnished;
        const where: Readonly<Record<string, string>> = {
          segments: row(root, 1),
          state_refs: of(root, 1),
          attached_states: of(root, 1),
          step_scores: of(root, 1),
          states: state(chain[1]!, furnished),
          tags: of(child, 4),
        };
        await on.sql.rows(`update ${table} set ${column.name} = ${otherValue(column)} ${where[table]}`);
        changed.set(`${table}.${column.name}`, furnished.scene.namespace);
      }
      faulty = new Set(
        (await faultsOf(on.store)).flatMap(({ namespace, trajectoryId }) => [namespace, trajectoryId ?? '']),
      );
    });

    it('V1: finds each changed column of steps, states and tags', () => {
      expect([...changed].filter(([, namespace]) => !faulty.has(namespace)).map(([column]) => column)).toEqual([]);
      expect(changed.size).toBeGreaterThan(50);
    });
  });

  describe('of damaged rows', () => {
    const damaged = new Map<string, { readonly namespace: string } & Damage>();
    let faults: readonly StorageFault[];

    // All damage is verified together, each in a namespace of its own.
    beforeAll(async () => {
      const [places, others] = await Promise.all([
        Promise.all(Object.entries(DAMAGE).map(async (each) => [...each, await furnishSteps()] as const)),
        Promise.all(Object.entries(OTHER_DAMAGE).map(async (each) => [...each, await furnish()] as const)),
      ]);
      const apply = async (title: string, { namespace }: RunScene, damage: Damage) => {
        await on.sql.rows(damage.sql);
        damaged.set(title, { namespace, ...damage });
      };
      for (const [title, damage, furnished] of places) await apply(title, furnished.scene, damage(furnished));
      for (const [title, damage, furnished] of others) await apply(title, furnished.scene, damage(furnished));
      faults = await faultsOf(on.store);
    });

    it.each(Object.keys({ ...DAMAGE, ...OTHER_DAMAGE }))('V1: finds %s, and names the place', (title) => {
      const { namespace, fault, message } = damaged.get(title)!;
      expect(faults.filter((each) => each.namespace === namespace)).toContainEqual(
        expect.objectContaining({ ...fault, message: expect.stringContaining(message) }),
      );
    });
  });
});
